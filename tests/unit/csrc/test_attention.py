"""Paged attention on mixed batches, against plain torch in float32."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from pegboard_kernels import Isa, KernelError, KernelLibrary
from pegboard_kernels.attention import paged_attention
from pegboard_kernels.fused import rotate_and_write

# Probabilities and values are bfloat16 inside for bfloat16 caches.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


@dataclass
class Batch:
    """A paged batch and the plain tensors it was made from."""

    query: Tensor
    keys: list[Tensor]
    values: list[Tensor]
    key_cache: Tensor
    value_cache: Tensor
    block_table: Tensor
    starts: Tensor
    lengths: Tensor
    block_size: int

    def attend(self, **options: float | Tensor) -> Tensor:
        arguments = {"scale": 0.3, "soft_cap": 0.0, "window": 0, "is_causal": True, **options}
        out = torch.full_like(self.query, float("nan"))
        paged_attention(
            self.query, out, self.key_cache, self.value_cache, self.block_size, self.starts,
            self.lengths, self.block_table, **arguments,
        )  # fmt: skip
        return out

    def expected(
        self,
        scale: float = 0.3,
        soft_cap: float = 0.0,
        window: int = 0,
        is_causal: bool = True,
        sinks: Tensor | None = None,
    ) -> Tensor:
        out = torch.zeros(self.query.shape)
        for i, (key, value) in enumerate(zip(self.keys, self.values, strict=True)):
            begin, end = int(self.starts[i]), int(self.starts[i + 1])
            group = self.query.shape[1] // key.shape[1]
            q = self.query[begin:end].float()
            k = key.float().repeat_interleave(group, 1)
            v = value.float().repeat_interleave(group, 1)
            scores = torch.einsum("qhd,khd->hqk", q, k) * scale
            if soft_cap:
                scores = soft_cap * torch.tanh(scores / soft_cap)
            rows = torch.arange(end - begin)[:, None] + len(key) - (end - begin)
            cols = torch.arange(len(key))[None]
            hidden = torch.zeros(len(rows), len(key), dtype=torch.bool)
            if is_causal:
                hidden |= cols > rows
            if window:
                hidden |= cols <= rows - window
            scores = scores.masked_fill(hidden, float("-inf"))
            if sinks is not None:
                scores = torch.cat([scores, sinks[:, None, None].expand(-1, len(rows), 1)], -1)
            weights = scores.softmax(-1)[..., : len(key)]
            out[begin:end] = torch.einsum("hqk,khd->qhd", weights, v)
        return out


def make_batch(
    sizes: list[tuple[int, int]],
    dtype: torch.dtype,
    generator: torch.Generator,
    *,
    heads: int = 6,
    kv_heads: int = 2,
    head_size: int = 64,
    block_size: int = 32,
) -> Batch:
    """Make requests of (query length, sequence length); unused slots of the cache hold NaN."""
    counts = [-(-length // block_size) for _, length in sizes]
    num_blocks = sum(counts) + 2
    order = torch.randperm(num_blocks, generator=generator).tolist()
    block_table = torch.zeros(len(sizes), max(counts) + 1, dtype=torch.int32)
    caches = [
        torch.full((num_blocks, kv_heads, block_size * head_size), float("nan")).to(dtype)
        for _ in range(2)
    ]
    keys, values = [], []
    for i, (_, length) in enumerate(sizes):
        blocks = [order.pop() for _ in range(counts[i])]
        block_table[i, : counts[i]] = torch.tensor(blocks)
        key, value = (
            torch.randn(length, kv_heads, head_size, generator=generator).to(dtype)
            for _ in range(2)
        )
        slots = torch.tensor(
            [blocks[t // block_size] * block_size + t % block_size for t in range(length)]
        )
        rotate_and_write(
            None, key, value, None, None, 0.0, 0.0, None, None, True, *caches, slots, block_size
        )
        keys.append(key)
        values.append(value)
    starts = torch.tensor([0, *(q for q, _ in sizes)]).cumsum(0).to(torch.int32)
    fused = torch.randn(int(starts[-1]), heads * head_size + 40, generator=generator).to(dtype)
    return Batch(
        query=fused[:, : heads * head_size].unflatten(-1, (heads, head_size)),
        keys=keys,
        values=values,
        key_cache=caches[0],
        value_cache=caches[1],
        block_table=block_table,
        starts=starts,
        lengths=torch.tensor([length for _, length in sizes], dtype=torch.int32),
        block_size=block_size,
    )


def assert_close(got: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(got.float(), expected, rtol=tolerance, atol=tolerance)


MIXED = [(1, 1), (1, 70), (5, 5), (17, 300), (1, 513), (40, 40), (0, 9), (1, 256), (3, 258)]


@pytest.mark.parametrize("head_size", [8, 16, 24, 64, 80, 128, 256])
@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_mixed_batch_matches_torch(
    isa: Isa,
    dtype: torch.dtype,
    head_size: int,
    block_size: int,
    generator: torch.Generator,
) -> None:
    batch = make_batch(MIXED, dtype, generator, head_size=head_size, block_size=block_size)
    assert_close(batch.attend(), batch.expected(), dtype)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 4), (9, 3), (8, 1), (100, 2)])
def test_head_groups_match_torch(
    isa: Isa, dtype: torch.dtype, heads: int, kv_heads: int, generator: torch.Generator
) -> None:
    batch = make_batch(
        [(1, 300), (20, 90)], dtype, generator, heads=heads, kv_heads=kv_heads, head_size=32
    )
    assert_close(batch.attend(), batch.expected(), dtype)


@pytest.mark.parametrize("window", [1, 7, 32, 100, 400])
def test_sliding_window_matches_torch(
    isa: Isa, dtype: torch.dtype, window: int, generator: torch.Generator
) -> None:
    batch = make_batch([*MIXED, (100, 620)], dtype, generator, block_size=16)
    assert_close(batch.attend(window=window), batch.expected(window=window), dtype)


def test_blocks_before_the_window_are_not_read(
    isa: Isa, dtype: torch.dtype, generator: torch.Generator
) -> None:
    batch = make_batch([(1, 400), (4, 390)], dtype, generator)
    expected = batch.expected(window=40)
    freed = batch.block_table[:, : (390 - 4 - 40) // batch.block_size].long()
    batch.key_cache[freed] = float("nan")
    batch.value_cache[freed] = float("nan")
    assert_close(batch.attend(window=40), expected, dtype)


def test_soft_cap_matches_torch(isa: Isa, dtype: torch.dtype, generator: torch.Generator) -> None:
    batch = make_batch(MIXED, dtype, generator)
    assert_close(batch.attend(soft_cap=2.5), batch.expected(soft_cap=2.5), dtype)


def test_sinks_match_torch(isa: Isa, dtype: torch.dtype, generator: torch.Generator) -> None:
    batch = make_batch(MIXED, dtype, generator)
    sinks = torch.randn(6, generator=generator) * 4
    assert_close(batch.attend(sinks=sinks), batch.expected(sinks=sinks), dtype)


def test_non_causal_matches_torch(isa: Isa, dtype: torch.dtype, generator: torch.Generator) -> None:
    batch = make_batch([(30, 30), (300, 300), (1, 1)], dtype, generator)
    assert_close(batch.attend(is_causal=False), batch.expected(is_causal=False), dtype)


def test_bits_do_not_depend_on_threads_batch_or_chunks(
    isa: Isa, dtype: torch.dtype, library: KernelLibrary, generator: torch.Generator
) -> None:
    batch = make_batch([(600, 600), (1, 700), (1, 30)], dtype, generator)
    whole = batch.attend()
    library.set_num_threads(1)
    assert torch.equal(batch.attend(), whole)
    parts = [(0, 1), (1, 50), (50, 333), (333, 599), (599, 600)]
    for begin, end in parts:
        alone = Batch(
            query=batch.query[begin:end],
            keys=[],
            values=[],
            key_cache=batch.key_cache,
            value_cache=batch.value_cache,
            block_table=batch.block_table[:1],
            starts=torch.tensor([0, end - begin], dtype=torch.int32),
            lengths=torch.tensor([end], dtype=torch.int32),
            block_size=batch.block_size,
        )
        assert torch.equal(alone.attend(), whole[begin:end])


def test_large_scores_do_not_overflow(
    isa: Isa, dtype: torch.dtype, generator: torch.Generator
) -> None:
    batch = make_batch([(4, 40)], dtype, generator)
    got, expected = batch.attend(scale=500.0), batch.expected(scale=500.0)
    # Scores of thousands: a last bit of theirs is a thousandth of a probability.
    torch.testing.assert_close(got.float(), expected, rtol=3e-2, atol=3e-2)


def test_sequence_longer_than_its_block_table_is_refused(
    library: KernelLibrary, generator: torch.Generator
) -> None:
    batch = make_batch([(1, 40)], torch.float32, generator)
    batch.lengths[0] = 1000
    with pytest.raises(KernelError, match="its block table holds"):
        batch.attend()
