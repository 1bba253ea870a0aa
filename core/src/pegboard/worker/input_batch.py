"""The persistent batch: what the device holds of every running request, changed by diffs.

Token values live on the device only, since a sampled token may be used before the host has seen
it. Their counts are known on both sides: every sampling row gets exactly one token.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pegboard.api.errors import StepError
from pegboard.api.messages import NewRequest, SchedulerOutput
from pegboard.api.ops import OpTable
from pegboard.worker.row_writes import RowWrites

__all__ = ["InputBatch", "StepInputs"]


class StepInputs:
    """The inputs of one step. Tensors are views of persistent buffers, valid until the next step.

    Attributes:
        rows_cpu, num_scheduled_cpu, start_cpu: [num_reqs] int64; each request's row, new tokens,
            and computed tokens before the step.
        query_start_cpu: [num_reqs + 1] int32.
        sample_lines: [n] int64; the requests that sample, as indices into `rows_cpu`.
        num_decodes: leading requests with one new token.
        max_query_len, max_seq_len: over the step's requests.
        rows: [num_reqs] int64.
        input_ids, positions, requests: [num_tokens] int64; `requests` is each token's request.
        query_start_loc: [num_reqs + 1] int32.
        seq_lens: [num_reqs] int32.
        seq_lens_cpu: [num_reqs] int32 on the host.
    """

    __slots__ = (
        "input_ids",
        "max_query_len",
        "max_seq_len",
        "num_decodes",
        "num_scheduled_cpu",
        "positions",
        "query_start_cpu",
        "query_start_loc",
        "requests",
        "rows",
        "rows_cpu",
        "sample_lines",
        "seq_lens",
        "seq_lens_cpu",
        "start_cpu",
    )

    rows_cpu: NDArray[np.int64]
    num_scheduled_cpu: NDArray[np.int64]
    start_cpu: NDArray[np.int64]
    query_start_cpu: NDArray[np.int32]
    sample_lines: NDArray[np.int64]
    num_decodes: int
    max_query_len: int
    max_seq_len: int
    rows: Tensor
    input_ids: Tensor
    positions: Tensor
    requests: Tensor
    query_start_loc: Tensor
    seq_lens: Tensor
    seq_lens_cpu: Tensor


class InputBatch:
    """Rows of running requests.

    Attributes:
        token_ids: [max_num_rows, max_model_len + 1] int32.
        num_tokens, num_prompt_tokens, num_computed_tokens: [max_num_rows] int32, on the device.
        num_tokens_cpu, num_prompt_cpu, num_computed_cpu: the same on the host, int64; tokens
            count as soon as the step that samples them is prepared.
        request_ids: of each row; None where it is free.
    """

    __slots__ = (
        "_append_tokens",
        "_count_writes",
        "_input_ids",
        "_num_scheduled",
        "_positions",
        "_prepare_inputs",
        "_query_start_loc",
        "_requests",
        "_rows",
        "_seq_lens",
        "_taken",
        "_token_writes",
        "device",
        "num_computed_cpu",
        "num_computed_tokens",
        "num_prompt_cpu",
        "num_prompt_tokens",
        "num_tokens",
        "num_tokens_cpu",
        "request_ids",
        "token_ids",
    )

    def __init__(
        self,
        *,
        max_num_rows: int,
        max_num_tokens: int,
        max_model_len: int,
        device: torch.device,
        ops: OpTable,
    ) -> None:
        """Make every buffer; steps write them in place."""
        self.device = device
        # Zeros, so that a step that runs on after a failed one reads valid ids.
        self.token_ids = torch.zeros(
            (max_num_rows, max_model_len + 1), dtype=torch.int32, device=device
        )
        counts = torch.zeros((3, max_num_rows), dtype=torch.int32, device=device)
        self.num_tokens, self.num_prompt_tokens, self.num_computed_tokens = counts.unbind(0)
        self._token_writes = RowWrites(self.token_ids)
        self._count_writes = [RowWrites(column.unsqueeze(1)) for column in counts]
        self.num_tokens_cpu: NDArray[np.int64] = np.zeros(max_num_rows, np.int64)
        self.num_prompt_cpu: NDArray[np.int64] = np.zeros(max_num_rows, np.int64)
        self.num_computed_cpu: NDArray[np.int64] = np.zeros(max_num_rows, np.int64)
        self.request_ids: list[str | None] = [None] * max_num_rows
        self._taken: NDArray[np.bool_] = np.zeros(max_num_rows, np.bool_)
        self._input_ids = torch.zeros(max_num_tokens, dtype=torch.int64, device=device)
        self._positions = torch.zeros_like(self._input_ids)
        self._requests = torch.zeros_like(self._input_ids)
        self._rows = torch.zeros(max_num_rows, dtype=torch.int64, device=device)
        self._num_scheduled = torch.zeros(max_num_rows, dtype=torch.int32, device=device)
        self._seq_lens = torch.zeros_like(self._num_scheduled)
        self._query_start_loc = torch.zeros(max_num_rows + 1, dtype=torch.int32, device=device)
        self._prepare_inputs = ops["prepare_inputs"]
        self._append_tokens = ops["append_tokens"]

    def add_row(self, request: NewRequest) -> None:
        """Take a request in, whole."""
        row, count = request.row, len(request.token_ids)
        self._token_writes.forget(row)
        self._token_writes.write(row, 0, request.token_ids)
        counts = (count, request.num_prompt_tokens, request.num_computed_tokens)
        for writes, number in zip(self._count_writes, counts, strict=True):
            writes.write(row, 0, number)
        self.num_tokens_cpu[row] = count
        self.num_prompt_cpu[row] = request.num_prompt_tokens
        self.num_computed_cpu[row] = request.num_computed_tokens
        self.request_ids[row] = request.request_id
        self._taken[row] = True

    def remove_row(self, row: int) -> None:
        """Free a row; what it held is overwritten by the next request."""
        self.request_ids[row] = None
        self._taken[row] = False

    def plan(self, step: SchedulerOutput) -> StepInputs:
        """Fill in what the host knows of a step, and advance its rows on the host.

        `fill`, or a captured graph that does the same, must follow.

        Raises:
            StepError: the step names a free row, or gives a row more tokens than it has.
        """
        inputs = StepInputs()
        inputs.rows_cpu = rows = np.asarray(step.rows, np.int64)
        inputs.num_scheduled_cpu = scheduled = np.asarray(step.num_scheduled_tokens, np.int64)
        inputs.start_cpu = start = self.num_computed_cpu[rows]
        reach = start + scheduled
        self._check(step, reach)
        sampling = reach == self.num_tokens_cpu[rows]
        inputs.sample_lines = np.flatnonzero(sampling)
        inputs.query_start_cpu = np.zeros(len(rows) + 1, np.int32)
        np.cumsum(scheduled, out=inputs.query_start_cpu[1:])
        longer = np.flatnonzero(scheduled != 1)
        inputs.num_decodes = int(longer[0]) if len(longer) else len(rows)
        inputs.max_query_len, inputs.max_seq_len = int(scheduled.max()), int(reach.max())
        inputs.seq_lens_cpu = torch.from_numpy(reach.astype(np.int32))
        self.num_computed_cpu[rows] = reach
        self.num_tokens_cpu[rows[sampling]] += 1
        return inputs

    def flush(self) -> None:
        """Queue what rows that came in hold; before anything on the device reads it."""
        self._token_writes.flush()
        for writes in self._count_writes:
            writes.flush()

    def append(self, rows: Tensor, token_ids: Tensor) -> None:
        """Write the sampled tokens of a step; both [n] int64 on the device."""
        self._append_tokens(self.token_ids, self.num_tokens, rows, token_ids)

    def _check(self, step: SchedulerOutput, reach: NDArray[np.int64]) -> None:
        rows = np.asarray(step.rows, np.int64)
        free = np.flatnonzero(~self._taken[rows])
        if len(free):
            row = step.rows[free[0]]
            raise StepError(f"step {step.step_id} schedules row {row}, which holds no request")
        past = np.flatnonzero(reach > self.num_tokens_cpu[rows])
        if len(past):
            row = step.rows[past[0]]
            raise StepError(
                f"step {step.step_id} schedules row {row} up to token {reach[past[0]]}; it has "
                f"{self.num_tokens_cpu[row]}"
            )

    def fill(self, inputs: StepInputs) -> None:
        """Build a step's inputs on the device and advance its rows there."""
        self.flush()
        num_reqs, num_tokens = len(inputs.rows_cpu), int(inputs.query_start_cpu[-1])
        inputs.rows = self._rows[:num_reqs]
        inputs.rows.copy_(torch.from_numpy(inputs.rows_cpu), non_blocking=True)
        scheduled = self._num_scheduled[:num_reqs]
        scheduled.copy_(torch.from_numpy(inputs.num_scheduled_cpu), non_blocking=True)
        inputs.query_start_loc = self._query_start_loc[: num_reqs + 1]
        inputs.query_start_loc.copy_(torch.from_numpy(inputs.query_start_cpu), non_blocking=True)
        inputs.input_ids = self._input_ids[:num_tokens]
        inputs.positions = self._positions[:num_tokens]
        inputs.requests = self._requests[:num_tokens]
        inputs.seq_lens = self._seq_lens[:num_reqs]
        self._prepare_inputs(
            self.token_ids,
            self.num_computed_tokens,
            inputs.rows,
            scheduled,
            inputs.query_start_loc,
            inputs.input_ids,
            inputs.positions,
            inputs.requests,
            inputs.seq_lens,
        )
