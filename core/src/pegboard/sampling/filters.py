"""Keep only the tokens that min-p, top-k and top-p leave: a threshold a row on its logits.

Each filter keeps the tokens whose logit is at least a threshold, so ties are kept together and
the result does not depend on a sort's order. They apply one after the other:

    min-p   probability >= min_p * the greatest probability
    top-k   logit >= the k-th greatest logit
    top-p   of what is left, renormalised: the fewest most likely tokens with a sum >= top_p
"""

import torch
from torch import Tensor

__all__ = ["keep_likely"]

#: Candidates taken first; a row whose filters reach further is sorted whole.
_CANDIDATES = 256


def _thresholds(
    values: Tensor, total: Tensor | None, top_k: Tensor, top_p: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the least logit that top-k alone keeps of each row, and the least that both keep.

    `values` are a row's greatest logits in descending order. `total` is the sum of
    exp(logit - greatest) over the whole row, or None where `values` is the whole row.
    """
    size = values.shape[-1]
    has_top_k = (top_k > 0).unsqueeze(1)
    k = torch.where(has_top_k, top_k.unsqueeze(1), size).clamp(max=size).long()
    kth = torch.where(has_top_k, values.gather(1, k - 1), -torch.inf)
    weights = torch.where(values >= kth, (values - values[:, :1]).double().exp(), 0.0)
    upto = weights.cumsum(dim=-1)
    mass = upto[:, -1:] if total is None else torch.where(has_top_k, upto[:, -1:], total)
    # A token is kept while the sum before it is short of top_p; the first always is.
    keep = (weights > 0) & ((upto - weights) < mass * top_p.unsqueeze(1).double())
    last = keep.sum(dim=-1, keepdim=True).clamp_(min=1) - 1
    kept_by_p = values.gather(1, last)
    return kth, torch.where(top_p.unsqueeze(1) < 1.0, kept_by_p, kth)


def keep_likely(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> None:
    """Set the logits that the filters drop to -inf, in place; the reference of `keep_likely`.

    Args:
        logits: [n, vocab] float32, after temperature.
        top_k: [n] int32; 0 is off.
        top_p: [n] float32; 1 is off.
        min_p: [n] float32; 0 is off.

    Waits for the device where a row's filters reach past the first candidates.
    """
    greatest = logits.amax(dim=-1, keepdim=True)
    floor = greatest + min_p.unsqueeze(1).log()  # log 0 is -inf: nothing is dropped
    logits.masked_fill_(logits < floor, -torch.inf)
    size = min(_CANDIDATES, logits.shape[-1])
    values = logits.topk(size, dim=-1).values
    total = (logits - greatest).exp().sum(dim=-1, keepdim=True).double()
    kth, threshold = _thresholds(values, total, top_k, top_p)
    # The candidates decide a row if they hold all that top-k keeps, or else all that top-p keeps.
    reach = torch.where((top_k > 0).unsqueeze(1), kth, threshold)
    decided = (values[:, -1:] < reach).squeeze(1) | ((top_k <= 0) & (top_p >= 1.0))
    if size < logits.shape[-1] and not bool(decided.all()):
        rows = torch.nonzero(~decided).squeeze(1)
        ordered = logits[rows].sort(dim=-1, descending=True).values
        threshold[rows] = _thresholds(ordered, None, top_k[rows], top_p[rows])[1]
    logits.masked_fill_(logits < threshold, -torch.inf)
