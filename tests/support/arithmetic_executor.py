"""An executor whose model is arithmetic: the next token is a function of the tokens so far.

It keeps rows as a model runner does and checks what the scheduler tells it, so that a mistake in
rows, counts or block ids shows as a failed step or as another text.
"""

import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tests.support.arithmetic_parts import VOCAB_SIZE

from pegboard.api.engine import Executor, StepHandle
from pegboard.api.errors import ModelError, StepError, WorkerError
from pegboard.api.kv import KVGroup, KVLayerNeed
from pegboard.api.messages import SchedulerOutput, StepOutput, TokenLogprobs
from pegboard.api.plugin import ComponentContext

_LAYERS = 4


def next_token(token_ids: Sequence[int], seed: int = 0) -> int:
    """The model: printable text that depends on every token before it."""
    value = seed
    for token in token_ids:
        value = (value * 31 + token + 7) % 1_000_003
    return 97 + value % 26


class Row:
    def __init__(self, token_ids: list[int], computed: int, params: Any) -> None:
        self.token_ids = list(token_ids)
        self.computed = computed
        self.params = params


class Handle:
    def __init__(self, step: SchedulerOutput) -> None:
        self.step_id = step.step_id
        self.step = step


class FakeExecutor(Executor):
    """One thread, in order. `collective_rpc` breaks it on request."""

    def __init__(self, context: ComponentContext) -> None:
        super().__init__(context)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="fake-step")
        self._rows: dict[int, Row] = {}
        self._fail_next = ""
        self._gate = threading.Event()
        self._gate.set()
        self._on_failure: Callable[[str], None] = lambda cause: None
        self._num_blocks = 0
        self.steps: list[SchedulerOutput] = []

    def start(self) -> None:
        pass

    def kv_needs(self) -> list[KVLayerNeed]:
        return [KVLayerNeed(layer=i, group_type="full", bytes_per_token=64) for i in range(_LAYERS)]

    def available_kv_bytes(self) -> int:
        return 1 << 20

    def initialize_kv(self, groups: Sequence[KVGroup], num_blocks: int) -> None:
        self._num_blocks = num_blocks

    def execute(self, step: SchedulerOutput) -> StepHandle:
        if self._fail_next == "execute":
            self._fail_next = ""
            self._pool.submit(self._update_rows, step).result()
            raise StepError("the step was told to fail")
        return Handle(step)

    def sample(self, handle: StepHandle, grammar_masks: bytes | None = None) -> Future[StepOutput]:
        assert isinstance(handle, Handle)
        return self._pool.submit(self._run, handle.step)

    def _run(self, step: SchedulerOutput) -> StepOutput:
        self._gate.wait(30)
        self._update_rows(step)
        fail, self._fail_next = self._fail_next, ""
        output = StepOutput(step_id=step.step_id)
        for row_id, count in zip(step.rows, step.num_scheduled_tokens, strict=True):
            row = self._rows[row_id]
            row.computed += count
            assert row.computed <= len(row.token_ids), "computed past what is known"
            sampled: list[int] = []
            if row.computed == len(row.token_ids):
                token = next_token(row.token_ids, row.params.seed or 0)
                row.token_ids.append(token)
                sampled = [token]
                if row.params.logprobs is not None:
                    entry = TokenLogprobs([token, 65], [-0.5, -1.5], [1, 2])
                    output.logprobs[row_id] = [entry]
            output.sampled_token_ids.append(sampled)
        if fail == "sample":
            raise StepError("the step was told to fail")
        if fail == "fault" and step.rows:
            output.faults[step.rows[0]] = "the row was told to fail"
        return output

    def _update_rows(self, step: SchedulerOutput) -> None:
        for row in (*step.finished_rows, *step.preempted_rows):
            del self._rows[row]
        for new in step.new_requests:
            assert new.row not in self._rows, f"row {new.row} is taken"
            self._rows[new.row] = Row(new.token_ids, new.num_computed_tokens, new.sampling)

    def collective_rpc(
        self, method: str, args: Sequence[Any] = (), timeout_s: float | None = None
    ) -> list[Any]:
        if method == "fail_next":
            self._fail_next = args[0]
        elif method == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif method == "lose_worker":
            self._on_failure("worker 0 (pid 1) was told to die")
        elif method == "hold":
            self._gate.clear()
        elif method == "go":
            self._gate.set()
        elif method != "ping":
            raise WorkerError(f"workers have no method {method!r}")
        return [list(args), VOCAB_SIZE]

    def on_failure(self, callback: Callable[[str], None]) -> None:
        self._on_failure = callback

    def shutdown(self) -> None:
        self._gate.set()
        self._pool.shutdown(wait=True)


class BrokenExecutor(FakeExecutor):
    """Cannot start."""

    def start(self) -> None:
        raise ModelError("weights of layer 3 are torn")
