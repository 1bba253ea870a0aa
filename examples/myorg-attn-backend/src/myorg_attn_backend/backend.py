"""The backend: a paged cache of two tensors, gathered for scaled_dot_product_attention.

Decodes are gathered together, padded to the longest; each prompt chunk is gathered alone. It
reads exact lengths on the host, which its spec declares (`needs_host_lengths`).
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from myorg_attn_backend.options import Options
from pegboard.api.attention import (
    AttentionBackend,
    AttentionImpl,
    AttentionLayer,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
    KVLayout,
)
from pegboard.api.kv import KVGroup


@dataclass(slots=True)
class Decodes:
    """A run of one-token requests: their tokens, the slots they see, and which of them count."""

    first: int
    count: int
    slots: torch.Tensor  # [count, longest] int64
    seen: torch.Tensor  # [count, 1, 1, longest] bool


@dataclass(slots=True)
class Chunk:
    """One request with several tokens."""

    first: int
    count: int
    slots: torch.Tensor  # [seq_len] int64
    seen: torch.Tensor  # [count, seq_len] bool


@dataclass(slots=True)
class Metadata:
    num_tokens: int
    slot_mapping: torch.Tensor
    decodes: list[Decodes]
    chunks: list[Chunk]


class Builder(AttentionMetadataBuilder):
    def __init__(self, group: KVGroup, limit_tokens: int) -> None:
        self.block_size = group.block_size
        self.window = group.window
        self.limit_tokens = limit_tokens

    def build(self, common: CommonAttentionMetadata) -> Metadata:
        assert common.seq_lens_cpu is not None
        lengths = common.seq_lens_cpu.tolist()
        starts = common.query_start_loc.tolist()
        decodes, first = [], 0
        while first < common.num_decodes:
            longest = max(lengths[first : common.num_decodes])
            count = max(1, min(common.num_decodes - first, self.limit_tokens // longest))
            decodes.append(self._decodes(common.block_table, lengths, first, count))
            first += count
        chunks = [
            self._chunk(common.block_table[r], lengths[r], starts[r], starts[r + 1] - starts[r])
            for r in range(common.num_decodes, common.num_reqs)
        ]
        return Metadata(common.num_tokens, common.slot_mapping, decodes, chunks)

    def _slots(self, table: torch.Tensor, longest: int) -> torch.Tensor:
        position = torch.arange(longest, device=table.device)
        blocks = table[..., position // self.block_size].long()
        return blocks * self.block_size + position % self.block_size

    def _decodes(self, tables: torch.Tensor, lengths: list[int], first: int, count: int) -> Decodes:
        rows = lengths[first : first + count]
        slots = self._slots(tables[first : first + count], max(rows))
        length = torch.tensor(rows, device=tables.device)[:, None]
        position = torch.arange(max(rows), device=tables.device)[None, :]
        seen = position < length
        if self.window is not None:
            seen &= position >= length - self.window
        return Decodes(first, count, slots, seen[:, None, None, :])

    def _chunk(self, table: torch.Tensor, length: int, first: int, count: int) -> Chunk:
        query = torch.arange(length - count, length, device=table.device)[:, None]
        key = torch.arange(length, device=table.device)[None, :]
        seen = key <= query
        if self.window is not None:
            seen &= key > query - self.window
        return Chunk(first, count, self._slots(table, length), seen)


class Impl(AttentionImpl):
    def __init__(self, layer: AttentionLayer) -> None:
        self.scale = layer.scale
        self.gqa = layer.num_heads != layer.num_kv_heads

    def forward(self, query, key, value, kv_cache, metadata, output) -> None:
        keys, values = (t.flatten(0, 1) for t in kv_cache)  # [slots, kv heads, head size]
        if key is not None:
            mapping = metadata.slot_mapping
            written = mapping >= 0
            keys[mapping[written]] = key[: len(mapping)][written]
            values[mapping[written]] = value[: len(mapping)][written]
        for d in metadata.decodes:
            rows = slice(d.first, d.first + d.count)
            # Slots past a request's length may hold anything, NaN too, and a mask would spread it.
            held = d.seen[:, 0, 0, :, None, None]
            k, v = (t[d.slots].masked_fill(~held, 0).transpose(1, 2) for t in (keys, values))
            result = self._attend(query[rows, :, None], k, v, d.seen)
            output[rows] = result[:, :, 0]
        for c in metadata.chunks:
            rows = slice(c.first, c.first + c.count)
            held = c.seen.any(0)[:, None, None]
            k, v = (t[c.slots].masked_fill(~held, 0).transpose(0, 1)[None] for t in (keys, values))
            result = self._attend(query[rows].transpose(0, 1)[None], k, v, c.seen)
            output[rows] = result[0].transpose(0, 1)

    def _attend(self, q, k, v, seen) -> torch.Tensor:
        return scaled_dot_product_attention(
            q, k, v, attn_mask=seen, scale=self.scale, enable_gqa=self.gqa
        )


class SdpaBackend(AttentionBackend):
    def kv_layout(self, layer: AttentionLayer, num_blocks: int) -> KVLayout:
        size = self.config.block_size
        return KVLayout(
            name="myorg_block_slot_head",
            shapes=(
                (num_blocks, size, layer.num_kv_heads, layer.head_size),
                (num_blocks, size, layer.num_kv_heads, layer.v_head_size),
            ),
            dtypes=(self.config.kv_dtype, self.config.kv_dtype),
            block_size=size,
        )

    def metadata_builder(self, group: KVGroup) -> Builder:
        options = self.context.plugin_config or Options()
        return Builder(group, options.gather_limit_tokens)

    def implementation(self, layer: AttentionLayer, sinks: torch.Tensor | None = None) -> Impl:
        return Impl(layer)
