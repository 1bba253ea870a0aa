"""Declares what this distribution offers: static descriptions only."""

from pegboard.api.attention import AttentionBackendSpec
from pegboard.api.ops import OpImplementationSpec
from pegboard.api.platforms import PlatformSpec
from pegboard.api.plugin import PluginInfo, hookimpl

PLUGIN = PluginInfo(
    name="cpu",
    version="0.1.0",
    api="1.0",
    summary="CPUs: platform, attention and ops on native kernels.",
    config="pegboard_cpu.config:CpuConfig",
)
_FIT = {"platforms": ("cpu",), "requires_features": ("kernels",), "dtypes": ("bfloat16", "float32")}
_CLASSES = {"linear": "Linear", "gate_up_linear": "GateUpLinear", "logits": "Logits"}
_WRITERS = {"rope_and_write_kv": "rope_and_write_kv", "decoder_layers": "DecoderLayers"}
_PLAIN = "embedding rms_norm fused_add_rms_norm silu_and_mul gelu_tanh_and_mul rotary_embedding"
_SAMPLING = "most_likely keep_likely draw_tokens philox_uniform"
_BATCH = "prepare_inputs slot_mapping append_tokens"


@hookimpl
def platforms() -> list[PlatformSpec]:
    """The processor itself."""
    detect, target = "pegboard_cpu.detection:detect", "pegboard_cpu.cpu_platform:CpuPlatform"
    return [PlatformSpec(name="cpu", target=target, detect=detect, device_type="cpu")]


@hookimpl
def attention_backends() -> list[AttentionBackendSpec]:
    """Paged attention on the native kernels."""
    features = ("sliding_window", "soft_cap", "sinks", "kv_sharing", "batch_invariant")
    backend = AttentionBackendSpec(
        name="CPU_ATTN",
        target="pegboard_cpu.attention:CpuAttentionBackend",
        summary="Paged prefill and decode on native kernels.",
        priority=50,
        head_size_multiple=8,
        max_head_size=1024,
        block_size_multiple=16,
        preferred_block_size=16,
        features=features,
        **_FIT,
    )
    return [backend]


@hookimpl
def op_implementations() -> list[OpImplementationSpec]:
    """The named ops on the native kernels."""
    targets = _CLASSES | _WRITERS | {op: op for op in f"{_PLAIN} {_SAMPLING} {_BATCH}".split()}
    specs: list[OpImplementationSpec] = []
    for op, attribute in targets.items():
        layouts = ("cpu_paged",) if op in _WRITERS else ()
        module = "decoder" if op == "decoder_layers" else "batch_ops" if op in _BATCH else "ops"
        names = {"name": f"cpu.{op}", "op": op, "target": f"pegboard_cpu.{module}:{attribute}"}
        specs.append(OpImplementationSpec(**names, priority=50, kv_layouts=layouts, **_FIT))
    return specs
