"""Choosing tokens: against sorted lists and plain torch, row by row."""

import pytest
import torch
from torch import Tensor

from pegboard_kernels import Isa, KernelError, KernelLibrary
from pegboard_kernels.sampling import draw_tokens, keep_likely, most_likely, philox_uniform

VOCABS = [1, 5, 16, 255, 256, 257, 1000, 49152]


def _logits(rows: int, vocab: int, generator: torch.Generator, spread: float = 3.0) -> Tensor:
    return torch.randn(rows, vocab, generator=generator) * spread


@pytest.mark.parametrize("vocab", VOCABS)
def test_most_likely_is_the_first_maximum(isa: Isa, vocab: int, generator: torch.Generator) -> None:
    logits = _logits(5, vocab, generator)
    logits[1] = 2.5
    logits[2] = -torch.inf
    values, tokens = most_likely(logits)
    expected = logits.max(dim=-1)
    assert torch.equal(values, expected.values)
    assert torch.equal(tokens[[0, 1, 3, 4]], expected.indices[[0, 1, 3, 4]])
    assert tokens[1] == 0


def test_nan_is_the_greatest(isa: Isa, generator: torch.Generator) -> None:
    logits = _logits(2, 100, generator)
    logits[1, 77] = torch.nan
    values, tokens = most_likely(logits)
    assert values[1].isnan()
    assert tokens[1] == 77
    assert values[0].isfinite()


@pytest.mark.parametrize("vocab", VOCABS)
def test_draw_inverts_the_cumulative_distribution(
    isa: Isa, vocab: int, generator: torch.Generator
) -> None:
    logits = _logits(64, vocab, generator)
    uniforms = torch.rand(64, generator=generator, dtype=torch.float64)
    uniforms[0], uniforms[1] = 0.0, 1.0 - 2.0**-53
    tokens = draw_tokens(logits, uniforms)
    upto = logits.double().softmax(-1).cumsum(-1)
    above = upto.gather(1, tokens[:, None])[:, 0]
    below = above - logits.double().softmax(-1).gather(1, tokens[:, None])[:, 0]
    assert (below <= uniforms + 1e-6).all()
    assert (uniforms <= above + 1e-6).all()


def test_forbidden_tokens_are_never_drawn(isa: Isa, generator: torch.Generator) -> None:
    logits = _logits(200, 700, generator)
    logits[:, 100:] = -torch.inf
    logits[:, ::2] = -torch.inf
    tokens = draw_tokens(logits, torch.rand(200, generator=generator, dtype=torch.float64))
    assert logits.gather(1, tokens[:, None]).isfinite().all()
    edges = draw_tokens(logits[:2], torch.tensor([0.0, 1.0 - 2.0**-53], dtype=torch.float64))
    assert edges.tolist() == [1, 99]


def test_hopeless_rows_still_give_a_token_inside(isa: Isa) -> None:
    logits = torch.full((2, 300), -torch.inf)
    logits[1] = torch.nan
    tokens = draw_tokens(logits, torch.tensor([0.5, 0.5], dtype=torch.float64))
    assert ((tokens >= 0) & (tokens < 300)).all()
    keep_likely(
        logits, torch.tensor([3, 3], dtype=torch.int32), torch.full((2,), 0.5), torch.ones(2)
    )


def _kept(row: Tensor, top_k: int, top_p: float, min_p: float) -> tuple[Tensor, Tensor]:
    """Return the entries kept in float64, and those too close to a sum's edge to call."""
    wide = row.double()
    keep = wide >= wide.max() + (torch.tensor(min_p).double().log() if min_p else -torch.inf)
    unsure = (wide - (wide.max() + torch.tensor(min_p).double().log())).abs() < 1e-5
    unsure &= min_p > 0
    if 0 < top_k < len(row):
        left = wide.masked_fill(~keep, -torch.inf)
        keep &= left >= left.sort(descending=True).values[top_k - 1]
    if top_p < 1:
        weights = (wide - wide.max()).exp().masked_fill(~keep, 0.0)
        order = wide.masked_fill(~keep, -torch.inf).sort(descending=True, stable=True)
        before = weights[order.indices].cumsum(0) - weights[order.indices]
        target = weights.sum() * torch.tensor(top_p).double()
        last = max(int((before < target).sum()) - 1, 0)
        threshold = order.values[last]
        keep &= wide >= threshold
        near = (before - target).abs() < 1e-5 * weights.sum()
        unsure |= torch.isin(wide, order.values[near]) | (
            near.any() & torch.isin(wide, order.values[max(last - 1, 0) : last + 2])
        )
    return keep, unsure


@pytest.mark.parametrize("vocab", [5, 256, 1000, 49152])
@pytest.mark.parametrize("spread", [0.01, 1.0, 8.0])
def test_filters_keep_what_a_sorted_list_keeps(
    isa: Isa, vocab: int, spread: float, generator: torch.Generator
) -> None:
    cases = [
        (0, 1.0, 0.0), (1, 1.0, 0.0), (3, 1.0, 0.0), (50, 1.0, 0.0), (vocab + 7, 1.0, 0.0),
        (0, 0.9, 0.0), (0, 0.0, 0.0), (0, 0.001, 0.0), (0, 0.9999, 0.0), (0, 1.0, 0.1),
        (40, 0.8, 0.0), (40, 0.8, 0.05), (0, 0.5, 1.0), (4, 0.3, 0.001),
    ]  # fmt: skip
    logits = _logits(len(cases), vocab, generator, spread)
    logits[:, 1] = logits[:, 0]  # a tie
    logits[::3, vocab // 2] = -torch.inf
    before = logits.clone()
    top_k, top_p, min_p = zip(*cases, strict=True)
    keep_likely(
        logits,
        torch.tensor(top_k, dtype=torch.int32),
        torch.tensor(top_p, dtype=torch.float32),
        torch.tensor(min_p, dtype=torch.float32),
    )
    for row, case in enumerate(cases):
        keep, unsure = _kept(before[row], *case)
        kept = logits[row] > -torch.inf
        wrong = (kept != (keep & (before[row] > -torch.inf))) & ~unsure
        assert not wrong.any(), f"case {case}"
        assert kept.any()
        assert torch.equal(logits[row][kept], before[row][kept])


def test_far_outliers_do_not_blur_the_thresholds(isa: Isa, generator: torch.Generator) -> None:
    logits = _logits(1, 2000, generator)
    logits[0, 7] = 1e30
    logits[0, 8] = -1e30
    keep_likely(logits, torch.tensor([5], dtype=torch.int32), torch.ones(1), torch.zeros(1))
    assert int((logits > -torch.inf).sum()) == 5


def test_uniforms_have_the_references_bits(
    library: KernelLibrary, generator: torch.Generator
) -> None:
    reference = pytest.importorskip("pegboard.sampling.philox").philox_uniform
    seeds = torch.randint(-(2**63), 2**63 - 1, (500,), generator=generator)
    positions = torch.randint(0, 2**32, (500,), generator=generator)
    for stream in (0, 1, 2**31):
        got = philox_uniform(seeds, positions, stream)
        assert torch.equal(got, reference(seeds, positions, stream))


def test_wrong_dtypes_and_lengths_are_refused(library: KernelLibrary) -> None:
    with pytest.raises(KernelError, match="rows of float32"):
        most_likely(torch.zeros(2, 8, dtype=torch.bfloat16))
    with pytest.raises(KernelError, match="uniforms are"):
        draw_tokens(torch.zeros(2, 8), torch.zeros(3, dtype=torch.float64))
    with pytest.raises(KernelError, match="filters for 2 rows"):
        keep_likely(
            torch.zeros(2, 8), torch.zeros(2, dtype=torch.int32), torch.ones(1), torch.zeros(2)
        )
