"""The step that is being made: who gets how many tokens, and how much of the budget is left."""

from pegboard.api.messages import NewRequest, SchedulerOutput
from pegboard.kv.manager import KVCacheManager
from pegboard.scheduler.request import Request
from pegboard.scheduler.steps import StepRecord

__all__ = ["StepPlan"]


class StepPlan:
    """Collects a step.

    Attributes:
        record: of the step; already among those in flight.
        budget: tokens that are left to give.
        singles: requests with one token, in order; what most steps are made of.
        chunks, counts: the other requests, in order, and their tokens.
        new_block_ids: row to the blocks that running requests were given.
        admitted: requests that enter the batch with this step.
        is_tight: whether someone had to give way or to wait for blocks; then nobody else gets any.
        leaving_rows: rows that have tokens in this step and leave before the next.
    """

    __slots__ = ("admitted", "budget", "chunks", "counts", "drafts", "is_tight",
                 "leaving_rows", "new_block_ids", "preempted_rows", "record", "resumed_rows",
                 "singles", "step_id")  # fmt: skip

    def __init__(self, record: StepRecord, budget: int) -> None:
        self.record = record
        self.step_id = record.step_id
        self.budget = budget
        self.singles: list[Request] = []
        self.chunks: list[Request] = []
        self.counts: list[int] = []
        self.new_block_ids: dict[int, list[list[int]]] = {}
        self.drafts: dict[int, list[int]] = {}
        self.admitted: list[Request] = []
        self.resumed_rows: list[int] = []
        self.preempted_rows: list[int] = []
        self.leaving_rows: list[int] = []
        self.is_tight = False

    def add_blocks(self, row: int, new_ids: list[list[int]]) -> None:
        """Note blocks that a row was given; it may be given some twice."""
        earlier = self.new_block_ids.setdefault(row, new_ids)
        if earlier is not new_ids:
            for group, block_ids in zip(earlier, new_ids, strict=True):
                group.extend(block_ids)

    def build(self, kv: KVCacheManager, *, num_drafts_wanted: int) -> SchedulerOutput:
        """Return the message, rows with one token first, and fill the step's record."""
        requests, counts = self.singles, [1] * len(self.singles)
        longer: list[tuple[Request, int]] = []
        for request, count in zip(self.chunks, self.counts, strict=True):
            if count == 1:
                requests.append(request)
                counts.append(1)
            else:
                longer.append((request, count))
        for request, count in longer:
            requests.append(request)
            counts.append(count)
        self.record.requests.extend(requests)
        for request in self.admitted:
            self.new_block_ids.pop(request.row, None)
        return SchedulerOutput(
            step_id=self.step_id,
            new_requests=[_new_request(request, kv) for request in self.admitted],
            resumed_rows=self.resumed_rows,
            rows=[request.row for request in requests],
            num_scheduled_tokens=counts,
            total_num_scheduled_tokens=sum(counts),
            new_block_ids=self.new_block_ids,
            preempted_rows=self.preempted_rows,
            draft_token_ids=self.drafts,
            num_drafts_wanted=num_drafts_wanted,
        )


def _new_request(request: Request, kv: KVCacheManager) -> NewRequest:
    source = request.source
    return NewRequest(
        request_id=request.request_id,
        row=request.row,
        token_ids=request.token_ids.copy(),
        num_prompt_tokens=request.num_prompt_tokens,
        num_computed_tokens=request.num_confirmed,
        sampling=source.sampling,
        eos_token_ids=source.eos_token_ids,
        block_ids=kv.block_ids(request.kv),
        media=source.media,
        lora_id=0 if source.lora is None else source.lora.lora_id,
    )
