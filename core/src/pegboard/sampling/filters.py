"""Keep only the tokens that min-p, top-k and top-p leave: a threshold a row on its logits.

Each filter keeps the tokens whose logit is at least a threshold, so ties are kept together and
the result does not depend on a sort's order. They apply one after the other:

    min-p   probability >= min_p * the greatest probability
    top-k   logit >= the k-th greatest logit
    top-p   of what is left, renormalised: the fewest most likely tokens with a sum >= top_p

Sorting a whole vocabulary costs more than the model's last layer, so a bound that no threshold
can lie below picks the few tokens that are sorted.
"""

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["keep_likely"]

#: Lanes of the blocks whose maxima bound the k-th greatest logit from below.
_BLOCK = 128
#: Room for rounding in the bound for top-p.
_SLACK = 0.5


def keep_likely(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> None:
    """Set the logits that the filters drop to -inf, in place; the reference of `keep_likely`.

    Args:
        logits: [n, vocab] float32, after temperature.
        top_k: [n] int32; 0 is off.
        top_p: [n] float32; 1 is off.
        min_p: [n] float32; 0 is off.

    Waits for the device to learn how many tokens the bounds leave.
    """
    greatest = logits.amax(dim=-1, keepdim=True)
    threshold = greatest + min_p.unsqueeze(1).log()  # log 0 is -inf: nothing is dropped
    total = _total(logits, greatest, threshold)
    filtered = (top_k > 0) | (top_p < 1.0)
    bound = torch.maximum(_bound(logits, greatest, total, top_k, top_p), threshold)
    bound.masked_fill_(~filtered.unsqueeze(1), torch.inf)  # nothing of such rows is sorted
    values = _at_least(logits, bound)
    if values.shape[1]:
        exact = _thresholds(values, total, top_k, top_p)
        threshold = torch.where(filtered.unsqueeze(1), torch.maximum(exact, threshold), threshold)
    logits.masked_fill_(logits < threshold, -torch.inf)


def _total(logits: Tensor, greatest: Tensor, threshold: Tensor) -> Tensor:
    """Return the sum of exp(logit - greatest) over the tokens at or above a threshold: [n, 1]."""
    weights = (logits - greatest).exp_()
    return weights.mul_(logits >= threshold).sum(dim=-1, keepdim=True).double()


def _bound(logits: Tensor, greatest: Tensor, total: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Return a logit that top-k's and top-p's threshold is not below: [n, 1].

    top-k: each block's maximum is a token, so k maxima at or above a value are k tokens there.
    top-p: tokens that each weigh less than (1 - top_p) * total / vocab together weigh less than
    1 - top_p, so the others reach top_p. With both, top-k's bound serves.
    """
    vocab = logits.shape[1]
    padding = -vocab % _BLOCK
    padded = functional.pad(logits, (0, padding), value=-torch.inf) if padding else logits
    maxima = padded.unflatten(-1, (-1, _BLOCK)).amax(dim=-1).sort(dim=-1, descending=True).values
    has_top_k = (top_k > 0).unsqueeze(1)
    k = torch.where(has_top_k, top_k.unsqueeze(1), 1).long()
    kth = maxima.gather(1, (k - 1).clamp(max=maxima.shape[1] - 1))
    by_k = torch.where(k <= maxima.shape[1], kth, -torch.inf)
    share = (1.0 - top_p.double()).unsqueeze(1) * total / vocab
    by_p = greatest + share.log().float() - _SLACK
    return torch.where(has_top_k, by_k, by_p)


def _at_least(logits: Tensor, bound: Tensor) -> Tensor:
    """Return each row's logits at or above its bound, greatest first, padded with -inf."""
    lines, columns = torch.nonzero(logits >= bound, as_tuple=True)
    counts = torch.bincount(lines, minlength=logits.shape[0])
    starts = counts.cumsum(0) - counts
    place = torch.arange(len(lines), device=logits.device) - starts[lines]
    width = int(counts.max()) if len(counts) else 0
    values = logits.new_full((logits.shape[0], width), -torch.inf)
    values[lines, place] = logits[lines, columns]
    return values.sort(dim=-1, descending=True).values


def _thresholds(values: Tensor, total: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Return the least logit that top-k and top-p keep of each row: [n, 1].

    Args:
        values: [n, width], a row's logits down to its bound, greatest first.
        total: [n, 1], what a row weighs before top-k.
        top_k, top_p: as in `keep_likely`.
    """
    size = values.shape[1]
    has_top_k = (top_k > 0).unsqueeze(1)
    k = torch.where(has_top_k, top_k.unsqueeze(1), size).clamp(max=size).long()
    kth = torch.where(has_top_k, values.gather(1, k - 1), -torch.inf)
    weights = torch.where(values >= kth, (values - values[:, :1]).double().exp(), 0.0)
    upto = weights.cumsum(dim=-1)
    mass = torch.where(has_top_k, upto[:, -1:], total)
    # A token is kept while the sum before it is short of top_p; the first always is.
    keep = (weights > 0) & ((upto - weights) < mass * top_p.unsqueeze(1).double())
    last = keep.sum(dim=-1, keepdim=True).clamp_(min=1) - 1
    return torch.where(top_p.unsqueeze(1) < 1.0, values.gather(1, last), kth)
