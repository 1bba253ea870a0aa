"""Makes a step: decodes first, then running prompts, then newcomers, then whatever is left over."""

from pegboard.kv.manager import KVCacheManager
from pegboard.scheduler.admission import Admission
from pegboard.scheduler.batch import Batch
from pegboard.scheduler.plan import StepPlan
from pegboard.scheduler.request import Request, RequestStatus

__all__ = ["StepPlanner"]


class StepPlanner:
    """Fills a plan from the batch, under the plan's budget and the cache's blocks."""

    def __init__(self, kv: KVCacheManager, batch: Batch, admission: Admission) -> None:
        self._kv = kv
        self._batch = batch
        self._admission = admission

    def fill(self, plan: StepPlan) -> None:
        """Give tokens to requests until the budget, the blocks or the requests run out."""
        longer = self._give_decodes(plan)
        if longer:
            self._give_chunks(plan, longer)
        if plan.budget and not plan.is_tight:
            if self._batch.waiting:
                self._admit(plan)
            if plan.budget and plan.chunks:
                batch = self._batch
                is_alone = len(batch.running) + len(batch.waiting) == 1
                self._admission.use_rest(plan, is_alone=is_alone)

    def _give_decodes(self, plan: StepPlan) -> list[Request]:
        """Give one token to whoever needs just one; return those that need more."""
        longer = []
        step_id, singles, budget = plan.step_id, plan.singles, plan.budget
        for request in self._batch.running.requests:
            target = request.target
            if target - request.num_computed > 1 or request.drafts:
                longer.append(request)
                continue
            # Its last token is being sampled by a step in flight, or nothing is left to give.
            if target >= request.stop.max_total or not budget:
                continue
            if target > request.kv.capacity and not self._grow(request, target, plan):
                continue
            request.num_computed = target
            request.target = target + 1
            request.last_step = step_id
            singles.append(request)
            budget -= 1
        plan.budget = budget
        return longer

    def _give_chunks(self, plan: StepPlan, longer: list[Request]) -> None:
        """Give running prompts their next chunk, and rows with drafts their drafts."""
        share = self._admission.running_share(plan.budget, has_waiting=bool(self._batch.waiting))
        for request in longer:
            if request.status is not RequestStatus.RUNNING or not plan.budget:
                continue
            if request.drafts:
                count = self._take_drafts(request, plan)
            else:
                count = request.target - request.num_computed
                count = min(count, self._admission.chunk_cap, share, plan.budget)
                share -= count
            if not count:
                continue
            if self._grow(request, request.num_computed + count, plan):
                self._admission.give(request, count, plan)
            else:
                plan.drafts.pop(request.row, None)

    def _take_drafts(self, request: Request, plan: StepPlan) -> int:
        """Put a row's drafts into the step; return its tokens, drafts included."""
        target = request.target
        room = min(plan.budget, request.stop.max_total - target)
        if room < 1:
            return 0
        drafts = request.drafts[: room - 1]
        request.drafts = []
        if drafts:
            plan.drafts[request.row] = drafts
        return target - request.num_computed + len(drafts)

    def _grow(self, request: Request, num_tokens: int, plan: StepPlan) -> bool:
        """Get blocks for `num_tokens`, from whoever must give way; False to leave it out now."""
        if num_tokens <= request.kv.capacity:
            return True
        batch = self._batch
        while (new_ids := self._kv.grow(request.kv, num_tokens)) is None:
            plan.is_tight = True
            lacking = self._kv.num_lacking(request.kv, num_tokens)
            if lacking <= self._kv.pool.num_free + batch.steps.num_returning:
                return False  # they come back when a step in flight ends
            victim = batch.running[-1]
            batch.preempt(victim, plan)
            if victim is request:
                return False
        plan.add_blocks(request.row, new_ids)
        return True

    def _admit(self, plan: StepPlan) -> None:
        """Let waiting requests in, in order; one that does not fit is passed over for a while."""
        batch, waiting = self._batch, self._batch.waiting
        passed_over: list[Request] = []
        index = 0
        while plan.budget and batch.rows.num_free and index < len(waiting):
            request = waiting[index]
            if request.last_step > batch.steps.last_ended:
                index += 1  # preempted, and a step in flight has yet to tell its last token
            elif self._admission.try_admit(request, plan, batch.running):
                batch.enter(request, plan)
                for other in passed_over:
                    other.num_passed_over += 1
            elif self._admission.may_pass_over(request, len(passed_over)):
                passed_over.append(request)
                index += 1
            else:
                break
