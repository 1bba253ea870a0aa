"""CPU_ATTN: paged attention on the native kernels.

The cache's layout is the one the products read: keys in groups of 16 tokens, values in steps of
one token (float32) or two (bfloat16). A step is one call a layer for prefill, chunks and decode.
"""

from torch import Tensor

from pegboard.api.attention import (
    AttentionBackend,
    AttentionImpl,
    AttentionLayer,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
    KVLayout,
)
from pegboard.api.errors import ConfigError
from pegboard.api.kv import KVGroup
from pegboard_kernels.attention import paged_attention
from pegboard_kernels.fused import rotate_and_write

__all__ = ["CpuAttention", "CpuAttentionBackend", "CpuMetadataBuilder"]


class CpuMetadataBuilder(AttentionMetadataBuilder):
    """The kernels read the common metadata as it is."""

    def build(self, common: CommonAttentionMetadata) -> CommonAttentionMetadata:
        """Return what came: lengths are read on the host, where they already are."""
        return common


class CpuAttentionBackend(AttentionBackend):
    """The native kernels, in one layout."""

    def kv_layout(self, layer: AttentionLayer, num_blocks: int) -> KVLayout:
        """Return keys and values of a layer.

        With s = 2 tokens or values a step in bfloat16 and 1 in float32, keys are [num_blocks,
        num_kv_heads, block_size / 16, head_size / s, 16, s] and values [num_blocks,
        num_kv_heads, block_size / s, head_size, s].
        """
        if layer.v_head_size != layer.head_size:
            raise ConfigError(
                f"CPU_ATTN keeps values as wide as keys; layer {layer.index} has "
                f"{layer.v_head_size} and {layer.head_size} (--attention-backend REFERENCE)"
            )
        block_size, size = self.config.block_size, layer.head_size
        step = 2 if self.config.kv_dtype == "bfloat16" else 1
        leading = (num_blocks, layer.num_kv_heads)
        return KVLayout(
            name="cpu_paged",
            shapes=(
                (*leading, block_size // 16, size // step, 16, step),
                (*leading, block_size // step, size, step),
            ),
            dtypes=(self.config.kv_dtype, self.config.kv_dtype),
            block_size=block_size,
        )

    def metadata_builder(self, group: KVGroup) -> CpuMetadataBuilder:
        """Return one that passes the common metadata on."""
        del group
        return CpuMetadataBuilder()

    def implementation(self, layer: AttentionLayer, sinks: Tensor | None = None) -> "CpuAttention":
        """Return the layer's attention."""
        return CpuAttention(layer, sinks, self.config.block_size)


class CpuAttention(AttentionImpl):
    """One layer on the kernels."""

    def __init__(self, layer: AttentionLayer, sinks: Tensor | None, block_size: int) -> None:
        """Keep the layer's numbers; sinks may be filled later."""
        self._sinks = sinks
        self._block_size = block_size
        self._scale = layer.scale
        self._soft_cap = layer.soft_cap or 0.0
        self._window = layer.sliding_window or 0
        self._is_causal = layer.causal

    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        kv_cache: tuple[Tensor, ...],
        metadata: CommonAttentionMetadata,
        output: Tensor,
    ) -> None:
        """See `AttentionImpl.forward`; padding rows of the output become zeros."""
        key_cache, value_cache = kv_cache
        if key is not None:
            rotate_and_write(
                None, key, value, None, None, 0.0, 0.0, None, None, True, key_cache, value_cache,
                metadata.slot_mapping, self._block_size,
            )  # fmt: skip
        paged_attention(
            query,
            output,
            key_cache,
            value_cache,
            self._block_size,
            metadata.query_start_loc,
            metadata.seq_lens,
            metadata.block_table,
            self._scale,
            self._soft_cap,
            self._window,
            self._is_causal,
            self._sinks,
        )
        if output.shape[0] > metadata.num_tokens:
            output[metadata.num_tokens :].zero_()
