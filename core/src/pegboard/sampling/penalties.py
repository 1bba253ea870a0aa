"""Repetition, presence and frequency penalties, with counts kept on the device.

Only tokens that a row holds are touched, not its whole vocabulary. Only rows that ask have
counts: they take a slot in a tensor that grows as more rows ask at once.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from pegboard.api.messages import NewRequest

__all__ = ["PenaltyCounts", "apply_penalties"]


def apply_penalties(
    logits: Tensor,
    token_ids: Tensor,
    counts: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    """Penalise tokens that were seen, in place; the reference of the op `apply_penalties`.

    Repetition: of a token in the prompt or the output, a positive logit is divided by the penalty
    and another one multiplied. Then, over the output alone, frequency * count and
    presence * (count > 0) are subtracted. Each token once, however often it is listed.

    Args:
        logits: [n, vocab] float32.
        token_ids: [n, width] int64; each row's tokens, in any order and number, none other.
        counts: [n, width] int32; how often each of those is in the row's output.
        repetition, presence, frequency: [n] float32.
    """
    seen = logits.gather(1, token_ids)
    factor = repetition.unsqueeze(1)
    seen = torch.where(seen > 0, seen / factor, seen * factor)
    seen -= frequency.unsqueeze(1) * counts
    seen -= presence.unsqueeze(1) * (counts > 0)
    logits.scatter_(1, token_ids, seen)


class PenaltyCounts:
    """How often each token is in the output of the penalised rows."""

    __slots__ = ("_counts", "_device", "_free", "_lengths", "_slots", "_vocab_size")

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        """Start with no rows and no memory."""
        self._vocab_size = vocab_size
        self._device = device
        self._slots: dict[int, int] = {}
        self._lengths: dict[int, int] = {}
        self._free: list[int] = []
        self._counts = torch.zeros((0, vocab_size), dtype=torch.int32, device=device)

    def add_row(self, request: NewRequest) -> None:
        """Count a request's output tokens, if it asks for a penalty."""
        self.remove_row(request.row)
        p = request.sampling
        if p.repetition_penalty == 1.0 and not p.presence_penalty and not p.frequency_penalty:
            return
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self._slots[request.row] = slot
        self._lengths[request.row] = request.num_prompt_tokens
        output = torch.tensor(request.token_ids[request.num_prompt_tokens :], dtype=torch.int64)
        self._counts[slot] = torch.bincount(output, minlength=self._vocab_size).to(self._device)

    def remove_row(self, row: int) -> None:
        """Forget a row; unknown rows are ignored."""
        slot = self._slots.pop(row, None)
        if slot is not None:
            del self._lengths[row]
            self._free.append(slot)

    def _grow(self) -> None:
        old = self._counts.shape[0]
        new = max(4, 2 * old)
        more = self._counts.new_zeros((new - old, self._vocab_size))
        self._counts = torch.cat((self._counts, more))
        self._free += range(old, new)

    def needed(self, rows: Sequence[int]) -> bool:
        """Return whether any of these rows is penalised."""
        return bool(self._slots) and any(row in self._slots for row in rows)

    def lines_of(self, rows: Sequence[int]) -> tuple[Tensor, Tensor] | None:
        """Return the lines whose rows are penalised and the rows' slots, each [k] int64."""
        if not self._slots:
            return None
        pairs = [(line, self._slots[row]) for line, row in enumerate(rows) if row in self._slots]
        if not pairs:
            return None
        both = torch.tensor(pairs, dtype=torch.int64, device=self._device)
        return both[:, 0], both[:, 1]

    def longest(self, rows: Sequence[int], num_output_tokens: Sequence[int]) -> int:
        """Return the most tokens that a penalised row among these holds."""
        return max(
            self._lengths[row] + count
            for row, count in zip(rows, num_output_tokens, strict=True)
            if row in self._slots
        )

    def of_tokens(self, slots: Tensor, token_ids: Tensor) -> Tensor:
        """Return the counts of tokens: [k, width] int32, for `token_ids` [k, width] int64."""
        return self._counts[slots.unsqueeze(1), token_ids]

    def count(self, slots: Tensor, token_ids: Tensor) -> None:
        """Count one new output token of each slot; both [k] int64, slots differ."""
        self._counts[slots, token_ids] += 1
