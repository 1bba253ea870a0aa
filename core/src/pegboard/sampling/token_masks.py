"""What a request says of single tokens: allowed ids, a minimum length, a bias."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pegboard.api.messages import NewRequest
from pegboard.sampling.row_tokens import RowTokens

__all__ = ["TokenMasks"]


class TokenMasks:
    """The rows with allowed_token_ids, min_tokens or logit_bias, and their effect on logits."""

    __slots__ = ("_allowed", "_bias", "_early_end", "_first_free_end", "_vocab_size")

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        """Start with no rows."""
        self._vocab_size = vocab_size
        self._allowed = RowTokens(device)
        self._bias = RowTokens(device)
        self._early_end = RowTokens(device)
        self._first_free_end: dict[int, int] = {}

    def add_row(self, request: NewRequest) -> None:
        """Take what a request asks for."""
        params, row = request.sampling, request.row
        self.remove_row(row)
        self._allowed.set_row(row, sorted(set(params.allowed_token_ids or ())))
        bias = params.logit_bias or {}
        self._bias.set_row(row, list(bias), list(bias.values()))
        if len(request.token_ids) - request.num_prompt_tokens < params.min_tokens:
            ends = sorted(
                token_id
                for token_id in {*request.eos_token_ids, *params.stop_token_ids}
                if token_id < self._vocab_size
            )
            self._early_end.set_row(row, ends)
            self._first_free_end[row] = params.min_tokens

    def remove_row(self, row: int) -> None:
        """Forget a row; unknown rows are ignored."""
        for store in (self._allowed, self._bias, self._early_end):
            store.remove_row(row)
        self._first_free_end.pop(row, None)

    def needed(self, rows: Sequence[int]) -> bool:
        """Return whether `apply` would change anything for these rows."""
        stores = [store for store in (self._allowed, self._bias, self._early_end) if store]
        return any(row in store for store in stores for row in rows)

    def apply(self, logits: Tensor, rows: Sequence[int], num_output_tokens: Sequence[int]) -> None:
        """Change logits in place: first the allowed ids, then the early ends, then the bias.

        Args:
            logits: [n, vocab] float32.
            rows: [n] the batch row of each line.
            num_output_tokens: [n] output tokens of each row so far.
        """
        allowed = self._allowed.joined(rows)
        if allowed is not None:
            kept = logits[allowed.lines, allowed.token_ids]
            logits.index_fill_(0, allowed.owners, -torch.inf)
            logits[allowed.lines, allowed.token_ids] = kept
        for row, count in zip(rows, num_output_tokens, strict=True):
            if self._first_free_end and count >= self._first_free_end.get(row, count + 1):
                self._early_end.remove_row(row)
                del self._first_free_end[row]
        ends = self._early_end.joined(rows)
        if ends is not None:
            logits[ends.lines, ends.token_ids] = -torch.inf
        bias = self._bias.joined(rows)
        if bias is not None:
            logits[bias.lines, bias.token_ids] += bias.values
