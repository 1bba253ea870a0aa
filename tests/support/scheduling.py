"""Factories and a fake device for tests of the KV manager and the scheduler."""

import hashlib
from collections import deque
from collections.abc import Sequence

from pegboard.api.kv import KVGroup, KVGroupType
from pegboard.api.messages import (
    EngineCoreOutput,
    EngineCoreRequest,
    NewRequest,
    SchedulerOutput,
    StepOutput,
)
from pegboard.api.plugin import ComponentContext
from pegboard.api.sampling_params import SamplingParams
from pegboard.config.engine import ResolvedSchedulerConfig
from pegboard.kv.groups.full import FullGroup
from pegboard.kv.groups.sliding_window import SlidingWindowGroup
from pegboard.kv.manager import KVCacheManager
from pegboard.scheduler.policies import Fcfs, Priority
from pegboard.scheduler.scheduler import Scheduler

VOCAB = 1000
GROUP_TYPES: dict[str, type[KVGroupType]] = {
    "full": FullGroup,
    "sliding_window": SlidingWindowGroup,
}


def full_group(block_size: int = 4, layers: Sequence[int] = (0,)) -> KVGroup:
    return KVGroup(group_type="full", layers=tuple(layers), block_size=block_size)


def window_group(window: int, block_size: int = 4, layers: Sequence[int] = (1,)) -> KVGroup:
    return KVGroup(
        group_type="sliding_window", layers=tuple(layers), block_size=block_size, window=window
    )


def make_kv(
    num_blocks: int = 64,
    groups: Sequence[KVGroup] | None = None,
    *,
    block_size: int = 4,
    enable_prefix_caching: bool = True,
) -> KVCacheManager:
    groups = [full_group(block_size)] if groups is None else groups
    return KVCacheManager(
        groups,
        num_blocks,
        [GROUP_TYPES[group.group_type](group) for group in groups],
        enable_prefix_caching=enable_prefix_caching,
    )


def make_request(
    request_id: str,
    prompt: Sequence[int] | int = 5,
    *,
    max_tokens: int | None = 4,
    arrival_time: float = 0.0,
    priority: int = 0,
    eos_token_ids: Sequence[int] = (),
    cache_salt: str | None = None,
    client_index: int = 0,
    **sampling: object,
) -> EngineCoreRequest:
    """Make a request; a number as its prompt means so many tokens that are its own."""
    if isinstance(prompt, int):
        first = int.from_bytes(hashlib.sha256(request_id.encode()).digest()[:2], "big")
        prompt = [(first + position) % VOCAB for position in range(prompt)]
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, seed=0, **sampling)
    return EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=list(prompt),
        sampling=params,
        eos_token_ids=list(eos_token_ids),
        arrival_time=arrival_time,
        priority=priority,
        cache_salt=cache_salt,
        client_index=client_index,
    )


def make_scheduler(
    kv: KVCacheManager | None = None,
    *,
    max_num_batched_tokens: int = 32,
    max_num_seqs: int = 8,
    max_model_len: int = 64,
    policy: str = "fcfs",
    num_drafts_wanted: int = 0,
    max_steps_in_flight: int | None = None,
    **config: object,
) -> Scheduler:
    context = ComponentContext(plugin="builtin")
    return Scheduler(
        ResolvedSchedulerConfig(
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            scheduling_policy=policy,
            **config,
        ),
        make_kv() if kv is None else kv,
        {"fcfs": Fcfs, "priority": Priority}[policy](context),
        max_model_len=max_model_len,
        num_drafts_wanted=num_drafts_wanted,
        max_steps_in_flight=max_steps_in_flight,
        clock=lambda: 1.0,
    )


def token_at(request_id: str, position: int) -> int:
    """The token that the fake device samples for a request at a position, whatever the batch."""
    digest = hashlib.sha256(f"{request_id}/{position}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % VOCAB


class _Row:
    """A row of the fake device's persistent batch."""

    def __init__(self, new: NewRequest) -> None:
        self.request_id = new.request_id
        self.token_ids = list(new.token_ids)
        self.num_computed = new.num_computed_tokens
        self.tables = [list(table) for table in new.block_ids]


#: What a row samples that saw a stranger's KV; it must never reach an output.
GARBAGE = 999_999


class FakeDevice:
    """A worker that keeps a persistent batch by the rules of `SchedulerOutput`, and a cache.

    Its cache remembers, for each slot, which prefix (as a tuple of ids) was written there; a step
    checks that whatever its queries may see holds exactly its own prefix. It thus fails on a
    block that is shared wrongly, freed early, or not computed.

    Attributes:
        forced: (request, position) to the token that is sampled there, instead of `token_at`.
        fault_rows: request ids whose rows fault in the next step, leaving garbage in the cache.
        is_lenient: after a failure and until it is told, rows that see garbage sample `GARBAGE`.
        num_drafts: proposals after each step; about half of the tokens are right.
    """

    def __init__(
        self, groups: Sequence[KVGroup], *, max_num_seqs: int = 8, budget: int = 32
    ) -> None:
        self.groups = list(groups)
        self.max_num_seqs = max_num_seqs
        self.budget = budget
        self.rows: dict[int, _Row] = {}
        self.slots: dict[tuple[int, int], object] = {}
        self.num_computed_tokens = 0
        self.forced: dict[tuple[str, int], int] = {}
        self.fault_rows: set[str] = set()
        self.is_lenient = False
        self.num_drafts = 0

    def sample(self, request_id: str, position: int) -> int:
        return self.forced.get((request_id, position), token_at(request_id, position))

    def run(self, step: SchedulerOutput) -> StepOutput:
        self._apply(step)
        assert len(step.rows) == len(set(step.rows)) == len(step.num_scheduled_tokens)
        assert sum(step.num_scheduled_tokens) == step.total_num_scheduled_tokens <= self.budget
        assert all(0 <= row < self.max_num_seqs for row in step.rows)
        ones = [count == 1 for count in step.num_scheduled_tokens]
        assert ones == sorted(ones, reverse=True), "rows with one token come first"
        output = StepOutput(step_id=step.step_id)
        work = [
            (self.rows.get(row), count, step.draft_token_ids.get(row, []))
            for row, count in zip(step.rows, step.num_scheduled_tokens, strict=True)
        ]
        self.is_lenient |= any(row and row.request_id in self.fault_rows for row, _, _ in work)
        for row, count, drafts in work:
            if row is not None:
                self._write(row, count, drafts, is_faulty=row.request_id in self.fault_rows)
        for index, (row, count, drafts) in zip(step.rows, work, strict=True):
            sampled = [GARBAGE] if row is None else self._read(row, count, drafts)
            output.sampled_token_ids.append(sampled)
            if row is None:
                continue
            if row.request_id in self.fault_rows:
                output.faults[index] = "the row is at fault"
            elif sampled and self.num_drafts:
                output.draft_token_ids[index] = self._propose(row)
        self.fault_rows = set()
        return output

    def _propose(self, row: _Row) -> list[int]:
        position = len(row.token_ids)
        drafts = []
        for index in range(self.num_drafts):
            token = self.sample(row.request_id, position + index)
            drafts.append(token if token % 2 else VOCAB + 1)
        return drafts

    def _apply(self, step: SchedulerOutput) -> None:
        for row in (*step.finished_rows, *step.preempted_rows):
            self.rows.pop(row, None)
        for new in step.new_requests:
            assert self.is_lenient or new.row not in self.rows, f"row {new.row} is taken"
            assert new.num_computed_tokens < len(new.token_ids)
            self.rows[new.row] = _Row(new)
        for row, new_ids in step.new_block_ids.items():
            if row not in self.rows and self.is_lenient:
                continue
            for table, ids in zip(self.rows[row].tables, new_ids, strict=True):
                table.extend(ids)

    def _write(self, row: _Row, count: int, drafts: Sequence[int], *, is_faulty: bool) -> None:
        tokens = row.token_ids + list(drafts)
        start = row.num_computed
        if self.is_lenient and not self._has_room(row, start + count, tokens):
            return
        assert start + count <= len(tokens), "tokens are scheduled that nobody knows"
        self.num_computed_tokens += count
        for index, (group, table) in enumerate(zip(self.groups, row.tables, strict=True)):
            for position in range(start, start + count):
                block = table[position // group.block_size]
                assert block != 0, "a step writes the null block"
                content = (index, tuple(tokens[: position + 1]))
                self.slots[block, position % group.block_size] = GARBAGE if is_faulty else content

    def _read(self, row: _Row, count: int, drafts: Sequence[int]) -> list[int]:
        tokens = row.token_ids + list(drafts)
        end = row.num_computed + count
        is_clean = self._has_room(row, end, tokens) and self._sees_itself(row, end, tokens)
        assert is_clean or self.is_lenient, f"{row.request_id} sees a stranger's KV"
        row.num_computed = end
        if end < len(row.token_ids):
            return []
        sampled = []
        for draft in (*drafts, None):
            token = self.sample(row.request_id, len(row.token_ids)) if is_clean else GARBAGE
            sampled.append(token)
            row.token_ids.append(token)
            if token != draft:
                break
        row.num_computed = len(row.token_ids) - 1
        return sampled

    def _has_room(self, row: _Row, end: int, tokens: Sequence[int]) -> bool:
        tables = zip(self.groups, row.tables, strict=True)
        return end <= len(tokens) and all(end <= len(t) * g.block_size for g, t in tables)

    def _sees_itself(self, row: _Row, end: int, tokens: Sequence[int]) -> bool:
        for index, (group, table) in enumerate(zip(self.groups, row.tables, strict=True)):
            first = 0 if group.window is None else max(0, row.num_computed - group.window + 1)
            for position in range(first, end):
                slot = (table[position // group.block_size], position % group.block_size)
                if self.slots.get(slot) != (index, tuple(tokens[: position + 1])):
                    return False
        return True


class Engine:
    """Scheduler and fake device in a loop, with up to `depth` steps in flight."""

    def __init__(self, scheduler: Scheduler, device: FakeDevice, depth: int = 1) -> None:
        self.scheduler = scheduler
        self.device = device
        self.depth = depth
        self.in_flight: deque[tuple[SchedulerOutput, StepOutput | None]] = deque()
        self.outputs: dict[str, list[EngineCoreOutput]] = {}
        self.steps: list[SchedulerOutput] = []

    def schedule(self, *, fails: bool = False) -> SchedulerOutput | None:
        """Make a step and run it; one that fails has not even reached the device's batch."""
        step = self.scheduler.schedule()
        if step is not None:
            self.steps.append(step)
            self.device.is_lenient |= fails
            self.in_flight.append((step, None if fails else self.device.run(step)))
        return step

    def end_step(self) -> list[EngineCoreOutput]:
        step, output = self.in_flight.popleft()
        if output is None:
            outputs = self.scheduler.fail_step(step, "the device is at fault")
        else:
            outputs = self.scheduler.update(step, output)
        # Whatever is scheduled from now on was made knowing of this step.
        self.device.is_lenient = any(o is None or o.faults for _, o in self.in_flight)
        self.take(outputs)
        return outputs

    def take(self, outputs: Sequence[EngineCoreOutput]) -> None:
        for output in outputs:
            self.outputs.setdefault(output.request_id, []).append(output)

    def turn(self) -> bool:
        """Do one turn; False if there was nothing to do."""
        step = self.schedule() if len(self.in_flight) < self.depth else None
        if self.in_flight and (step is None or len(self.in_flight) >= self.depth):
            self.end_step()
            return True
        return step is not None

    def run(self, max_turns: int = 10_000) -> None:
        """Run until nothing is left to do."""
        for _ in range(max_turns):
            if not self.turn():
                assert not self.scheduler.has_unfinished(), "requests wait and nothing runs"
                return
        raise AssertionError("the scheduler does not come to an end")

    def tokens(self, request_id: str) -> list[int]:
        return [t for output in self.outputs.get(request_id, []) for t in output.new_token_ids]

    def finish_reason(self, request_id: str) -> str | None:
        outputs = self.outputs.get(request_id)
        return outputs[-1].finish_reason if outputs else None
