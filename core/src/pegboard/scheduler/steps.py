"""Steps in flight, and the blocks that return when they end.

A block whose request finished or was preempted may still be written by a step on the device; it
goes back to the pool when the last such step has ended, so that nobody else can have it before.
"""

from collections import deque
from typing import NamedTuple

from pegboard.api.errors import EngineError
from pegboard.api.messages import SchedulerOutput
from pegboard.kv.manager import BlockTables, KVCacheManager
from pegboard.scheduler.request import Request

__all__ = ["StepRecord", "StepsInFlight"]


class _Held(NamedTuple):
    """Block tables that wait for a step, whose they were, and how far computed for certain."""

    request: Request
    tables: BlockTables
    num_confirmed: int


class StepRecord:
    """What the scheduler remembers of a step until it ends.

    Attributes:
        requests: aligned with the step's rows; None where its output is to be ignored.
        held: block tables that return when it ends; `num_held` blocks become free by that.
    """

    __slots__ = ("held", "num_held", "requests", "step_id")

    def __init__(self, step_id: int) -> None:
        self.step_id = step_id
        self.requests: list[Request | None] = []
        self.held: list[_Held] = []
        self.num_held = 0


class StepsInFlight:
    """The steps that were scheduled and have not ended, oldest first.

    Attributes:
        last_ended: id of the newest step that has ended; -1 before the first.
        num_returning: blocks that become free when steps in flight end.
    """

    def __init__(self, kv: KVCacheManager) -> None:
        self._kv = kv
        self._records: deque[StepRecord] = deque()
        self.last_ended = -1
        self.num_returning = 0

    def __len__(self) -> int:
        return len(self._records)

    def begin(self) -> StepRecord:
        """Start a step; the next id."""
        record = StepRecord(self.last_ended + len(self._records) + 1)
        self._records.append(record)
        return record

    def cancel(self, record: StepRecord) -> None:
        """Undo `begin` of a step that turned out to have nothing to do."""
        assert self._records[-1] is record
        assert not record.held
        self._records.pop()

    def check_oldest(self, step: SchedulerOutput) -> None:
        """Raise EngineError unless `step` is the oldest in flight."""
        if not self._records or self._records[0].step_id != step.step_id:
            oldest = self._records[0].step_id if self._records else "none"
            raise EngineError(
                f"step {step.step_id} was reported out of order; the oldest in flight is {oldest}"
            )

    def end(self) -> StepRecord:
        """Take the oldest step out. What it held stays held until `release`."""
        record = self._records.popleft()
        self.last_ended = record.step_id
        self.num_returning -= record.num_held
        return record

    def release(self, record: StepRecord) -> None:
        """Free what an ended step held."""
        for held in record.held:
            self._kv.release(held.tables)

    def give_back(self, request: Request) -> None:
        """Free all blocks of a request, once no step in flight can write them."""
        tables = self._kv.take(request.kv)
        index = request.last_step - self.last_ended - 1
        if index < 0:
            self._kv.release(tables)
            return
        record = self._records[index]
        num_freed = self._kv.num_freed_by(tables)
        record.held.append(_Held(request, tables, request.num_confirmed))
        record.num_held += num_freed
        self.num_returning += num_freed

    def held_tables(self) -> list[BlockTables]:
        """Return all tables that wait for a step to end."""
        return [held.tables for record in self._records for held in record.held]

    def ignore(self, request: Request, also: StepRecord) -> None:
        """Ignore what steps in flight, and `also`, give for a request."""
        for record in (also, *self._records):
            for index, other in enumerate(record.requests):
                if other is request:
                    record.requests[index] = None

    def ignore_all(self) -> None:
        """Ignore what all steps in flight give."""
        for record in self._records:
            record.requests = [None] * len(record.requests)

    def ignore_holders(self, block_ids: set[int], also: StepRecord) -> None:
        """Ignore requests that left while steps in flight, and `also`, read one of these blocks."""
        for record in (also, *self._records):
            for held in record.held:
                if self._kv.holds_any(held.tables, block_ids):
                    self.ignore(held.request, also)

    def forget_held(self, also: StepRecord) -> set[int]:
        """Make unhittable what steps in flight, and `also`, may write of blocks they hold.

        Returns:
            Ids of those that requests hold as well.
        """
        shared: set[int] = set()
        for record in (also, *self._records):
            for held in record.held:
                shared |= self._kv.forget(held.tables, held.num_confirmed)
        return shared
