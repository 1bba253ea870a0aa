"""The scheduler under random arrivals, lengths, aborts, faults and memory pressure.

Whatever happens, each request's output is what a lone request would give, and the books balance.
"""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.support.scheduling import (
    Engine,
    FakeDevice,
    full_group,
    make_kv,
    make_request,
    make_scheduler,
    window_group,
)

from pegboard.api.kv import KVGroup
from pegboard.api.messages import EngineCoreRequest

MAX_MODEL_LEN = 48
EXAMPLES = 12
EOS = 5_000
STOP = 6_000

GROUPS: dict[str, list[KVGroup]] = {
    "full": [full_group(4)],
    "window": [window_group(6, 4, (0,))],
    "hybrid": [full_group(4), window_group(6, 4, (1,)), window_group(9, 2, (2,))],
}


def lone_output(request: EngineCoreRequest, device: FakeDevice) -> tuple[list[int], str]:
    """What the request gives if nothing disturbs it, by the rules as they are written."""
    params, output = request.sampling, []
    while True:
        position = len(request.prompt_token_ids) + len(output)
        output.append(device.sample(request.request_id, position))
        if len(output) > params.min_tokens and output[-1] in (EOS, STOP):
            return output, "stop"
        if len(output) == params.max_tokens or position + 1 == MAX_MODEL_LEN:
            return output, "length"


class SchedulerMachine(RuleBasedStateMachine):
    depth = 1
    groups = "full"
    num_drafts = 0

    @initialize(
        spare_blocks=st.integers(0, 25),
        budget=st.integers(4, 40),
        max_num_seqs=st.integers(1, 6),
        threshold=st.sampled_from([0, 0, 3, 10]),
        policy=st.sampled_from(["fcfs", "priority"]),
        watermark=st.sampled_from([0.0, 0.1]),
        caching=st.sampled_from([True, True, False]),
    )
    def start(
        self,
        spare_blocks: int,
        budget: int,
        max_num_seqs: int,
        threshold: int,
        policy: str,
        watermark: float,
        caching: bool,
    ) -> None:
        groups = GROUPS[self.groups]
        # The longest sequence fits alone, with the null block; others make it tight.
        num_blocks = 1 + spare_blocks + sum(MAX_MODEL_LEN // g.block_size for g in groups)
        self.kv = make_kv(num_blocks, groups, enable_prefix_caching=caching)
        self.scheduler = make_scheduler(
            self.kv,
            max_num_batched_tokens=budget,
            max_num_seqs=max_num_seqs,
            max_model_len=MAX_MODEL_LEN,
            policy=policy,
            async_scheduling=self.depth > 1,
            long_prefill_token_threshold=threshold,
            watermark=watermark,
            num_drafts_wanted=self.num_drafts,
            max_steps_in_flight=self.depth,
        )
        self.device = FakeDevice(groups, max_num_seqs=max_num_seqs, budget=budget)
        self.device.num_drafts = self.num_drafts
        self.engine = Engine(self.scheduler, self.device, self.depth)
        self.requests: dict[str, EngineCoreRequest] = {}
        self.aborted: set[str] = set()

    @rule(
        base=st.integers(0, 2),
        length=st.integers(1, MAX_MODEL_LEN - 1),
        max_tokens=st.integers(1, 24),
        min_tokens=st.integers(0, 4),
        priority=st.integers(0, 2),
        salt=st.sampled_from([None, None, "a"]),
        stop_after=st.integers(1, 40),
        stop_token=st.sampled_from([EOS, STOP]),
        skip_cache=st.booleans(),
    )
    def add(self, **draw: Any) -> None:
        self._add(**draw)

    @rule(count=st.integers(2, 5), length=st.integers(20, 40))
    def add_burst(self, count: int, length: int) -> None:
        for _ in range(count):
            self._add(base=0, length=length)

    def _add(
        self,
        base: int,
        length: int,
        max_tokens: int = 12,
        min_tokens: int = 0,
        priority: int = 0,
        salt: str | None = None,
        stop_after: int = 40,
        stop_token: int = EOS,
        skip_cache: bool = False,
    ) -> None:
        request_id = f"r{len(self.requests)}"
        request = make_request(
            request_id,
            [base * 100 + position for position in range(length)],
            max_tokens=max_tokens,
            min_tokens=min(min_tokens, max_tokens),
            priority=priority,
            cache_salt=salt,
            eos_token_ids=[EOS],
            stop_token_ids=[STOP],
            skip_reading_prefix_cache=skip_cache,
            arrival_time=float(len(self.requests)),
        )
        self.device.forced[request_id, length + stop_after] = stop_token
        # One that comes too early is masked by a real sampler; here it is just not an end.
        self.device.forced[request_id, length] = EOS if min_tokens > 1 else 1
        self.requests[request_id] = request
        self.scheduler.add(request)

    @rule(turns=st.integers(1, 6))
    def turn(self, turns: int) -> None:
        for _ in range(turns):
            self.engine.turn()

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), count=st.integers(1, 4))
    def abort(self, data: st.DataObject, count: int) -> None:
        ids = data.draw(st.lists(st.sampled_from(sorted(self.requests)), max_size=count))
        before = {i for i in ids if self.engine.finish_reason(i) is None}
        outputs = self.scheduler.abort([*dict.fromkeys(ids), "unknown"])
        assert {output.request_id for output in outputs} == before
        assert {output.finish_reason for output in outputs} <= {"abort"}
        self.engine.take(outputs)

    @precondition(lambda self: len(self.engine.in_flight) < self.depth)
    @rule()
    def fail_step(self) -> None:
        self.engine.schedule(fails=True)

    @precondition(lambda self: self.device.rows)
    @rule(data=st.data())
    def fault_row(self, data: st.DataObject) -> None:
        names = sorted(row.request_id for row in self.device.rows.values())
        self.device.fault_rows = {data.draw(st.sampled_from(names))}

    @rule(restart=st.booleans())
    def reset_prefix_cache(self, restart: bool) -> None:
        done = self.scheduler.reset_prefix_cache(reset_running_requests=restart)
        assert done == (restart or self.scheduler.stats().num_running == 0) or not restart
        if done:
            assert self.kv.pool.num_cached == 0

    @invariant()
    def books_balance(self) -> None:
        assert self.scheduler.audit() == []

    @invariant()
    def outputs_are_those_of_a_lone_request(self) -> None:
        for request_id, request in self.requests.items():
            self._check_output(request_id, request)

    def _check_output(self, request_id: str, request: EngineCoreRequest) -> None:
        tokens = self.engine.tokens(request_id)
        expected, reason = lone_output(request, self.device)
        got = self.engine.finish_reason(request_id)
        assert tokens == expected[: len(tokens)]
        if got is None:
            assert len(tokens) < len(expected)
        elif got not in ("abort", "error"):
            assert (tokens, got) == (expected, reason)
        for output in self.engine.outputs.get(request_id, [])[:-1]:
            assert output.finish_reason is None, "something comes after the end"

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.device.fault_rows = set()
        self.engine.run()
        for request_id, request in self.requests.items():
            assert self.engine.finish_reason(request_id) is not None
            self._check_output(request_id, request)
        assert self.scheduler.audit() == []
        stats = self.scheduler.stats()
        assert stats.num_free_blocks == self.kv.pool.num_blocks - 1
        assert (stats.num_running, stats.num_waiting, stats.num_waiting_tokens) == (0, 0, 0)


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("num_drafts", [0, 3])
def test_every_output_is_that_of_a_lone_request(groups: str, depth: int, num_drafts: int) -> None:
    machine = type(
        "Machine",
        (SchedulerMachine,),
        {"groups": groups, "depth": depth, "num_drafts": num_drafts},
    )
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
