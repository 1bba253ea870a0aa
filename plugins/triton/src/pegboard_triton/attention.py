"""TRITON_ATTN: paged attention in Triton.

Keys and values lie as [num_blocks, num_kv_heads, block_size, head_size], so that what one head
has in one block is one run of memory. Decodes lead a step and take the split kernel, the rest the
prefill kernel. Nothing here waits for the device, and a step of decodes alone can be captured.
"""

from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

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
from pegboard_triton.decode import decode, workspace_floats
from pegboard_triton.prefill import prefill
from pegboard_triton.rope import write_kv

__all__ = ["TritonAttention", "TritonAttentionBackend", "TritonMetadataBuilder"]

#: Rows of a tensor descriptor's box; the prefill kernel's tile of tokens.
_BOX_TOKENS = 64


class TritonMetadataBuilder(AttentionMetadataBuilder):
    """The kernels read the common metadata as it is, on the device."""

    def build(self, common: CommonAttentionMetadata) -> CommonAttentionMetadata:
        """Return what came; its tensors are views of persistent buffers."""
        return common


class TritonAttentionBackend(AttentionBackend):
    """The Triton kernels, in one layout; layers share one workspace."""

    _workspace: Tensor | None = None

    def kv_layout(self, layer: AttentionLayer, num_blocks: int) -> KVLayout:
        """Return keys and values, each [num_blocks, num_kv_heads, block_size, head_size].

        Raises:
            ConfigError: values of another width than keys, or a cache in another dtype.
        """
        if layer.v_head_size != layer.head_size:
            raise ConfigError(
                f"TRITON_ATTN keeps values as wide as keys; layer {layer.index} has "
                f"{layer.v_head_size} and {layer.head_size} (--attention-backend REFERENCE)"
            )
        if self.config.kv_dtype != self.config.dtype:
            raise ConfigError(
                f"kv_cache_dtype is {self.config.kv_dtype}; TRITON_ATTN caches in the model's "
                f"{self.config.dtype} (--kv-cache-dtype auto)"
            )
        shape = (num_blocks, layer.num_kv_heads, self.config.block_size, layer.head_size)
        return KVLayout(
            name="triton_paged",
            shapes=(shape, shape),
            dtypes=(self.config.kv_dtype, self.config.kv_dtype),
            block_size=self.config.block_size,
        )

    def metadata_builder(self, group: KVGroup) -> TritonMetadataBuilder:
        """Return one that passes the common metadata on."""
        del group
        return TritonMetadataBuilder()

    def implementation(
        self, layer: AttentionLayer, sinks: Tensor | None = None
    ) -> "TritonAttention":
        """Return the layer's attention; layers run one after the other, so they share memory.

        Raises:
            ConfigError: the layer has sinks, or sees both sides.
        """
        if sinks is not None or not layer.causal:
            what = "sinks" if sinks is not None else "no causal mask"
            raise ConfigError(
                f"TRITON_ATTN cannot do layer {layer.index}, which has {what} "
                "(--attention-backend REFERENCE)"
            )
        size = workspace_floats(layer.num_heads, layer.num_kv_heads, layer.head_size)
        if self._workspace is None or self._workspace.numel() < size:
            self._workspace = torch.empty(size, dtype=torch.float32, device=self.config.device)
        return TritonAttention(layer, self._workspace)


class TritonAttention(AttentionImpl):
    """One layer on the kernels."""

    def __init__(self, layer: AttentionLayer, workspace: Tensor) -> None:
        """Keep the layer's numbers and the memory for parts of a decode."""
        self._workspace = workspace
        self._scale = layer.scale
        self._soft_cap = layer.soft_cap or 0.0
        self._window = layer.sliding_window or 0
        self._descriptors: tuple[Any, Any] | None = None
        self._described: int | None = None

    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        kv_cache: tuple[Tensor, ...],
        metadata: CommonAttentionMetadata,
        output: Tensor,
    ) -> None:
        """See `AttentionImpl.forward`; padding rows behind the step's tokens are left alone."""
        if key is not None and value is not None:
            write_kv(key, value, kv_cache, metadata.slot_mapping)
        decodes = metadata.num_decodes
        about = {"scale": self._scale, "window": self._window, "soft_cap": self._soft_cap}
        if decodes:
            decode(
                query[:decodes],
                kv_cache,
                metadata.block_table,
                metadata.seq_lens,
                output[:decodes],
                self._workspace,
                **about,
            )
        if decodes < metadata.num_reqs:
            prefill(
                query,
                kv_cache,
                self._boxes(kv_cache),
                metadata.block_table,
                metadata.query_start_loc,
                metadata.seq_lens,
                output,
                first=decodes,
                num_reqs=metadata.num_reqs,
                num_tokens=metadata.num_tokens - decodes,
                **about,
            )

    def _boxes(self, kv_cache: tuple[Tensor, ...]) -> tuple[Any, Any] | None:
        """Return descriptors of both tensors as rows, or None where tiles do not fit boxes."""
        keys = kv_cache[0]
        size, block_size = keys.shape[3], keys.shape[2]
        if keys.element_size() != 2 or size not in (64, 128) or block_size % _BOX_TOKENS:
            return None
        if self._described != keys.data_ptr():
            box = [_BOX_TOKENS, size]
            self._descriptors = tuple(  # type: ignore[assignment] -- two of them
                TensorDescriptor.from_tensor(t.view(-1, size), box) for t in kv_cache
            )
            self._described = keys.data_ptr()
        return self._descriptors
