"""The sampler: one token a row, for greedy and random rows of a batch together.

In order, each part only if a row of the step asks for it:

    raw logprobs kept → grammar mask → allowed ids, minimum length, bias → bad words →
    logits processors → penalties → greedy choice
    random rows besides: temperature → argmax-invariant processors → min-p, top-k, top-p → draw
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pegboard.api.messages import NewRequest
from pegboard.api.ops import OpTable
from pegboard.config.model import LogprobsMode
from pegboard.sampling.bad_words import BadWords
from pegboard.sampling.columns import SamplingColumns
from pegboard.sampling.logprobs import LineLogprobs, WantedLogprobs, gather_logprobs
from pegboard.sampling.penalties import PenaltyCounts
from pegboard.sampling.philox import STREAM_SAMPLE, seed_of
from pegboard.sampling.processors import ProcessorChain
from pegboard.sampling.token_masks import TokenMasks

__all__ = ["BatchView", "Sampled", "Sampler"]


class BatchView(Protocol):
    """What the sampler reads of the persistent batch, on the device.

    `token_ids` is [max_num_rows, width] int32; `num_tokens` and `num_prompt_tokens` are
    [max_num_rows] int32.
    """

    token_ids: Tensor
    num_tokens: Tensor
    num_prompt_tokens: Tensor


class Sampled:
    """A step's tokens, on the device until they are read.

    Attributes:
        token_ids: [n] int64; 0 where `faulty`.
        faulty: [n] bool; the row's logits allowed no token.
        logprobs: of the rows in `logprob_rows`, or None.
        faults: row to a reason, known without the device.
    """

    __slots__ = ("faults", "faulty", "logprob_rows", "logprobs", "token_ids")

    def __init__(
        self,
        token_ids: Tensor,
        faulty: Tensor,
        logprob_rows: list[int],
        logprobs: LineLogprobs | None,
        faults: dict[int, str],
    ) -> None:
        """Keep the tensors."""
        self.token_ids = token_ids
        self.faulty = faulty
        self.logprob_rows = logprob_rows
        self.logprobs = logprobs
        self.faults = faults


class _Lines:
    """The lines of one step: their rows on the host and on the device."""

    __slots__ = ("device_rows", "rows", "rows_cpu")

    def __init__(self, rows_cpu: NDArray[np.int64], device: torch.device) -> None:
        self.rows_cpu = rows_cpu
        self.rows: list[int] = rows_cpu.tolist()
        self.device_rows = torch.from_numpy(rows_cpu).to(device, non_blocking=True)


class Sampler:
    """Keeps what each row asks for, and samples. Called from the step's thread only."""

    def __init__(
        self,
        *,
        max_num_rows: int,
        vocab_size: int,
        device: torch.device,
        ops: OpTable,
        seed: int = 0,
        logprobs_mode: LogprobsMode = "raw_logprobs",
        processors: ProcessorChain | None = None,
    ) -> None:
        """Make the columns; look the ops up once."""
        self._device = device
        self._vocab_size = vocab_size
        self._seed = seed
        self._mode: LogprobsMode = logprobs_mode
        self._processors = processors or ProcessorChain()
        self._columns = SamplingColumns(max_num_rows, device)
        self._masks = TokenMasks(vocab_size, device)
        self._bad_words = BadWords(vocab_size, device)
        self._penalties = PenaltyCounts(vocab_size, device)
        self._wanted: dict[int, WantedLogprobs] = {}
        self._most_likely = ops["most_likely"]
        self._philox_uniform = ops["philox_uniform"]
        self._keep_likely = ops["keep_likely"]
        self._draw_tokens = ops["draw_tokens"]
        self._apply_penalties = ops["apply_penalties"]

    def add_row(self, request: NewRequest) -> None:
        """Take a row in; whatever it held before is forgotten."""
        self.remove_row(request.row)
        params = request.sampling
        seed = seed_of(params.seed, request.request_id, self._seed)
        self._columns.set_row(request.row, params, seed)
        self._masks.add_row(request)
        self._bad_words.add_row(request)
        self._penalties.add_row(request)
        wanted = WantedLogprobs.of(params.logprobs, params.logprob_token_ids, self._vocab_size)
        if wanted is not None:
            self._wanted[request.row] = wanted
        self._processors.add_row(request)

    def remove_row(self, row: int) -> None:
        """Forget a row; unknown rows are ignored."""
        self._masks.remove_row(row)
        self._bad_words.remove_row(row)
        self._penalties.remove_row(row)
        self._wanted.pop(row, None)
        self._processors.remove_row(row)

    def is_greedy(self, rows_cpu: NDArray[np.int64]) -> bool:
        """Return whether each row takes its most likely token as the model gives it, unreported."""
        if (self._columns.host("temperature", rows_cpu) > 0).any():
            return False
        rows: list[int] = rows_cpu.tolist()
        return self._wanted.keys().isdisjoint(rows) and not self._changes(rows)

    def sample(
        self,
        logits: Tensor,
        rows_cpu: NDArray[np.int64],
        num_output_tokens: Sequence[int],
        batch: BatchView,
        grammar: tuple[list[int], NDArray[np.int32]] | None = None,
    ) -> Sampled:
        """Choose one token a line. Queues device work; waits for it only where an op must.

        Args:
            logits: [n, vocab] float32; may be changed in place.
            rows_cpu: [n] int64 on the host; the batch row of each line.
            num_output_tokens: [n] output tokens of each row so far.
            batch: the persistent batch, before the new tokens are written.
            grammar: lines with a grammar mask, and the masks [k, ceil(vocab / 32)] int32.
        """
        lines = _Lines(rows_cpu, self._device)
        raw = self._keep_raw(
            logits, lines, changes=self._changes(lines.rows) or grammar is not None
        )
        if grammar is not None:
            _apply_grammar(logits, *grammar)
        faults = self._process(logits, lines, num_output_tokens, batch)
        tokens, processed, faulty, more = self._choose(logits, lines, batch)
        faults.update(more)
        logprob_rows = [row for row in lines.rows if row in self._wanted]
        logprobs = self._logprobs(raw, processed, lines, tokens)
        penalised = self._penalties.lines_of(lines.rows)
        if penalised is not None:
            self._penalties.count(penalised[1], tokens[penalised[0]])
        return Sampled(tokens, faulty, logprob_rows, logprobs, faults)

    def _changes(self, rows: Sequence[int]) -> bool:
        """Whether logits of these rows are changed in place before the choice."""
        return (
            self._masks.needed(rows)
            or self._bad_words.needed(rows)
            or self._penalties.needed(rows)
            or self._processors.needed(rows, argmax_invariant=False)
        )

    def _wanting(self, lines: _Lines) -> list[int]:
        if not self._wanted:
            return []
        return [line for line, row in enumerate(lines.rows) if row in self._wanted]

    def _keep_raw(self, logits: Tensor, lines: _Lines, *, changes: bool) -> Tensor | None:
        """Return the logits that raw logprobs report on: [k, vocab], of the lines that want them.

        NaN in them is a fault that `_choose` sees, as every change keeps it.
        """
        wanting = self._wanting(lines)
        if not wanting or not self._mode.startswith("raw"):
            return None
        if len(wanting) < len(lines.rows):
            return logits[torch.tensor(wanting, device=self._device)]
        return logits.clone() if changes else logits

    def _process(
        self, logits: Tensor, lines: _Lines, num_output_tokens: Sequence[int], batch: BatchView
    ) -> dict[int, str]:
        rows = lines.rows
        if self._masks.needed(rows):
            self._masks.apply(logits, rows, num_output_tokens)
        if self._bad_words.needed(rows):
            self._bad_words.apply(
                logits,
                rows,
                lines.device_rows,
                batch.token_ids,
                batch.num_tokens,
                batch.num_prompt_tokens,
            )
        faults = self._run_processors(logits, lines, batch, argmax_invariant=False)
        penalised = self._penalties.lines_of(rows)
        if penalised is not None:
            width = self._penalties.longest(rows, num_output_tokens)
            self._penalise(logits, lines, *penalised, width, batch)
        return faults

    def _run_processors(
        self, logits: Tensor, lines: _Lines, batch: BatchView, *, argmax_invariant: bool
    ) -> dict[int, str]:
        if not self._processors.needed(lines.rows, argmax_invariant=argmax_invariant):
            return {}
        return self._processors.apply(
            logits, lines.rows, lines.device_rows, batch, argmax_invariant=argmax_invariant
        )

    def _penalise(
        self,
        logits: Tensor,
        lines: _Lines,
        which: Tensor,
        slots: Tensor,
        width: int,
        batch: BatchView,
    ) -> None:
        rows = lines.device_rows[which]
        tokens = batch.token_ids[rows, :width].long()
        # Past its end a row lists its first token again.
        past = torch.arange(width, device=self._device) >= batch.num_tokens[rows].unsqueeze(1)
        tokens = torch.where(past, tokens[:, :1], tokens)
        columns = [
            self._columns.device(name, rows)
            for name in ("repetition_penalty", "presence_penalty", "frequency_penalty")
        ]
        all_lines = len(which) == logits.shape[0]
        part = logits if all_lines else logits[which]
        self._apply_penalties(part, tokens, self._penalties.of_tokens(slots, tokens), *columns)
        if not all_lines:
            logits[which] = part

    def _choose(
        self, logits: Tensor, lines: _Lines, batch: BatchView
    ) -> tuple[Tensor, Tensor, Tensor, dict[int, str]]:
        """Return tokens [n], the processed logits, faulty lines [n], and faults known at once."""
        random = np.flatnonzero(self._columns.host("temperature", lines.rows_cpu) > 0)
        if len(random) == 0:
            greatest, tokens = self._most_likely(logits)
            faulty = ~torch.isfinite(greatest)
            return tokens, logits, faulty, {}
        if len(random) == len(lines.rows):
            tokens, faulty, processed, faults = self._draw(logits, lines, batch)
            return tokens, processed, faulty, faults
        greatest, tokens = self._most_likely(logits)
        faulty = ~torch.isfinite(greatest)
        which = torch.from_numpy(random).to(self._device, non_blocking=True)
        part = _Lines(lines.rows_cpu[random], self._device)
        drawn, bad, processed, faults = self._draw(logits[which], part, batch)
        tokens[which] = drawn
        faulty[which] |= bad
        if not self._mode.startswith("raw"):
            logits[which] = processed
        return tokens, logits, faulty, faults

    def _draw(
        self, logits: Tensor, lines: _Lines, batch: BatchView
    ) -> tuple[Tensor, Tensor, Tensor, dict[int, str]]:
        """Return tokens, faulty lines, processed logits and faults of random lines."""
        rows, host = lines.device_rows, lines.rows_cpu
        logits = logits / self._columns.device("temperature", rows).unsqueeze(1)
        faults = self._run_processors(logits, lines, batch, argmax_invariant=True)
        faulty = ~torch.isfinite(logits.amax(dim=1))
        columns = self._columns
        if (
            (columns.host("top_p", host) < 1).any()
            or columns.host("top_k", host).any()
            or columns.host("min_p", host).any()
        ):
            self._keep_likely(
                logits,
                columns.device("top_k", rows).int(),
                columns.device("top_p", rows),
                columns.device("min_p", rows),
            )
        position = (batch.num_tokens[rows] - batch.num_prompt_tokens[rows]).long()
        uniforms = self._philox_uniform(columns.device("seed", rows), position, STREAM_SAMPLE)
        tokens = self._draw_tokens(logits, uniforms).masked_fill_(faulty, 0)
        return tokens, faulty, logits, faults

    def _logprobs(
        self, raw: Tensor | None, processed: Tensor, lines: _Lines, tokens: Tensor
    ) -> LineLogprobs | None:
        wanting = self._wanting(lines)
        if not wanting:
            return None
        which = torch.tensor(wanting, device=self._device)
        logits = processed[which] if raw is None else raw
        wanted = [self._wanted[lines.rows[line]] for line in wanting]
        return gather_logprobs(logits, tokens[which], wanted, self._mode)


def _apply_grammar(logits: Tensor, lines: list[int], masks: NDArray[np.int32]) -> None:
    """Mask what a grammar forbids: bit j of word i of a mask stands for token 32 * i + j."""
    bits = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")[:, : logits.shape[1]]
    forbidden = torch.from_numpy(bits == 0).to(logits.device)
    which = torch.tensor(lines, device=logits.device)
    logits[which] = logits[which].masked_fill(forbidden, -torch.inf)
