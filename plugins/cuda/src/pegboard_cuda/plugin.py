"""Declares what this distribution offers: static descriptions only."""

from pegboard.api.ops import OpImplementationSpec
from pegboard.api.platforms import PlatformSpec
from pegboard.api.plugin import PluginInfo, hookimpl

PLUGIN = PluginInfo(
    name="cuda",
    version="0.1.0",
    api="1.0",
    summary="NVIDIA GPUs: platform, graph capture, products on cuBLAS.",
)


@hookimpl
def platforms() -> list[PlatformSpec]:
    """The GPU, preferred to the host where there is one."""
    platform = PlatformSpec(
        name="cuda",
        target="pegboard_cuda.cuda_platform:CudaPlatform",
        detect="pegboard_cuda.detection:detect",
        device_type="cuda",
        distributed_backend="nccl",
        priority=100,
    )
    return [platform]


@hookimpl
def op_implementations() -> list[OpImplementationSpec]:
    """The products."""
    targets = {"linear": "Linear", "logits": "Logits"}
    return [
        OpImplementationSpec(
            name=f"cuda.{op}",
            op=op,
            target=f"pegboard_cuda.products:{attribute}",
            priority=50,
            platforms=("cuda",),
        )
        for op, attribute in targets.items()
    ]
