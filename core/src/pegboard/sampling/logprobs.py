"""Log-probabilities of a token and of the most likely ones, with ranks, for many lines at once.

The modes, of `model.logprobs_mode`: raw before any processing, processed after all of it
(masks, penalties, bias, temperature, filters); logprobs normalised, logits as they are.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from pegboard.api.messages import TokenLogprobs
from pegboard.config.model import LogprobsMode

__all__ = ["LineLogprobs", "WantedLogprobs", "gather_logprobs"]


class WantedLogprobs:
    """What one request wants reported at a position besides the token itself.

    Attributes:
        count: most likely tokens; the vocabulary's size for all of them.
        token_ids: these instead, if not None.
    """

    __slots__ = ("count", "token_ids")

    def __init__(self, count: int, token_ids: Sequence[int] | None) -> None:
        """Keep what is wanted."""
        self.count = count
        self.token_ids = None if token_ids is None else list(token_ids)

    @classmethod
    def of(
        cls, count: int | None, token_ids: Sequence[int] | None, vocab_size: int
    ) -> "WantedLogprobs | None":
        """Read a request's two parameters; None if it wants nothing."""
        if count is None and not token_ids:
            return None
        wanted = vocab_size if count == -1 else min(count or 0, vocab_size)
        return cls(0 if token_ids else wanted, token_ids or None)


class LineLogprobs:
    """Reported numbers of some lines, on the device until `to_host`."""

    __slots__ = ("_numbers", "_ranks", "_token_ids", "_widths")

    def __init__(
        self, token_ids: Tensor, numbers: Tensor, ranks: Tensor, widths: Sequence[int]
    ) -> None:
        """Keep [k, width] tensors; of line i the leading `widths[i]` entries count."""
        self._token_ids = token_ids
        self._numbers = numbers
        self._ranks = ranks
        self._widths = widths

    def to_host(self) -> list[TokenLogprobs]:
        """Return one message a line; waits for the device."""
        token_ids, numbers = self._token_ids.cpu(), self._numbers.cpu()
        ranks = self._ranks.cpu()
        return [
            TokenLogprobs(
                token_ids=token_ids[line, :width].tolist(),
                logprobs=numbers[line, :width].tolist(),
                ranks=ranks[line, :width].tolist(),
            )
            for line, width in enumerate(self._widths)
        ]


def _ranks_of_sorted(values: Tensor) -> Tensor:
    """Return 1 + the number of greater values, of values in descending order; ties share."""
    index = torch.arange(1, values.shape[1] + 1, device=values.device).expand_as(values)
    starts = torch.ones_like(values, dtype=torch.bool)
    starts[:, 1:] = values[:, 1:] != values[:, :-1]
    return torch.where(starts, index, 0).cummax(dim=1).values


def _listed(
    numbers: Tensor, wanted: Sequence[WantedLogprobs], width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, numbers and ranks of explicitly listed tokens, most likely first."""
    padded = [[*(w.token_ids or ()), *([0] * width)][:width] for w in wanted]
    ids = torch.tensor(padded, dtype=torch.int64, device=numbers.device)
    used = torch.tensor([len(w.token_ids or ()) for w in wanted], device=numbers.device)
    picked = numbers.gather(1, ids)
    ranks = torch.stack(
        [(numbers > picked[:, j : j + 1]).sum(dim=1) + 1 for j in range(width)], dim=1
    )
    unused = torch.arange(width, device=numbers.device) >= used.unsqueeze(1)
    order = torch.where(unused, ids.new_full((), 2**62), ranks).argsort(dim=1, stable=True)
    return ids.gather(1, order), picked.gather(1, order), ranks.gather(1, order)


def gather_logprobs(
    logits: Tensor, token_ids: Tensor, wanted: Sequence[WantedLogprobs], mode: LogprobsMode
) -> LineLogprobs:
    """Report each line's token and what is wanted besides.

    Args:
        logits: [k, vocab] float32, raw or processed as the mode says; not changed.
        token_ids: [k] int64, the token at each line's position.
        wanted: [k].
        mode: whether the numbers are normalised.
    """
    own = logits.gather(1, token_ids.unsqueeze(1))
    own_rank = (logits > own).sum(dim=1, keepdim=True) + 1
    ids, picked, ranks = [token_ids.unsqueeze(1)], [own], [own_rank]
    count = max(w.count for w in wanted)
    if count:
        top = logits.topk(count, dim=1)
        ids, picked = [*ids, top.indices], [*picked, top.values]
        ranks.append(_ranks_of_sorted(top.values))
    listed = max(len(w.token_ids or ()) for w in wanted)
    if listed:
        more = _listed(logits, wanted, listed)
        # Lines with a list want no most likely ones, so theirs go right behind the token.
        has_list = torch.tensor([w.token_ids is not None for w in wanted], device=logits.device)
        width = max(count, listed)
        for parts, extra in zip((ids, picked, ranks), more, strict=True):
            merged = extra.new_zeros((len(wanted), width))
            if count:
                merged[:, :count] = parts.pop()
            merged[has_list, :listed] = extra[has_list]
            parts.append(merged)
    numbers = torch.cat(picked, dim=1)
    if mode in ("raw_logprobs", "processed_logprobs"):
        numbers = numbers - logits.logsumexp(dim=1, keepdim=True)
    widths = [1 + (len(w.token_ids) if w.token_ids is not None else w.count) for w in wanted]
    return LineLogprobs(torch.cat(ids, dim=1), numbers, torch.cat(ranks, dim=1), widths)
