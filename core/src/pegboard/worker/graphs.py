"""Captured decode steps: one token a row, replayed instead of launched kernel by kernel.

A graph does everything between the rows of a step and its logits, input preparation included, on
persistent buffers; a second one takes the most likely tokens and appends them. Batches are padded
to the next captured size with rows of -1, which write nothing. While the rows stay the same a
step sends nothing to the device but the blocks that were added.
"""

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pegboard.api.forward_context import enter_forward_context
from pegboard.api.models import Model
from pegboard.api.ops import OpTable
from pegboard.api.platforms import Platform
from pegboard.worker.attention_groups import AttentionGroups
from pegboard.worker.input_batch import InputBatch, StepInputs
from pegboard.worker.row_writes import upload

__all__ = ["CapturedStep", "DecodeGraphs", "capture_sizes"]

logger = logging.getLogger(__name__)


class CapturedStep(NamedTuple):
    """The graphs of one batch size.

    Attributes:
        forward: replays a step up to `logits`.
        greedy: replays the choice of the most likely tokens and appends them to their rows.
        logits: [size, vocab] float32.
        tokens: [size] int64; what `greedy` chose, -1 where a row's logits are not finite.
    """

    forward: Callable[[], None]
    greedy: Callable[[], None]
    logits: Tensor
    tokens: Tensor


def capture_sizes(max_num_rows: int) -> list[int]:
    """Return batch sizes to capture: steps of at most a quarter, so that padding stays cheap."""
    sizes, size = [], 1
    while size < max_num_rows:
        sizes.append(size)
        size += max(1, 1 << max(0, size.bit_length() - 3))
    return [*sizes, max_num_rows]


class DecodeGraphs:
    """The captured steps of one runner; none until `capture`."""

    def __init__(
        self, batch: InputBatch, attention: AttentionGroups, model: Model, ops: OpTable
    ) -> None:
        """Keep the parts; allocates nothing."""
        self._batch = batch
        self._attention = attention
        self._model = model
        self._prepare_inputs = ops["prepare_inputs"]
        self._append_tokens = ops["append_tokens"]
        self._most_likely = ops["most_likely"]
        self._steps: dict[int, CapturedStep] = {}
        self._size_of: NDArray[np.int64] = np.zeros(0, np.int64)
        self._rows_cpu: NDArray[np.int64] = np.zeros(0, np.int64)
        self._rows: Tensor
        self._inputs: StepInputs
        self._scheduled: Tensor

    def capture(self, platform: Platform, sizes: list[int]) -> None:
        """Capture every size, the largest first, so that smaller ones fit its memory.

        Args:
            platform: that captures.
            sizes: ascending.
        """
        start = time.perf_counter()
        self._make_buffers(sizes[-1])
        for size in reversed(sizes):
            self._steps[size] = self._captured(platform, size)
        places = np.searchsorted(sizes, np.arange(sizes[-1] + 1))
        self._size_of = np.asarray(sizes, np.int64)[places]
        logger.info("graphs=%d capture_s=%.2f", len(sizes), time.perf_counter() - start)

    def takes(self, inputs: StepInputs) -> bool:
        """Return whether a step can be replayed: decodes alone, all of which sample."""
        num_reqs = len(inputs.rows_cpu)
        return (
            num_reqs < len(self._size_of)
            and inputs.num_decodes == num_reqs
            and len(inputs.sample_lines) == num_reqs
        )

    def replay(self, inputs: StepInputs) -> CapturedStep:
        """Queue a step up to its logits; the leading lines are the step's rows."""
        rows = inputs.rows_cpu
        size = int(self._size_of[len(rows)])
        self._batch.flush()
        self._attention.flush()
        if not np.array_equal(rows, self._rows_cpu[:size][: len(rows)]) or self._is_stale(rows):
            self._send_rows(rows)
        step = self._steps[size]
        step.forward()
        return step

    def _is_stale(self, rows: NDArray[np.int64]) -> bool:
        """Whether lines behind the step's rows are not all padding."""
        return bool((self._rows_cpu[len(rows) :] >= 0).any())

    def _send_rows(self, rows: NDArray[np.int64]) -> None:
        self._rows_cpu = np.full(self._rows.shape[0], -1, np.int64)
        self._rows_cpu[: len(rows)] = rows
        self._rows.copy_(upload(self._rows_cpu, self._rows.device), non_blocking=True)

    def _make_buffers(self, size: int) -> None:
        device = self._batch.device
        self._rows = torch.full((size,), -1, dtype=torch.int64, device=device)
        self._rows_cpu = np.full(size, -1, np.int64)
        self._scheduled = torch.ones(size, dtype=torch.int32, device=device)
        self._inputs = inputs = StepInputs()
        inputs.query_start_loc = torch.arange(size + 1, dtype=torch.int32, device=device)
        inputs.input_ids = torch.zeros(size, dtype=torch.int64, device=device)
        inputs.positions = torch.zeros_like(inputs.input_ids)
        inputs.requests = torch.zeros_like(inputs.input_ids)
        inputs.seq_lens = torch.zeros(size, dtype=torch.int32, device=device)

    def _leading(self, size: int) -> StepInputs:
        """Return the buffers of a step of `size` decodes."""
        whole, inputs = self._inputs, StepInputs()
        inputs.rows_cpu = self._rows_cpu[:size]
        inputs.num_decodes, inputs.max_query_len = size, 1
        inputs.max_seq_len = self._batch.token_ids.shape[1] - 1
        inputs.rows = self._rows[:size]
        inputs.query_start_loc = whole.query_start_loc[: size + 1]
        inputs.input_ids = whole.input_ids[:size]
        inputs.positions = whole.positions[:size]
        inputs.requests = whole.requests[:size]
        inputs.seq_lens = whole.seq_lens[:size]
        return inputs

    def _captured(self, platform: Platform, size: int) -> CapturedStep:
        inputs = self._leading(size)
        outputs: dict[str, Tensor] = {}

        def forward() -> None:
            outputs["logits"] = self._forward(inputs)

        def greedy() -> None:
            outputs["tokens"] = self._greedy(inputs, outputs["logits"])

        forward()  # once outside, so that kernels are compiled and libraries are open
        greedy()
        platform.synchronize()
        replays = platform.capture_graph(forward), platform.capture_graph(greedy)
        return CapturedStep(*replays, outputs["logits"], outputs["tokens"])

    def _forward(self, inputs: StepInputs) -> Tensor:
        batch = self._batch
        self._prepare_inputs(
            batch.token_ids,
            batch.num_computed_tokens,
            inputs.rows,
            self._scheduled[: inputs.rows.shape[0]],
            inputs.query_start_loc,
            inputs.input_ids,
            inputs.positions,
            inputs.requests,
            inputs.seq_lens,
        )
        with enter_forward_context(self._attention.capture_context(inputs)):
            hidden = self._model(inputs.input_ids, inputs.positions)
        return self._model.compute_logits(hidden)

    def _greedy(self, inputs: StepInputs, logits: Tensor) -> Tensor:
        greatest, tokens = self._most_likely(logits)
        batch = self._batch
        self._append_tokens(batch.token_ids, batch.num_tokens, inputs.rows, tokens)
        return torch.where(torch.isfinite(greatest), tokens, -1)
