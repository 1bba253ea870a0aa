"""Requests that wait and requests that run, and their moves between the two.

Whoever leaves gives its row back at once, and its blocks when no step in flight writes them.
"""

from collections.abc import Callable

from pegboard.api.messages import RequestEvent
from pegboard.kv.manager import KVCacheManager
from pegboard.scheduler.plan import StepPlan
from pegboard.scheduler.request import Request, RequestStatus
from pegboard.scheduler.request_queue import RequestQueue
from pegboard.scheduler.rows import RowPool
from pegboard.scheduler.steps import StepsInFlight

__all__ = ["Batch"]


class Batch:
    """The waiting queue, the running requests, their rows, and the steps in flight.

    Attributes:
        waiting, running: in the policy's order.
        rows: of the persistent batch.
        steps: those in flight.
        finished_rows, preempted_rows: rows that left and that the runner has yet to hear of.
        num_preemptions: since the start.
    """

    def __init__(self, kv: KVCacheManager, num_rows: int, clock: Callable[[], float]) -> None:
        self.waiting = RequestQueue()
        self.running = RequestQueue()
        self.rows = RowPool(num_rows)
        self.steps = StepsInFlight(kv)
        self.finished_rows: list[int] = []
        self.preempted_rows: list[int] = []
        self.num_preemptions = 0
        self._clock = clock

    def wait(self, request: Request) -> None:
        """Queue a new request."""
        request.report.add(RequestEvent("queued", self._clock()))
        self.waiting.add(request)

    def enter(self, request: Request, plan: StepPlan) -> None:
        """Move a waiting request that has its blocks into the batch."""
        self.waiting.remove(request)
        self.running.add(request)
        request.row = self.rows.take()
        if request.status is RequestStatus.PREEMPTED:
            plan.resumed_rows.append(request.row)
        request.status = RequestStatus.RUNNING
        request.num_passed_over = 0
        request.report.add(RequestEvent("scheduled", self._clock()))
        plan.admitted.append(request)

    def preempt(self, request: Request, plan: StepPlan | None = None) -> None:
        """Take a running request's row and blocks; it starts over from the queue.

        Args:
            request: it may have tokens in the plan already; they are computed, then it leaves.
            plan: of the step that is being made, if one is.
        """
        self.running.remove(request)
        self.steps.give_back(request)
        self.rows.give(request.row)
        if plan is None:
            self.preempted_rows.append(request.row)
        elif request.last_step == plan.step_id:
            plan.leaving_rows.append(request.row)
        else:
            plan.preempted_rows.append(request.row)
        request.status = RequestStatus.PREEMPTED
        request.num_computed = request.num_confirmed = 0
        request.drafts = []
        request.num_preemptions += 1
        request.report.add(RequestEvent("preempted", self._clock()))
        self.num_preemptions += 1
        self.waiting.add(request)

    def leave(self, request: Request) -> None:
        """Finish a request in whatever state it is; `running.drop_finished` must follow."""
        if request.status is RequestStatus.RUNNING:
            self.steps.give_back(request)
            self.rows.give(request.row)
            self.finished_rows.append(request.row)
        else:
            self.waiting.remove(request)
        request.status = RequestStatus.FINISHED
