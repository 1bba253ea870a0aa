import pytest
import torch

from pegboard.sampling.draw import BLOCK, draw_tokens, most_likely


def plain_draw(logits, uniform):
    """One row in python: the first token whose cumulative probability passes the number."""
    weights = (logits - logits.max()).exp().double()
    target = uniform * weights.sum().item()
    upto = 0.0
    for token, weight in enumerate(weights.tolist()):
        upto += weight
        if upto > target:
            return token
    return int(torch.nonzero(weights)[-1])


@pytest.mark.parametrize("vocab", [1, 7, BLOCK, BLOCK + 1, 3 * BLOCK - 5])
def test_equals_a_plain_running_sum(vocab):
    logits = torch.randn(20, vocab) * 3
    uniforms = torch.rand(20, dtype=torch.float64)
    drawn = draw_tokens(logits, uniforms).tolist()
    for row, token in enumerate(drawn):
        expected = plain_draw(logits[row], uniforms[row].item())
        if token != expected:  # only where the number falls on a boundary, within rounding
            weights = (logits[row] - logits[row].max()).exp().double()
            edge = weights.cumsum(0)[min(token, expected)] / weights.sum()
            assert abs(edge - uniforms[row]) < 1e-6


def test_masked_tokens_are_never_drawn():
    logits = torch.full((6, 700), -torch.inf)
    logits[:, 300] = 1.0
    logits[:, 699] = 1.0
    uniforms = torch.tensor([0.0, 0.1, 0.49, 0.51, 0.9, 1 - 2.0**-53], dtype=torch.float64)
    assert draw_tokens(logits, uniforms).tolist() == [300, 300, 300, 699, 699, 699]


def test_rows_do_not_depend_on_each_other():
    logits = torch.randn(5, 1000)
    uniforms = torch.rand(5, dtype=torch.float64)
    together = draw_tokens(logits, uniforms)
    for row in range(5):
        assert draw_tokens(logits[row : row + 1], uniforms[row : row + 1]) == together[row]


def test_frequencies_follow_the_softmax():
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, -torch.inf])
    count = 20_000
    uniforms = torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    drawn = draw_tokens(logits.expand(count, -1), uniforms)
    observed = torch.bincount(drawn, minlength=5).double()
    expected = logits.double().softmax(0) * count
    assert observed[4] == 0
    chi_square = ((observed - expected)[:4] ** 2 / expected[:4]).sum().item()
    assert chi_square < 25  # 3 degrees of freedom


def test_a_nan_shows_as_the_greatest():
    logits = torch.randn(2, 50)
    logits[1, 20] = torch.nan
    values, indices = most_likely(logits)
    assert indices[0] == logits[0].argmax()
    assert torch.isnan(values).tolist() == [False, True]
