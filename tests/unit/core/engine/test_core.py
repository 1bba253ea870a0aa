"""The loop over a real scheduler and a model that is arithmetic."""

import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.arithmetic import fake_config
from tests.support.arithmetic_executor import FakeExecutor, next_token

from pegboard.api.errors import EngineDead
from pegboard.api.messages import EngineCoreOutputs, EngineCoreRequest, UtilityCall
from pegboard.api.sampling_params import SamplingParams
from pegboard.engine.core_start import Phases, StartedCore, start_core
from pegboard.engine.wire import Wish

_WAIT_S = 20


class Loop:
    """A core on a thread; what it sends is kept by request."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        config, catalog = fake_config(folder, **settings)
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.sent: queue.SimpleQueue[EngineCoreOutputs] = queue.SimpleQueue()
        self.clients: list[int] = []
        self.error: BaseException | None = None
        self.phases: list[str] = []
        self.started: StartedCore = start_core(
            config,
            catalog,
            inbox=self.inbox,
            send=self._send,
            phases=Phases(lambda progress: self.phases.append(progress.phase)),
        )
        self.tokens: dict[str, list[int]] = {}
        self.reasons: dict[str, Any] = {}
        self.errors: dict[str, Any] = {}
        self.stats: Any = None
        self.dead: str | None = None
        self.answers: dict[int, Any] = {}
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def executor(self) -> FakeExecutor:
        assert isinstance(self.started.executor, FakeExecutor)
        return self.started.executor

    def _send(self, client: int, outputs: EngineCoreOutputs) -> None:
        self.clients.append(client)
        self.sent.put(outputs)

    def _run(self) -> None:
        try:
            self.started.core.run()
        except BaseException as error:
            self.error = error

    def add(self, request_id: str, prompt: list[int], client: int = 0, **params: Any) -> None:
        defaults = {"temperature": 0.0, "seed": 0, "max_tokens": 12, "ignore_eos": True}
        sampling = SamplingParams(**{**defaults, **params})
        self.inbox.put(
            (
                Wish.ADD,
                EngineCoreRequest(
                    request_id=request_id,
                    prompt_token_ids=prompt,
                    sampling=sampling,
                    client_index=client,
                ),
            )
        )

    def wait_for(self, *request_ids: str) -> None:
        while not all(r in self.reasons for r in request_ids):
            self._take()

    def call(self, method: str, *args: Any) -> Any:
        call_id = len(self.answers) + 1
        self.inbox.put((Wish.CALL, UtilityCall(call_id=call_id, method=method, args=list(args))))
        while call_id not in self.answers:
            self._take()
        return self.answers[call_id]

    def _take(self) -> None:
        message = self.sent.get(timeout=_WAIT_S)
        if message.utility_result is not None:
            self.answers[message.utility_result.call_id] = message.utility_result
        if message.stats is not None:
            self.stats = message.stats
        self.dead = message.engine_dead or self.dead
        for output in message.outputs:
            self.tokens.setdefault(output.request_id, []).extend(output.new_token_ids)
            if output.finish_reason is not None:
                assert output.request_id not in self.reasons, "ended twice"
                self.reasons[output.request_id] = output.finish_reason
                self.errors[output.request_id] = output.error

    def stop(self) -> None:
        self.inbox.put((Wish.STOP, None))
        self._thread.join(_WAIT_S)
        assert not self._thread.is_alive()
        self.executor.shutdown()


def _expected(prompt: list[int], count: int) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        ids.append(next_token(ids))
    return ids[len(prompt) :]


@pytest.fixture(params=[True, False], ids=["async", "sync"])
def loop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Loop]:
    made = Loop(tmp_path, async_scheduling=request.param)
    yield made
    made.stop()


def test_mixed_requests_get_the_tokens_of_each_alone(loop: Loop) -> None:
    prompts = {f"r{i}": [(7 * i + j) % 250 for j in range(1 + 13 * i)] for i in range(14)}
    for name, prompt in prompts.items():
        loop.add(name, prompt)
    loop.wait_for(*prompts)
    for name, prompt in prompts.items():
        assert loop.tokens[name] == _expected(prompt, 12), name
    assert set(loop.reasons.values()) == {"length"}


def test_blocks_return_when_all_is_done(loop: Loop) -> None:
    before = loop.call("stats").value["num_free_blocks"]
    for i in range(10):
        loop.add(f"r{i}", [i] * 40)
    loop.wait_for(*(f"r{i}" for i in range(10)))
    after = loop.call("stats").value
    assert after["num_free_blocks"] == before
    assert (after["num_running"], after["num_waiting"]) == (0, 0)


def test_abort_storm_at_every_state_returns_all_blocks(loop: Loop) -> None:
    before = loop.call("stats").value["num_free_blocks"]
    for turn in range(6):
        names = [f"t{turn}r{i}" for i in range(20)]
        for i, name in enumerate(names):
            loop.add(name, [i + turn] * (1 + 11 * i), max_tokens=200)
            if i % 3 == 0:
                loop.inbox.put((Wish.ABORT, [name]))  # while it waits
        for _ in range(turn):
            loop._take()
        loop.inbox.put((Wish.ABORT, [*names, "unknown"]))
        loop.wait_for(*names)
        assert {loop.reasons[n] for n in names} <= {"abort", "length"}
    loop.add("last", [3, 4, 5])
    loop.wait_for("last")
    assert loop.tokens["last"] == _expected([3, 4, 5], 12)
    assert loop.call("stats").value["num_free_blocks"] == before


def test_preemption_does_not_change_tokens(tmp_path: Path) -> None:
    for async_scheduling in (True, False):
        loop = Loop(
            tmp_path,
            async_scheduling=async_scheduling,
            max_model_len=160,
            num_gpu_blocks_override=14,
        )
        try:
            prompts = {f"r{i}": [(i + 3 * j) % 250 for j in range(20 + i)] for i in range(8)}
            for name, prompt in prompts.items():
                loop.add(name, prompt, max_tokens=60)
            loop.wait_for(*prompts)
            for name, prompt in prompts.items():
                assert loop.tokens[name] == _expected(prompt, 60), name
            stats = loop.call("stats").value
            assert stats["num_preemptions"] > 0
            assert stats["num_free_blocks"] == 13
        finally:
            loop.stop()


@pytest.mark.parametrize("where", ["execute", "sample"])
def test_step_that_fails_takes_its_requests_and_no_others(loop: Loop, where: str) -> None:
    before = loop.call("stats").value["num_free_blocks"]
    assert loop.call("collective_rpc", "fail_next", [where]).error is None
    loop.add("lost", [1, 2, 3])
    loop.wait_for("lost")
    assert loop.reasons["lost"] == "error"
    assert "told to fail" in loop.errors["lost"]
    loop.add("next", [1, 2, 3])
    loop.wait_for("next")
    assert loop.tokens["next"] == _expected([1, 2, 3], 12)
    assert loop.call("stats").value["num_free_blocks"] == before


def test_fault_of_one_row_fails_that_request_alone(loop: Loop) -> None:
    loop.call("collective_rpc", "hold", [])
    loop.add("a", [9, 9])
    loop.add("b", [8, 8])
    loop.call("collective_rpc", "fail_next", ["fault"])
    loop.call("collective_rpc", "go", [])
    loop.wait_for("a", "b")
    assert sorted(loop.reasons.values()) == ["error", "length"]


def test_request_that_the_scheduler_refuses_fails_alone(loop: Loop) -> None:
    loop.add("twice", [5] * 30, max_tokens=100)
    loop.add("twice", [6] * 30)
    loop.add("fine", [1, 2])
    loop.wait_for("fine", "twice")
    assert loop.reasons["fine"] == "length"


def test_dead_worker_ends_the_loop_and_says_so(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    loop.add("r", [1, 2], max_tokens=500)
    loop.inbox.put(
        (Wish.CALL, UtilityCall(call_id=9, method="collective_rpc", args=["lose_worker"]))
    )
    loop._thread.join(_WAIT_S)
    while loop.dead is None:
        loop._take()
    assert "told to die" in loop.dead
    assert isinstance(loop.error, EngineDead)
    loop.executor.shutdown()


def test_utilities_answer_by_name_and_refuse_what_they_do_not_know(loop: Loop) -> None:
    assert loop.call("reset_prefix_cache").value is True
    assert loop.call("collective_rpc", "ping", [1, "x"]).value == [[1, "x"], 258]
    unknown = loop.call("format_disk")
    assert "format_disk" in unknown.error
    assert "reset_prefix_cache" in unknown.error
    assert "no method" in loop.call("collective_rpc", "nope").error
    assert "TypeError" in loop.call("stats", 1, 2, 3).error


def test_each_front_end_gets_its_own_outputs_and_the_first_the_statistics(loop: Loop) -> None:
    loop.add("mine", [1], client=0)
    loop.add("other", [2], client=3)
    loop.wait_for("mine", "other")
    assert {0, 3} == set(loop.clients)


def test_start_is_told_in_phases(loop: Loop) -> None:
    assert loop.phases == ["load model", "plan memory", "allocate and warm up"]
    assert loop.started.ready.num_blocks == 200
    assert loop.started.ready.phases.keys() == set(loop.phases)
