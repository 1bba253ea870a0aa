"""Repetition, presence and frequency penalties, with counts kept on the device.

Only rows that ask have counts: they take a slot in tensors that grow as more rows ask at once.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from pegboard.api.messages import NewRequest

__all__ = ["PenaltyCounts", "apply_penalties"]


def apply_penalties(
    logits: Tensor,
    in_prompt: Tensor,
    counts: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    """Penalise tokens that were seen, in place; the reference of the op `apply_penalties`.

    Repetition: where a token is in the prompt or the output, a positive logit is divided by the
    penalty and another one multiplied. Then, over the output alone, frequency * count and
    presence * (count > 0) are subtracted.

    Args:
        logits: [n, vocab] float32.
        in_prompt: [n, vocab] bool.
        counts: [n, vocab] int32; how often each token is in the output.
        repetition, presence, frequency: [n] float32.
    """
    in_output = counts > 0
    factor = torch.where(in_prompt | in_output, repetition.unsqueeze(1), 1.0)
    logits.copy_(torch.where(logits > 0, logits / factor, logits * factor))
    logits -= frequency.unsqueeze(1) * counts
    logits -= presence.unsqueeze(1) * in_output


class PenaltyCounts:
    """Which tokens the penalised rows have seen."""

    __slots__ = ("_counts", "_device", "_free", "_in_prompt", "_slots", "_vocab_size")

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        """Start with no rows and no memory."""
        self._vocab_size = vocab_size
        self._device = device
        self._slots: dict[int, int] = {}
        self._free: list[int] = []
        self._in_prompt = torch.zeros((0, vocab_size), dtype=torch.bool, device=device)
        self._counts = torch.zeros((0, vocab_size), dtype=torch.int32, device=device)

    def add_row(self, request: NewRequest) -> None:
        """Count a request's tokens, if it asks for a penalty."""
        self.remove_row(request.row)
        p = request.sampling
        if p.repetition_penalty == 1.0 and not p.presence_penalty and not p.frequency_penalty:
            return
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self._slots[request.row] = slot
        tokens = torch.tensor(request.token_ids, dtype=torch.int64, device=self._device)
        prompt, output = tokens[: request.num_prompt_tokens], tokens[request.num_prompt_tokens :]
        self._in_prompt[slot].zero_()[prompt] = True
        self._counts[slot] = torch.bincount(output, minlength=self._vocab_size)

    def remove_row(self, row: int) -> None:
        """Forget a row; unknown rows are ignored."""
        slot = self._slots.pop(row, None)
        if slot is not None:
            self._free.append(slot)

    def _grow(self) -> None:
        old = self._counts.shape[0]
        new = max(4, 2 * old)
        shape = (new - old, self._vocab_size)
        self._in_prompt = torch.cat((self._in_prompt, self._in_prompt.new_zeros(shape)))
        self._counts = torch.cat((self._counts, self._counts.new_zeros(shape)))
        self._free += range(old, new)

    def lines_of(self, rows: Sequence[int]) -> tuple[Tensor, Tensor] | None:
        """Return the lines whose rows are penalised and the rows' slots, each [k] int64."""
        if not self._slots:
            return None
        pairs = [(line, self._slots[row]) for line, row in enumerate(rows) if row in self._slots]
        if not pairs:
            return None
        both = torch.tensor(pairs, dtype=torch.int64, device=self._device)
        return both[:, 0], both[:, 1]

    def seen(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Return `in_prompt` and `counts` of some slots, as `apply_penalties` takes them."""
        return self._in_prompt[slots], self._counts[slots]

    def count(self, slots: Tensor, token_ids: Tensor) -> None:
        """Count one new output token of each slot; both [k] int64, slots differ."""
        self._counts[slots, token_ids] += 1
