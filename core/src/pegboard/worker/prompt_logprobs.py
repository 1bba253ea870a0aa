"""Logprobs of prompt tokens, chunk by chunk as the prompt is computed.

The hidden state at position p tells of the token at p + 1, so the last position of a chunk
reports on the first token of the next one.
"""

from collections.abc import Callable

from torch import Tensor

from pegboard.api.messages import NewRequest
from pegboard.config.model import LogprobsMode
from pegboard.sampling.logprobs import LineLogprobs, WantedLogprobs, gather_logprobs
from pegboard.worker.input_batch import InputBatch, StepInputs

__all__ = ["PromptLogprobs"]

#: Positions whose logits are held at once.
_SLICE = 64


class PromptLogprobs:
    """The rows that want prompt logprobs."""

    __slots__ = ("_mode", "_rows", "_vocab_size")

    def __init__(self, vocab_size: int, mode: LogprobsMode) -> None:
        """Start with no rows."""
        self._vocab_size = vocab_size
        self._mode: LogprobsMode = mode
        self._rows: dict[int, tuple[WantedLogprobs, int]] = {}

    @property
    def wanted(self) -> bool:
        """Whether any row still waits for some."""
        return bool(self._rows)

    def add_row(self, request: NewRequest) -> None:
        """Take what a request wants. One that has output tokens got its own long ago."""
        self.remove_row(request.row)
        p = request.sampling
        wanted = WantedLogprobs.of(p.prompt_logprobs, p.prompt_logprob_token_ids, self._vocab_size)
        if wanted is not None and len(request.token_ids) == request.num_prompt_tokens:
            self._rows[request.row] = (wanted, p.prompt_logprob_start or 0)

    def remove_row(self, row: int) -> None:
        """Forget a row; unknown rows are ignored."""
        self._rows.pop(row, None)

    def compute(
        self,
        hidden: Tensor,
        inputs: StepInputs,
        batch: InputBatch,
        compute_logits: Callable[[Tensor], Tensor],
    ) -> dict[int, list[LineLogprobs]]:
        """Report on the positions of this step's chunks, by row.

        Args:
            hidden: [num_tokens, hidden_size], of the whole step.
            inputs: of the step.
            batch: the persistent batch.
            compute_logits: the model's.
        """
        if not self._rows:
            return {}
        reports: dict[int, list[LineLogprobs]] = {}
        for line, row in enumerate(inputs.rows_cpu.tolist()):
            if row not in self._rows:
                continue
            wanted, start = self._rows[row]
            chunk_start = int(inputs.start_cpu[line])
            chunk_end = chunk_start + int(inputs.num_scheduled_cpu[line])
            last = min(chunk_end, int(batch.num_prompt_cpu[row]) - 1)
            base = int(inputs.query_start_cpu[line]) - chunk_start
            parts: list[LineLogprobs] = []
            for first in range(max(chunk_start, start - 1), last, _SLICE):
                end = min(first + _SLICE, last)
                logits = compute_logits(hidden[base + first : base + end])
                targets = batch.token_ids[row, first + 1 : end + 1].long()
                parts.append(gather_logprobs(logits, targets, [wanted] * (end - first), self._mode))
            if parts:
                reports[row] = parts
            if chunk_end >= int(batch.num_prompt_cpu[row]):
                del self._rows[row]
        return reports
