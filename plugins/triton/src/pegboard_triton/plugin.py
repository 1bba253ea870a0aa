"""Declares what this distribution offers: static descriptions only."""

from pegboard.api.attention import AttentionBackendSpec
from pegboard.api.ops import OpImplementationSpec
from pegboard.api.plugin import PluginInfo, hookimpl

PLUGIN = PluginInfo(
    name="triton",
    version="0.1.0",
    api="1.0",
    summary="Attention and ops in Triton, for platforms that have it.",
)
_DTYPES = ("bfloat16", "float16", "float32")
#: Module to the ops it implements under their own names.
_OPS = {
    "activation": ("gelu_tanh_and_mul", "silu_and_mul"),
    "batch": ("append_tokens", "prepare_inputs", "slot_mapping"),
    "norm": ("fused_add_rms_norm", "rms_norm"),
    "rope": ("rope_and_write_kv",),
    "sampling": ("most_likely", "philox_uniform"),
}


@hookimpl
def attention_backends() -> list[AttentionBackendSpec]:
    """Paged attention in Triton."""
    backend = AttentionBackendSpec(
        name="TRITON_ATTN",
        target="pegboard_triton.attention:TritonAttentionBackend",
        summary="Paged prefill and split decode in Triton.",
        priority=50,
        requires_features=("triton",),
        dtypes=_DTYPES,
        max_head_size=256,
        block_size_multiple=16,
        preferred_block_size=64,
        features=("sliding_window", "soft_cap"),
        graph_support="single_token",
    )
    return [backend]


@hookimpl
def op_implementations() -> list[OpImplementationSpec]:
    """The named ops in Triton."""
    return [
        OpImplementationSpec(
            name=f"triton.{op}",
            op=op,
            target=f"pegboard_triton.{module}:{op}",
            priority=50,
            requires_features=("triton",),
            dtypes=_DTYPES,
            kv_layouts=("triton_paged",) if op == "rope_and_write_kv" else (),
        )
        for module, ops in _OPS.items()
        for op in ops
    ]
