"""Token sequences that a request never produces: their last token is masked when it would come."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pegboard.api.messages import NewRequest

__all__ = ["BadWords"]

_ANY = -1


class _Joined:
    """The sequences of a step's rows on the device.

    Attributes:
        lines: [m] int64 line of the logits.
        tails: [m, longest] int32; the tokens before the last one, nearest first, padded with -1.
        lengths: [m] int64; tokens before the last one.
        last: [m] int64; the token that completes the sequence.
    """

    __slots__ = ("last", "lengths", "lines", "tails")

    def __init__(self, entries: list[tuple[int, list[int]]], device: torch.device) -> None:
        longest = max(len(word) - 1 for _, word in entries)
        tails = np.full((len(entries), longest), _ANY, np.int32)
        for index, (_, word) in enumerate(entries):
            tails[index, : len(word) - 1] = word[-2::-1] if len(word) > 1 else []
        self.tails = torch.from_numpy(tails).to(device)
        self.lines = torch.tensor([line for line, _ in entries], device=device)
        self.lengths = torch.tensor([len(word) - 1 for _, word in entries], device=device)
        self.last = torch.tensor([word[-1] for _, word in entries], device=device)


class BadWords:
    """The rows with bad_words. The newest tokens are compared where they are, on the device."""

    __slots__ = ("_device", "_joined", "_key", "_rows", "_vocab_size")

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        """Start with no rows."""
        self._vocab_size = vocab_size
        self._device = device
        self._rows: dict[int, list[list[int]]] = {}
        self._key: tuple[tuple[int, int], ...] | None = None
        self._joined: _Joined | None = None

    def add_row(self, request: NewRequest) -> None:
        """Take a request's sequences."""
        self.remove_row(request.row)
        words = [w for w in request.sampling.bad_words_token_ids if w[-1] < self._vocab_size]
        if words:
            self._rows[request.row] = words

    def remove_row(self, row: int) -> None:
        """Forget a row; unknown rows are ignored."""
        if self._rows.pop(row, None) is not None:
            self._key = None

    def needed(self, rows: Sequence[int]) -> bool:
        """Return whether `apply` would look at any of these rows."""
        return bool(self._rows) and any(row in self._rows for row in rows)

    def apply(
        self,
        logits: Tensor,
        rows: Sequence[int],
        device_rows: Tensor,
        token_ids: Tensor,
        num_tokens: Tensor,
        num_prompt_tokens: Tensor,
    ) -> None:
        """Mask the tokens that would complete a sequence within the output, in place.

        Args:
            logits: [n, vocab] float32.
            rows: [n] the batch row of each line; `device_rows` the same on the device, int64.
            token_ids: [max_num_rows, width] int32; `num_tokens`, `num_prompt_tokens`
                [max_num_rows] int32.
        """
        key = tuple((line, row) for line, row in enumerate(rows) if row in self._rows)
        if not key:
            return
        if key != self._key or self._joined is None:
            entries = [(line, word) for line, row in key for word in self._rows[row]]
            self._joined = _Joined(entries, self._device)
            self._key = key
        joined = self._joined
        batch_rows = device_rows[joined.lines]
        length, prompt = num_tokens[batch_rows].long(), num_prompt_tokens[batch_rows].long()
        back = torch.arange(joined.tails.shape[1], device=logits.device)
        where = (length.unsqueeze(1) - 1 - back).clamp_(min=0)
        newest = token_ids[batch_rows.unsqueeze(1), where]
        equal = (joined.tails == _ANY) | (joined.tails == newest)
        complete = equal.all(dim=1) & (joined.lengths <= length - prompt)
        # Two sequences may end in the same token: the least of their values must win.
        values = torch.where(complete, -torch.inf, torch.inf).to(logits.dtype)
        flat = joined.lines * logits.shape[1] + joined.last
        logits.view(-1).scatter_reduce_(0, flat, values, "amin", include_self=True)
