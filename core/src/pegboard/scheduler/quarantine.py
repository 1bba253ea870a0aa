"""Keeps what a row at fault may have written out of everybody else's reach.

Blocks are hittable from the step on that computes them, since steps run in order. If a row turns
out to be at fault they hold anything: they are forgotten, and whoever read them starts over.
"""

from pegboard.kv.manager import KVCacheManager
from pegboard.scheduler.batch import Batch
from pegboard.scheduler.request import Request, RequestStatus
from pegboard.scheduler.steps import StepRecord

__all__ = ["Quarantine"]


class Quarantine:
    """Forgets and restarts. `ended` is always the record of the step that has just ended."""

    def __init__(self, kv: KVCacheManager, batch: Batch) -> None:
        self._kv = kv
        self._batch = batch

    def forget(self, request: Request, ended: StepRecord) -> set[int]:
        """Make unhittable what steps in flight may have written for a request.

        Returns:
            Ids of the blocks among these that others hold as well.
        """
        if request.status is RequestStatus.RUNNING:
            return self._kv.forget(request.kv.tables, request.num_confirmed)
        return self._batch.steps.forget_held(ended)

    def restart_holders(self, block_ids: set[int], ended: StepRecord) -> None:
        """Start over every running request that holds one of these blocks, and so on from it."""
        batch = self._batch
        while block_ids:
            block_ids |= batch.steps.forget_held(ended)
            batch.steps.ignore_holders(block_ids, ended)
            holders = [
                request
                for request in batch.running
                if request.status is RequestStatus.RUNNING
                and self._kv.holds_any(request.kv.tables, block_ids)
            ]
            block_ids = set()
            for request in holders:
                block_ids |= self.forget(request, ended)
                batch.steps.ignore(request, ended)
                batch.preempt(request)
