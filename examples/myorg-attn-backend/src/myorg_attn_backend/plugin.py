"""Declares the backend. Imports only pegboard.api, so that listing it costs nothing."""

from pegboard.api import PluginInfo, hookimpl
from pegboard.api.attention import AttentionBackendSpec

PLUGIN = PluginInfo(
    name="myorg_attn",
    version="1.0.0",
    api="1.0",
    summary="Attention on PyTorch's scaled_dot_product_attention.",
    config="myorg_attn_backend.options:Options",
)


@hookimpl
def attention_backends() -> list[AttentionBackendSpec]:
    return [
        AttentionBackendSpec(
            name="MYORG_ATTN",
            target="myorg_attn_backend.backend:SdpaBackend",
            summary="scaled_dot_product_attention over gathered blocks.",
            priority=-50,
            dtypes=("float32", "bfloat16", "float16"),
            features=("sliding_window",),
            needs_host_lengths=True,
        )
    ]
