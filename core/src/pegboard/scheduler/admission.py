"""Who may enter the batch, and how much of a step one prompt may take.

A waiting request is admitted when its whole sequence fits the cache beside what running prompts
still need, although it is given blocks only as it is computed.
"""

import logging
from collections.abc import Iterable

from pegboard.config.engine import ResolvedSchedulerConfig
from pegboard.kv.manager import KVCacheManager
from pegboard.scheduler.plan import StepPlan
from pegboard.scheduler.request import Request

__all__ = ["Admission"]

logger = logging.getLogger(__name__)

#: Later requests that may be admitted before one that does not fit, over its whole wait.
_MAX_PASSED_OVER = 64
#: Requests that one step looks past; bounds the work of a step with a long queue.
_MAX_SKIPS_A_STEP = 8


class Admission:
    """Decides on entry and on shares; changes requests only through a plan.

    Attributes:
        chunk_cap: most tokens of one prompt in a step, before what is left over is given out.
    """

    def __init__(
        self, config: ResolvedSchedulerConfig, kv: KVCacheManager, *, max_tokens_in_flight: int
    ) -> None:
        self._config = config
        self._kv = kv
        self._max_tokens_in_flight = max_tokens_in_flight
        self._num_watermark_blocks = int(config.watermark * kv.pool.num_blocks)
        self._is_chunked = config.enable_chunked_prefill
        budget = config.max_num_batched_tokens
        self.chunk_cap = config.long_prefill_token_threshold or max(1, budget // 2)
        if not self._is_chunked:
            self.chunk_cap = budget

    def running_share(self, budget: int, *, has_waiting: bool) -> int:
        """Return what running prompts may take together, so that newcomers get a part."""
        if not has_waiting or not self._is_chunked:
            return budget
        return min(budget, max(1, self._config.max_num_batched_tokens // 2))

    def may_pass_over(self, request: Request, num_passed_over: int) -> bool:
        """Whether the next in the queue may be looked at although `request` does not fit."""
        return request.num_passed_over < _MAX_PASSED_OVER and num_passed_over < _MAX_SKIPS_A_STEP

    def try_admit(self, request: Request, plan: StepPlan, running: Iterable[Request]) -> bool:
        """Give a waiting request its prefix hit and first tokens, if it fits.

        Args:
            request: holds nothing, and no step in flight has tokens of it.
            plan: the step; it has budget left.
            running: all running requests.
        """
        token_ids = request.token_ids
        num_tokens = len(token_ids)
        hit = self._kv.lookup(request.kv, token_ids)
        count = num_tokens - hit.num_tokens
        if self._is_chunked:
            count = min(count, self.chunk_cap, plan.budget)
        elif count > plan.budget:
            if plan.budget < self._config.max_num_batched_tokens:
                return False
            count = plan.budget  # resumed, and by now longer than a step
        num_kept = self._num_kept(running)
        if not self._kv.can_admit(hit, num_tokens, self._max_tokens_in_flight, num_kept):
            return False
        self._kv.adopt(request.kv, hit)
        if self._kv.grow(request.kv, hit.num_tokens + count) is None:
            self._kv.release(self._kv.take(request.kv))
            return False
        if request.num_preemptions == 0:
            request.report.num_cached_tokens = hit.num_tokens
            if request.kv.can_read:
                self._kv.count_lookup(num_tokens, hit)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug(
                "admitted request=%s tokens=%d cached=%d: %s",
                request.request_id,
                num_tokens,
                hit.num_tokens,
                self._kv.explain_miss(request.kv, token_ids, hit),
            )
        request.report.restart_prompt()
        request.drafts = []
        request.target = num_tokens
        request.num_computed = request.num_confirmed = hit.num_tokens
        self.give(request, count, plan)
        return True

    def give(self, request: Request, count: int, plan: StepPlan) -> None:
        """Put `count` tokens of a request into the step; it has the blocks for them."""
        plan.chunks.append(request)
        plan.counts.append(count)
        self._advance(request, count, plan)

    def use_rest(self, plan: StepPlan, *, is_alone: bool) -> None:
        """Give what is left of the budget to prompts that were cut short, the first ones first."""
        if self._config.long_prefill_token_threshold and not is_alone:
            return
        for index, request in enumerate(plan.chunks):
            extra = min(len(request.token_ids) - request.num_computed, plan.budget)
            if extra <= 0:
                continue
            new_ids = self._kv.grow(request.kv, request.num_computed + extra)
            if new_ids is None:
                continue
            plan.add_blocks(request.row, new_ids)
            plan.counts[index] += extra
            self._advance(request, extra, plan)

    def _advance(self, request: Request, count: int, plan: StepPlan) -> None:
        plan.budget -= count
        request.last_step = plan.step_id
        request.num_computed = num_computed = request.num_computed + count
        if num_computed >= request.target:
            # It samples, one token more than it has drafts.
            request.target = num_computed + 1
        if request.kv.next_register <= num_computed <= len(request.token_ids):
            self._kv.register(request.kv, request.token_ids, num_computed)

    def _num_kept(self, running: Iterable[Request]) -> int:
        """Return the blocks that an admission must leave: head-room, and others' prompts."""
        num_kept = 0
        is_idle = True
        for request in running:
            is_idle = False
            if request.num_computed < len(request.token_ids):
                num_kept += self._kv.num_missing(
                    request.kv, len(request.token_ids), self._max_tokens_in_flight
                )
        return num_kept if is_idle else num_kept + self._num_watermark_blocks
