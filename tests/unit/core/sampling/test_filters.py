import pytest
import torch

from pegboard.sampling.filters import keep_likely


def plain_keep(logits, top_k, top_p, min_p):
    """One row in python, by sorting."""
    probabilities = logits.double().softmax(0)
    kept = [i for i, p in enumerate(probabilities) if p >= min_p * probabilities.max()]
    kept.sort(key=lambda i: -logits[i].item())
    if top_k:
        least = logits[kept[min(top_k, len(kept)) - 1]]
        kept = [i for i in kept if logits[i] >= least]
    if top_p < 1:
        mass = sum(probabilities[i] for i in kept)
        upto, result = 0.0, []
        for i in kept:
            if result and upto >= top_p * mass:
                break
            result.append(i)
            upto += probabilities[i]
        least = logits[result[-1]]
        kept = [i for i in kept if logits[i] >= least]
    return set(kept)


@pytest.mark.parametrize("vocab", [1, 5, 256, 257, 1000])
@pytest.mark.parametrize("spread", [0.2, 3.0])
def test_keeps_what_a_plain_sort_keeps(vocab, spread):
    rows = 40
    logits = torch.randn(rows, vocab) * spread
    top_k = torch.randint(-vocab, vocab + 300, (rows,)).clamp(min=0).int()
    top_p = torch.where(torch.rand(rows) < 0.3, 1.0, torch.rand(rows).clamp(min=0.01))
    min_p = torch.where(torch.rand(rows) < 0.5, 0.0, torch.rand(rows))
    filtered = logits.clone()
    keep_likely(filtered, top_k, top_p, min_p)
    for row in range(rows):
        kept = set(torch.nonzero(filtered[row] > -torch.inf).flatten().tolist())
        expected = plain_keep(logits[row], top_k[row].item(), top_p[row].item(), min_p[row].item())
        # A sum that meets top_p within rounding may keep one token more or less.
        assert len(kept ^ expected) <= 1
        assert torch.equal(filtered[row][list(kept)], logits[row][list(kept)])


def test_ties_are_kept_together_however_many_there_are():
    logits = torch.zeros(2, 900)
    logits[1, 5] = 1.0
    keep_likely(
        logits, torch.tensor([3, 2]).int(), torch.tensor([1.0, 1.0]), torch.tensor([0.0, 0.0])
    )
    assert (logits > -torch.inf).sum(1).tolist() == [900, 900]


def test_the_most_likely_token_is_always_kept():
    logits = torch.randn(3, 400)
    best = logits.argmax(1)
    keep_likely(
        logits,
        torch.tensor([0, 1, 0]).int(),
        torch.tensor([1e-9, 1.0, 1.0]),
        torch.tensor([0.0, 0.0, 1.0]),
    )
    assert (logits > -torch.inf).sum(1).tolist() == [1, 1, 1]
    assert torch.equal(logits.argmax(1), best)
