"""REFERENCE against attention written out densely, over caches whose unseen slots are NaN."""

import pytest
import torch

from pegboard.api.attention import AttentionBackendConfig, AttentionLayer, CommonAttentionMetadata
from pegboard.api.plugin import ComponentContext
from pegboard.builtin.reference_attention import ReferenceBackend

BLOCK = 4


def backend(dtype: str = "float32") -> ReferenceBackend:
    return ReferenceBackend(
        ComponentContext(plugin="builtin"),
        AttentionBackendConfig(
            dtype=dtype,
            kv_dtype=dtype,
            device="cpu",
            block_size=BLOCK,
            max_num_reqs=8,
            max_num_tokens=64,
            max_model_len=64,
        ),
    )


def layer(**changes) -> AttentionLayer:
    plain = {
        "index": 0,
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_size": 8,
        "v_head_size": 8,
        "scale": 0.4,
    }
    return AttentionLayer(**{**plain, **changes})


def dense(spec: AttentionLayer, query, key, value, first: int, sinks=None) -> torch.Tensor:
    """Attention of one sequence, head by head and query by query; `first` is the first position."""
    output = torch.zeros(query.shape[0], spec.num_heads, spec.v_head_size, dtype=torch.float64)
    for head in range(spec.num_heads):
        kv_head = head * spec.num_kv_heads // spec.num_heads
        for row in range(query.shape[0]):
            position = first + row
            low = 0
            high = position + 1 if spec.causal else key.shape[0]
            if spec.sliding_window is not None:
                low = max(0, position - spec.sliding_window + 1)
                high = min(high, position + spec.sliding_window)
            scores = key[low:high, kv_head].double() @ query[row, head].double() * spec.scale
            if spec.soft_cap is not None:
                scores = torch.tanh(scores / spec.soft_cap) * spec.soft_cap
            weights = scores.exp()
            total = weights.sum() + (sinks[head].double().exp() if sinks is not None else 0)
            output[row, head] = (weights[:, None] * value[low:high, kv_head].double()).sum(
                0
            ) / total
    return output


class Batch:
    """Sequences with some tokens computed before and some new; their cache, poisoned elsewhere."""

    def __init__(self, spec: AttentionLayer, sizes: list[tuple[int, int]], padding: int) -> None:
        totals = [computed + new for computed, new in sizes]
        self.spec, self.sizes, self.padding = spec, sizes, padding
        self.keys = [torch.randn(n, spec.num_kv_heads, spec.head_size) for n in totals]
        self.values = [torch.randn(n, spec.num_kv_heads, spec.v_head_size) for n in totals]
        self.queries = [torch.randn(new, spec.num_heads, spec.head_size) for _, new in sizes]
        num_blocks = 4 + sum(-(-n // BLOCK) for n in totals)
        free = (torch.randperm(num_blocks - 1) + 1).tolist()
        self.tables = torch.zeros((len(sizes), 16), dtype=torch.int32)
        self.slots: list[list[int]] = []
        for row, total in enumerate(totals):
            blocks = [free.pop() for _ in range(-(-total // BLOCK))]
            self.tables[row, : len(blocks)] = torch.tensor(blocks)
            self.slots.append([blocks[t // BLOCK] * BLOCK + t % BLOCK for t in range(total)])
        layout = backend().kv_layout(spec, num_blocks)
        self.caches = tuple(torch.full(shape, torch.nan) for shape in layout.shapes)
        for row, (computed, _) in enumerate(sizes):
            for cache, past in zip(self.caches, (self.keys[row], self.values[row]), strict=True):
                cache.flatten(0, 1)[self.slots[row][:computed]] = past[:computed]

    def forget(self, row: int, num_blocks: int) -> None:
        """Give a sequence's first blocks back: they become the null block."""
        self.tables[row, :num_blocks] = 0

    def metadata(self) -> CommonAttentionMetadata:
        starts = torch.tensor([0, *(new for _, new in self.sizes)]).cumsum(0).to(torch.int32)
        slots = [
            s for row, (computed, _) in enumerate(self.sizes) for s in self.slots[row][computed:]
        ]
        lengths = [sum(size) for size in self.sizes]
        return CommonAttentionMetadata(
            num_reqs=len(self.sizes),
            num_tokens=int(starts[-1]),
            num_decodes=sum(new == 1 for _, new in self.sizes),
            max_query_len=max(new for _, new in self.sizes) + 2,  # bounds need not be exact
            max_seq_len=max(lengths) + 3,
            query_start_loc=starts,
            seq_lens=torch.tensor(lengths, dtype=torch.int32),
            block_table=self.tables,
            slot_mapping=torch.tensor(slots + [-1] * self.padding),
        )

    def run(self, sinks: torch.Tensor | None = None) -> list[torch.Tensor]:
        impl = backend().implementation(self.spec, sinks)
        query, key, value = (
            torch.cat([part[-new:] for part, (_, new) in zip(parts, self.sizes, strict=True)])
            for parts in (self.queries, self.keys, self.values)
        )
        pad = [torch.randn(self.padding, *part.shape[1:]) for part in (query, key, value)]
        query, key, value = (torch.cat(p) for p in zip((query, key, value), pad, strict=True))
        output = torch.full((query.shape[0], self.spec.num_heads, self.spec.v_head_size), 7.0)
        caches = self.caches if self.spec.causal else ()
        impl.forward(query, key, value, caches, self.metadata(), output)
        real = output[: output.shape[0] - self.padding]
        return list(real.split([new for _, new in self.sizes]))

    def check(self, sinks: torch.Tensor | None = None) -> None:
        for row, got in enumerate(self.run(sinks)):
            want = dense(
                self.spec, self.queries[row], self.keys[row], self.values[row],
                self.sizes[row][0], sinks,
            )  # fmt: skip
            torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


MIXED = [(9, 1), (0, 1), (3, 6), (0, 11), (5, 4)]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"sliding_window": 5},
        {"sliding_window": 1},
        {"soft_cap": 1.5},
        {"num_kv_heads": 6},
        {"num_kv_heads": 1},
        {"v_head_size": 5},
        {"sliding_window": 6, "soft_cap": 3.0, "v_head_size": 12},
    ],
)
@pytest.mark.parametrize("padding", [0, 3])
def test_mixed_steps_equal_dense_attention(changes: dict, padding: int) -> None:
    Batch(layer(**changes), MIXED, padding).check()


@pytest.mark.parametrize("window", [None, 4])
def test_sinks_join_the_denominator(window: int | None) -> None:
    spec = layer(has_sinks=True, sliding_window=window)
    Batch(spec, MIXED, 0).check(torch.randn(6) * 2)


def test_blocks_out_of_the_window_may_be_gone() -> None:
    batch = Batch(layer(sliding_window=5), [(17, 1), (13, 3)], 0)
    batch.forget(0, 3)  # positions 0 to 11; the query at 17 sees 13 to 17
    batch.forget(1, 2)  # positions 0 to 7; the query at 13 sees 9 to 13
    batch.check()


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("padding", [0, 2])
def test_encoders_see_both_sides_of_their_own_sequence(window: int | None, padding: int) -> None:
    Batch(layer(causal=False, sliding_window=window), [(0, 4), (0, 7), (0, 2)], padding).check()


def test_only_mapped_slots_are_written() -> None:
    batch = Batch(layer(), MIXED, 2)
    before = [cache.clone() for cache in batch.caches]
    batch.run()
    new = [s for row, (computed, _) in enumerate(MIXED) for s in batch.slots[row][computed:]]
    for cache, old in zip(batch.caches, before, strict=True):
        flat, flat_before = cache.flatten(0, 1), old.flatten(0, 1)
        others = [slot for slot in range(flat.shape[0]) if slot not in new]
        torch.testing.assert_close(flat[others], flat_before[others], equal_nan=True)
        assert not flat[new].isnan().any()


def test_a_cache_that_was_already_written_is_only_read() -> None:
    batch = Batch(layer(), [(6, 2)], 0)
    for cache, past in zip(batch.caches, (batch.keys[0], batch.values[0]), strict=True):
        cache.flatten(0, 1)[batch.slots[0]] = past
    before = [cache.clone() for cache in batch.caches]
    output = torch.empty(2, 6, 8)
    impl = backend().implementation(batch.spec)
    impl.forward(batch.queries[0], None, None, batch.caches, batch.metadata(), output)

    want = dense(batch.spec, batch.queries[0], batch.keys[0], batch.values[0], 6)
    torch.testing.assert_close(output.double(), want, rtol=1e-5, atol=1e-5)
    for cache, old in zip(batch.caches, before, strict=True):
        torch.testing.assert_close(cache, old, equal_nan=True)


def test_the_layout_says_what_the_cache_is() -> None:
    layout = backend("bfloat16").kv_layout(layer(v_head_size=5), 7)
    assert layout.name == "reference"
    assert layout.shapes == ((7, BLOCK, 2, 8), (7, BLOCK, 2, 5))
    assert layout.dtypes == ("bfloat16", "bfloat16")
    assert (layout.block_dim, layout.block_size) == (0, BLOCK)
