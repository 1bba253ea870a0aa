"""REFERENCE: attention over a paged cache in plain torch, the oracle for every other backend.

One sequence at a time, in float32, with nothing but gathers, products and masks, on any device,
slowly. It reads no length on the host: each sequence is computed at the step's upper bounds and
masked. (Skipping padding in the cache write makes an asynchronous device wait.)
"""

import torch
from torch import Tensor

from pegboard.api.attention import (
    AttentionBackend,
    AttentionImpl,
    AttentionLayer,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
    KVLayout,
)
from pegboard.api.kv import KVGroup

__all__ = ["ReferenceAttention", "ReferenceBackend", "ReferenceMetadataBuilder"]


class ReferenceMetadataBuilder(AttentionMetadataBuilder):
    """The common metadata is all that is needed."""

    def build(self, common: CommonAttentionMetadata) -> CommonAttentionMetadata:
        """Return what came."""
        return common


class ReferenceBackend(AttentionBackend):
    """Keys and values of a layer in two tensors, block by block."""

    def kv_layout(self, layer: AttentionLayer, num_blocks: int) -> KVLayout:
        """Keys, then values, each [num_blocks, block_size, num_kv_heads, size]."""
        block_size = self.config.block_size
        leading = (num_blocks, block_size, layer.num_kv_heads)
        return KVLayout(
            name="reference",
            shapes=((*leading, layer.head_size), (*leading, layer.v_head_size)),
            dtypes=(self.config.kv_dtype, self.config.kv_dtype),
            block_size=block_size,
        )

    def metadata_builder(self, group: KVGroup) -> ReferenceMetadataBuilder:
        """One that does nothing."""
        del group
        return ReferenceMetadataBuilder()

    def implementation(
        self, layer: AttentionLayer, sinks: Tensor | None = None
    ) -> "ReferenceAttention":
        """The layer's attention."""
        return ReferenceAttention(layer, sinks)


class ReferenceAttention(AttentionImpl):
    """softmax(mask(cap(query @ key.T * scale))) @ value, a sink joining the denominator.

    Source: Vaswani et al., Attention Is All You Need, 2017; blocks as in Kwon et al., Efficient
    Memory Management for Large Language Model Serving with PagedAttention, 2023.
    """

    def __init__(self, layer: AttentionLayer, sinks: Tensor | None) -> None:
        """Keep the layer and its sinks, which may be filled later."""
        self._layer = layer
        self._sinks = sinks

    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        kv_cache: tuple[Tensor, ...],
        metadata: CommonAttentionMetadata,
        output: Tensor,
    ) -> None:
        """See `AttentionImpl.forward`."""
        if not self._layer.causal:
            assert key is not None, "encoder layers keep no cache"
            assert value is not None, "encoder layers keep no cache"
            self._attend_without_cache(query, key, value, metadata, output)
            return
        if key is not None and value is not None:
            _write(key, value, kv_cache, metadata)
        self._attend_to_cache(query, kv_cache, metadata, output)

    def _attend_to_cache(
        self,
        query: Tensor,
        kv_cache: tuple[Tensor, ...],
        metadata: CommonAttentionMetadata,
        output: Tensor,
    ) -> None:
        # One row past the end takes what lies outside a sequence's queries.
        result = output.new_zeros((output.shape[0] + 1, *output.shape[1:]))
        longest = min(metadata.max_seq_len, metadata.block_table.shape[1] * kv_cache[0].shape[1])
        cached = torch.arange(longest, device=query.device)  # key positions
        for row in range(metadata.num_reqs):
            bound = 1 if row < metadata.num_decodes else metadata.max_query_len
            start, end = metadata.query_start_loc[row], metadata.query_start_loc[row + 1]
            tokens = start + torch.arange(bound, device=query.device)
            real = tokens < end
            seq_len = metadata.seq_lens[row]
            positions = seq_len - end + tokens  # of the queries in their sequence
            visible = cached <= positions[:, None]
            if self._layer.sliding_window is not None:
                visible &= cached > positions[:, None] - self._layer.sliding_window
            visible &= real[:, None]
            blocks = metadata.block_table[row]
            keys, values = (_gather(tensor, blocks, longest) for tensor in kv_cache)
            # Slots that nobody sees may hold anything, NaN too: 0 * NaN must not reach a sum.
            values = values.masked_fill(~visible.any(0)[:, None, None], 0)
            queries = query[tokens.clamp(max=query.shape[0] - 1)]
            attended = self._attend(queries, keys, values, visible)
            result[torch.where(real, tokens, output.shape[0])] = attended.to(result.dtype)
        output.copy_(result[:-1])

    def _attend_without_cache(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        metadata: CommonAttentionMetadata,
        output: Tensor,
    ) -> None:
        tokens = torch.arange(query.shape[0], device=query.device)
        bounds = metadata.query_start_loc[1 : metadata.num_reqs + 1]
        sequence = torch.searchsorted(bounds, tokens.to(bounds.dtype), right=True)
        visible = sequence[:, None] == sequence[None, :]
        if self._layer.sliding_window is not None:
            distance = (tokens[:, None] - tokens[None, :]).abs()
            visible &= distance < self._layer.sliding_window
        output.copy_(self._attend(query, key, value, visible))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> Tensor:
        """Attend in float32; a query that sees nothing gives zeros.

        Args:
            query: [num_queries, num_heads, head_size].
            key, value: [num_keys, num_kv_heads, size].
            visible: [num_queries, num_keys] bool.

        Returns:
            [num_queries, num_heads, v_head_size] float32.
        """
        layer = self._layer
        group = layer.num_heads // layer.num_kv_heads
        key = key.float().repeat_interleave(group, 1)
        value = value.float().repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", query.float(), key) * layer.scale
        if layer.soft_cap is not None:
            scores = torch.tanh(scores / layer.soft_cap) * layer.soft_cap
        scores = scores.masked_fill(~visible, -torch.inf)
        if self._sinks is not None:
            sinks = self._sinks.float()[:, None, None].expand(-1, scores.shape[1], 1)
            scores = torch.cat((scores, sinks), -1)
        weights = torch.softmax(scores, -1).nan_to_num(0.0)[..., : key.shape[0]]
        return torch.einsum("hqk,khd->qhd", weights, value)


def _write(
    key: Tensor, value: Tensor, kv_cache: tuple[Tensor, ...], metadata: CommonAttentionMetadata
) -> None:
    """Write each new token's key and value into its slot; -1 marks padding and is skipped."""
    slots = metadata.slot_mapping
    written = slots >= 0
    for new, cache in zip((key, value), kv_cache, strict=True):
        cache.flatten(0, 1)[slots[written]] = new[: len(slots)][written].to(cache.dtype)


def _gather(cache: Tensor, block_table: Tensor, num_tokens: int) -> Tensor:
    """Return [num_tokens, num_kv_heads, size] of one sequence, in the order of its positions."""
    num_blocks = -(-num_tokens // cache.shape[1])
    return cache[block_table[:num_blocks].long()].flatten(0, 1)[:num_tokens]
