"""Drives an attention backend through steps, and says what dense attention would have given.

The oracle keeps every key and value of every sequence in float32 and computes plain softmax
attention over them; it knows nothing of blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pegboard.api.attention import (
    AttentionBackend,
    AttentionBackendConfig,
    AttentionLayer,
    CommonAttentionMetadata,
    KVLayout,
)
from pegboard.api.kv import KVGroup
from pegboard.conformance.kit import Subject

__all__ = ["TOLERANCE", "AttentionRig", "RigSequence", "dense_attention", "torch_dtype"]

#: Largest |got - expected| / (1 + |expected|), inputs being exact in the dtype.
TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 4e-3}


def torch_dtype(name: str) -> torch.dtype:
    """Return torch's dtype of a name such as "bfloat16"."""
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is not a dtype")
    return dtype


@dataclass(slots=True)
class RigSequence:
    """One request of the rig: its blocks and its true keys and values.

    Attributes:
        keys, values: [num_tokens, num_kv_heads, head_size] float32, all tokens so far.
        blocks: the block table.
    """

    keys: torch.Tensor
    values: torch.Tensor
    blocks: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        """Return the tokens whose KV is written."""
        return self.keys.shape[0]


def dense_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    layer: AttentionLayer,
) -> torch.Tensor:
    """Plain attention of the last tokens of a sequence over all of it, in float32.

    Args:
        query: [num_new, num_heads, head_size]; the last `num_new` of the sequence.
        keys, values: [num_tokens, num_kv_heads, head_size].
        layer: scale, window and soft cap.

    Returns:
        [num_new, num_heads, v_head_size] float32.
    """
    num_new, total = query.shape[0], keys.shape[0]
    repeat = layer.num_heads // layer.num_kv_heads
    k = keys.float().repeat_interleave(repeat, dim=1)
    v = values.float().repeat_interleave(repeat, dim=1)
    scores = torch.einsum("qhd,khd->hqk", query.float(), k) * layer.scale
    if layer.soft_cap is not None:
        scores = layer.soft_cap * torch.tanh(scores / layer.soft_cap)
    q_pos = torch.arange(total - num_new, total)[:, None]
    k_pos = torch.arange(total)[None, :]
    seen = k_pos <= q_pos
    if layer.sliding_window is not None:
        seen &= k_pos > q_pos - layer.sliding_window
    scores = scores.masked_fill(~seen, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


class AttentionRig:
    """One layer of a backend with a cache, and sequences that live in it."""

    def __init__(
        self,
        subject: Subject,
        *,
        dtype: str,
        layer: AttentionLayer,
        num_blocks: int = 96,
        block_size: int | None = None,
        num_threads: int = 2,
    ) -> None:
        """Build the backend for one layer and fill its cache with garbage."""
        spec = subject.spec
        self.layer = layer
        self.dtype = torch_dtype(dtype)
        self.block_size = block_size or spec.preferred_block_size
        self.random = torch.Generator().manual_seed(subject.seed)
        config = AttentionBackendConfig(
            dtype=dtype,
            kv_dtype=dtype,
            device="cpu",
            block_size=self.block_size,
            max_num_reqs=16,
            max_num_tokens=1024,
            max_model_len=num_blocks * self.block_size,
            num_threads=num_threads,
        )
        self.backend: AttentionBackend = subject.catalog.create(subject.entry, config)
        self.layout: KVLayout = self.backend.kv_layout(layer, num_blocks)
        self.cache = tuple(
            self._garbage(shape, torch_dtype(d))
            for shape, d in zip(self.layout.shapes, self.layout.dtypes, strict=True)
        )
        group_type = "full" if layer.sliding_window is None else "sliding_window"
        group = KVGroup(
            group_type=group_type,
            layers=(layer.index,),
            block_size=self.block_size,
            window=layer.sliding_window,
        )
        self.builder = self.backend.metadata_builder(group)
        self.impl = self.backend.implementation(layer, None)
        # Block 0 is the null block; the rest are handed out in random order.
        self.free = (torch.randperm(num_blocks - 1, generator=self.random) + 1).tolist()

    @staticmethod
    def _garbage(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return what never-written memory may hold: NaN, where the dtype has it."""
        return torch.full(tuple(shape), float("nan") if dtype.is_floating_point else -1).to(dtype)

    def normal(self, *shape: int) -> torch.Tensor:
        """Return fresh normal values in the rig's dtype."""
        return torch.randn(*shape, generator=self.random).to(self.dtype)

    def sequence(self) -> RigSequence:
        """Return an empty sequence."""
        layer = self.layer
        return RigSequence(
            torch.empty(0, layer.num_kv_heads, layer.head_size),
            torch.empty(0, layer.num_kv_heads, layer.v_head_size),
        )

    def step(
        self,
        work: Sequence[tuple[RigSequence, int]],
        *,
        padding: int = 0,
        strided: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run one step and return (output, expected), both [num_tokens, heads, v_head_size].

        Args:
            work: sequences and their numbers of new tokens; those with one token first.
            padding: tokens to add at the end with slot -1.
            strided: hand the query over as a view into a wider product.
        """
        layer, total = self.layer, sum(n for _, n in work)
        query = self.normal(total + padding, layer.num_heads, layer.head_size)
        key = self.normal(total + padding, layer.num_kv_heads, layer.head_size)
        value = self.normal(total + padding, layer.num_kv_heads, layer.v_head_size)
        expected, start = [], 0
        slots: list[int] = []
        for sequence, new in work:
            end = start + new
            slots += self.slots(sequence, new)
            sequence.keys = torch.cat([sequence.keys, key[start:end].float()])
            sequence.values = torch.cat([sequence.values, value[start:end].float()])
            expected.append(
                dense_attention(query[start:end], sequence.keys, sequence.values, layer)
            )
            start = end
        output = torch.full(
            (total + padding, layer.num_heads, layer.v_head_size), float("nan"), dtype=self.dtype
        )
        if strided:
            wide = self.normal(total + padding, layer.num_heads * layer.head_size + 24)
            wide[:, 8 : 8 + layer.num_heads * layer.head_size] = query.flatten(1)
            query = wide[:, 8 : 8 + layer.num_heads * layer.head_size].unflatten(
                1, (layer.num_heads, layer.head_size)
            )
        metadata = self.metadata(work, slots + [-1] * padding)
        self.impl.forward(query, key, value, self.cache, metadata, output)
        return output[:total], torch.cat(expected)

    def slots(self, sequence: RigSequence, new: int) -> list[int]:
        """Return the slots of a sequence's next tokens, and give it the blocks they need."""
        needed = -(-(len(sequence) + new) // self.block_size)
        while len(sequence.blocks) < needed:
            sequence.blocks.append(self.free.pop())
        positions = range(len(sequence), len(sequence) + new)
        size = self.block_size
        return [sequence.blocks[p // size] * size + p % size for p in positions]

    def _visible(self, sequence: RigSequence, new: int) -> list[int]:
        """Return the block table with blocks out of every query's window freed to the null one."""
        window = self.layer.sliding_window
        first = 0 if window is None else max(0, len(sequence) - new - window + 1) // self.block_size
        return [0] * first + sequence.blocks[first:]

    def metadata(self, work: Sequence[tuple[RigSequence, int]], slots: list[int]) -> Any:  # noqa: ANN401
        """Return the backend's metadata of a step whose keys and values are noted already."""
        counts = torch.tensor([0, *(n for _, n in work)])
        tables = [self._visible(s, n) for s, n in work]
        width = max(map(len, tables)) + 2
        lengths = torch.tensor([len(s) for s, _ in work], dtype=torch.int32)
        common = CommonAttentionMetadata(
            num_reqs=len(work),
            num_tokens=sum(n for _, n in work),
            num_decodes=sum(n == 1 for _, n in work),
            max_query_len=max(n for _, n in work) + 3,
            max_seq_len=max(len(s) for s, _ in work) + 5,
            query_start_loc=counts.cumsum(0).to(torch.int32),
            seq_lens=lengths,
            block_table=torch.tensor(
                [t + [0] * (width - len(t)) for t in tables], dtype=torch.int32
            ),
            slot_mapping=torch.tensor(slots, dtype=torch.int64),
            seq_lens_cpu=lengths.clone(),
        )
        return self.builder.build(common)
