"""The scheduler: each step gives requests tokens under a budget, then learns what became of them.

Prefill, chunk, decode, speculation and prefix hits are one case: a request has computed tokens
and a target. Several steps may be in flight, so what is scheduled runs ahead of what is known.
Knows no model, device or process; `clock` is its only contact with the world.
"""

import logging
import time
from collections.abc import Callable, Iterable

from pegboard.api.errors import ContextLength, EngineError, InvalidRequest
from pegboard.api.messages import (
    EngineCoreOutput,
    EngineCoreRequest,
    SchedulerOutput,
    SchedulerStats,
    StepOutput,
)
from pegboard.api.scheduling import SchedulerPolicy
from pegboard.config.engine import ResolvedSchedulerConfig
from pegboard.kv.manager import KVCacheManager
from pegboard.scheduler.admission import Admission
from pegboard.scheduler.audit import audit
from pegboard.scheduler.batch import Batch
from pegboard.scheduler.plan import StepPlan
from pegboard.scheduler.planner import StepPlanner
from pegboard.scheduler.quarantine import Quarantine
from pegboard.scheduler.request import Request, RequestStatus
from pegboard.scheduler.steps import StepRecord
from pegboard.scheduler.stopping import Finish

__all__ = ["Scheduler"]

logger = logging.getLogger(__name__)


class Scheduler:
    """Owns every request of an engine core. Called from its loop's thread only.

    The order of calls: `add` and `abort` at any time; `schedule`, then `update` or `fail_step`
    once for each step that was given out, in their order. `schedule` may run ahead of `update`
    by `max_steps_in_flight` steps.
    """

    def __init__(
        self,
        config: ResolvedSchedulerConfig,
        kv: KVCacheManager,
        policy: SchedulerPolicy,
        *,
        max_model_len: int,
        max_steps_in_flight: int | None = None,
        num_drafts_wanted: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Start with no request.

        Args:
            config: the step's limits.
            kv: the cache; nobody else uses it.
            policy: the order of waiting and running requests.
            max_model_len: most tokens of a sequence.
            max_steps_in_flight: steps that may be out at once; by default two with asynchronous
                scheduling, else one.
            num_drafts_wanted: drafts the speculator proposes after each step.
            clock: seconds since the epoch.
        """
        if max_steps_in_flight is None:
            max_steps_in_flight = config.max_steps_in_flight
        max_tokens_in_flight = max_steps_in_flight * config.max_num_batched_tokens
        self._max_steps_in_flight = max_steps_in_flight
        self._config = config
        self._kv = kv
        self._policy = policy
        self._num_drafts_wanted = num_drafts_wanted
        self._max_model_len = max_model_len
        self._max_len = kv.max_sequence_tokens(max_model_len, max_tokens_in_flight)
        if self._max_len < max_model_len:
            logger.warning(
                "the KV pool holds %d tokens of one sequence, fewer than max_model_len=%d; longer "
                "sequences end there (--kv-cache-memory-bytes, --max-model-len)",
                self._max_len,
                max_model_len,
            )
        self._requests: dict[str, Request] = {}
        self._batch = Batch(kv, config.max_num_seqs, clock)
        admission = Admission(config, kv, max_tokens_in_flight=max_tokens_in_flight)
        self._planner = StepPlanner(kv, self._batch, admission)
        self._quarantine = Quarantine(kv, self._batch)
        self._counts = {"added": 0, "steps": 0, "step_tokens": 0}
        self._faults: dict[str, int] = {}

    # --- requests come and go ---

    def add(self, request: EngineCoreRequest) -> None:
        """Queue a request.

        Raises:
            InvalidRequest: its id is in use, or it has no token.
            ContextLength: it could never run: the prompt is too long.
        """
        self._check(request)
        entry = Request(request, self._kv, max_len=self._max_len)
        entry.sort_key = (*self._policy.key(entry), self._counts["added"])
        self._counts["added"] += 1
        self._requests[entry.request_id] = entry
        self._batch.wait(entry)

    def abort(self, request_ids: Iterable[str]) -> list[EngineCoreOutput]:
        """End requests in whatever state they are; ids that are not there are only counted."""
        outputs = []
        for request_id in request_ids:
            request = self._requests.get(request_id)
            if request is None:
                self._count_fault("unknown_abort")
            else:
                outputs.append(self._finish(request, Finish("abort"), _output(request, [])))
        self._batch.running.drop_finished()
        return outputs

    def has_unfinished(self) -> bool:
        """Whether a request waits or runs."""
        return bool(self._requests)

    # --- a step is made ---

    def schedule(self) -> SchedulerOutput | None:
        """Make the next step; None if nobody can be given a token now.

        After None, either a step in flight must end first, or there is no request.
        """
        batch = self._batch
        plan = StepPlan(batch.steps.begin(), self._config.max_num_batched_tokens)
        self._planner.fill(plan)
        if not plan.singles and not plan.chunks:
            batch.steps.cancel(plan.record)
            batch.preempted_rows += plan.preempted_rows
            return None
        step = plan.build(self._kv, num_drafts_wanted=self._num_drafts_wanted)
        step.finished_rows, batch.finished_rows = batch.finished_rows, []
        step.preempted_rows += batch.preempted_rows
        batch.preempted_rows = plan.leaving_rows
        self._counts["steps"] += 1
        self._counts["step_tokens"] = step.total_num_scheduled_tokens
        return step

    # --- a step has ended ---

    def update(self, step: SchedulerOutput, output: StepOutput) -> list[EngineCoreOutput]:
        """Take what a step gave; return what each request got from it.

        Raises:
            EngineError: the step is not the oldest in flight, or the output is not of its form.
        """
        self._batch.steps.check_oldest(step)
        if len(output.sampled_token_ids) != len(step.rows):
            raise EngineError(
                f"step {step.step_id} has {len(step.rows)} rows, its output "
                f"{len(output.sampled_token_ids)}; the worker is at fault"
            )
        record = self._batch.steps.end()
        num_open = len(self._requests)
        outputs = self._fail_rows(record, step, output.faults) if output.faults else []
        self._take_tokens(record, step, output, outputs)
        self._batch.steps.release(record)
        if len(self._requests) != num_open:
            self._batch.running.drop_finished()
        return outputs

    def fail_step(self, step: SchedulerOutput, cause: str) -> list[EngineCoreOutput]:
        """End a step that raised: its requests fail, all others start over.

        How far the runner came is not known. Steps in flight may have run on a batch that missed
        this one and written to anybody's blocks, so nothing that is cached is trusted any more.

        Raises:
            EngineError: the step is not the oldest in flight.
        """
        batch = self._batch
        batch.steps.check_oldest(step)
        record = batch.steps.end()
        self._count_fault("step")
        outputs = [
            self._fail(request, cause)
            for request in record.requests
            if request is not None and request.status is not RequestStatus.FINISHED
        ]
        batch.running.drop_finished()
        batch.steps.ignore_all()
        self._restart_all()
        batch.steps.release(record)
        # The runner may not have heard of what the step told it: it is told again.
        batch.finished_rows += {*step.finished_rows, *step.preempted_rows} - {*batch.finished_rows}
        return outputs

    def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        """Forget every cached prefix, as after a change of weights.

        Args:
            reset_running_requests: make running requests start over, instead of refusing.

        Returns:
            Whether it was done; not while requests run, since their KV would be cached again.
        """
        if len(self._batch.running) and not reset_running_requests:
            return False
        self._restart_all()
        return True

    def stats(self) -> SchedulerStats:
        """Return the state after the last call."""
        batch, kv = self._batch, self._kv
        return SchedulerStats(
            num_running=len(batch.running),
            num_waiting=len(batch.waiting),
            num_waiting_tokens=batch.waiting.num_tokens,
            kv_usage=kv.pool.usage,
            num_free_blocks=kv.pool.num_free,
            prefix_queries_tokens=kv.prefix_queries_tokens,
            prefix_hits_tokens=kv.prefix_hits_tokens,
            num_preemptions=batch.num_preemptions,
            num_steps=self._counts["steps"],
            step_tokens=self._counts["step_tokens"],
            faults=dict(self._faults),
        )

    def audit(self) -> list[str]:
        """Return what is wrong with the books, a line each. Walks all blocks: not in service."""
        return audit(
            self._kv,
            self._batch,
            num_rows=self._config.max_num_seqs,
            num_lookahead_tokens=self._max_steps_in_flight * self._num_drafts_wanted,
        )

    # --- the parts of these ---

    def _check(self, request: EngineCoreRequest) -> None:
        num_tokens = len(request.prompt_token_ids)
        if request.request_id in self._requests:
            raise InvalidRequest(f"request id {request.request_id!r} is in use")
        if not num_tokens:
            raise InvalidRequest("the prompt is empty; at least one token is needed")
        if num_tokens >= self._max_model_len:
            raise ContextLength(
                f"the prompt has {num_tokens} tokens; with one token of output the context of "
                f"{self._max_model_len} holds at most {self._max_model_len - 1} (--max-model-len)"
            )
        if num_tokens >= self._max_len:
            raise ContextLength(
                f"the prompt has {num_tokens} tokens; the KV cache can never hold more than "
                f"{self._max_len - 1} of one prompt (--kv-cache-memory-bytes)"
            )
        config = self._config
        if not config.enable_chunked_prefill and num_tokens > config.max_num_batched_tokens:
            raise ContextLength(
                f"the prompt has {num_tokens} tokens; without chunked prefill a step takes at "
                f"most {config.max_num_batched_tokens} (--max-num-batched-tokens, "
                "--enable-chunked-prefill)"
            )

    def _take_tokens(
        self,
        record: StepRecord,
        step: SchedulerOutput,
        output: StepOutput,
        outputs: list[EngineCoreOutput],
    ) -> None:
        drafts, prompt_logprobs = step.draft_token_ids, output.prompt_logprobs
        running, finished = RequestStatus.RUNNING, RequestStatus.FINISHED
        for request, row, count, sampled in zip(
            record.requests,
            step.rows,
            step.num_scheduled_tokens,
            output.sampled_token_ids,
            strict=True,
        ):
            if request is None or request.status is finished:
                continue  # aborted, or stopped while this step was on its way
            is_running = request.status is running
            if is_running:
                num_drafts = len(drafts[row]) if row in drafts else 0
                if not _confirm(request, count, len(sampled), num_drafts):
                    cause = (
                        f"the worker gave {len(sampled)} token(s) for {count} scheduled and "
                        f"{num_drafts} draft(s)"
                    )
                    outputs += self._fail_rows(record, step, {row: cause})
                    continue
            finish = None
            if sampled:
                finish = _append(request, sampled)
            elif row not in prompt_logprobs:
                if is_running:
                    self._settle(request)
                continue
            if is_running:
                self._settle(request)
                if row in output.draft_token_ids:
                    request.drafts = output.draft_token_ids[row]
            result = _output(request, sampled)
            if row in output.logprobs:
                result.logprobs = output.logprobs[row][: len(sampled)]
            if row in prompt_logprobs:
                result.prompt_logprobs = request.report.new_prompt_logprobs(prompt_logprobs[row])
            outputs.append(result if finish is None else self._finish(request, finish, result))

    def _settle(self, request: Request) -> None:
        """Cache the blocks that are full now, and free those that fell out of sight."""
        confirmed, kv = request.num_confirmed, request.kv
        if confirmed >= kv.next_register:
            token_ids = request.token_ids
            self._kv.register(kv, token_ids, min(confirmed, len(token_ids)))
        if confirmed >= kv.next_trim:
            self._kv.trim(kv, confirmed)

    def _restart_all(self) -> None:
        """Forget the cache and make every running request compute its tokens anew."""
        running = self._batch.running
        while len(running):
            self._batch.preempt(running[-1])
        self._kv.reset()

    def _finish(
        self, request: Request, finish: Finish, result: EngineCoreOutput
    ) -> EngineCoreOutput:
        """End a request; `running.drop_finished` must follow."""
        self._batch.leave(request)
        del self._requests[request.request_id]
        result.finish_reason, result.stop_token_id = finish
        return result

    def _fail(self, request: Request, cause: str) -> EngineCoreOutput:
        self._count_fault("request")
        result = self._finish(request, Finish("error"), _output(request, []))
        result.error = cause
        return result

    def _fail_rows(
        self, record: StepRecord, step: SchedulerOutput, faults: dict[int, str]
    ) -> list[EngineCoreOutput]:
        """Fail single requests of a step, and start over whoever shares what they wrote."""
        outputs = []
        for request, row in zip(list(record.requests), step.rows, strict=True):
            if row not in faults or request is None or request.status is RequestStatus.FINISHED:
                continue
            shared = self._quarantine.forget(request, record)
            outputs.append(self._fail(request, faults[row]))
            self._quarantine.restart_holders(shared, record)
        return outputs

    def _count_fault(self, kind: str) -> None:
        self._faults[kind] = self._faults.get(kind, 0) + 1


def _confirm(request: Request, count: int, num_sampled: int, num_drafts: int) -> bool:
    """Take note that `count` tokens are computed; False if the worker cannot be right."""
    num_known = len(request.token_ids)
    confirmed = request.num_confirmed + count
    if num_sampled:
        num_rejected = num_drafts + 1 - num_sampled
        if num_rejected < 0 or confirmed != num_known + num_drafts:
            return False
        if num_rejected:
            confirmed -= num_rejected
            request.num_computed -= num_rejected
            request.target -= num_rejected
    elif confirmed >= num_known:
        return False
    request.num_confirmed = confirmed
    return True


def _append(request: Request, sampled: list[int]) -> Finish | None:
    """Append new tokens, and drop from `sampled` what comes after the end."""
    token_ids, stop = request.token_ids, request.stop
    for index, token_id in enumerate(sampled, 1):
        token_ids.append(token_id)
        if (
            token_id in stop.token_ids or len(token_ids) >= stop.max_total or stop.always_checks
        ) and (finish := stop.check(token_ids)) is not None:
            del sampled[index:]
            return finish
    return None


def _output(request: Request, new_token_ids: list[int]) -> EngineCoreOutput:
    report = request.report
    if not report.is_due:
        return EngineCoreOutput(request_id=request.request_id, new_token_ids=new_token_ids)
    return EngineCoreOutput(
        request_id=request.request_id,
        new_token_ids=new_token_ids,
        num_cached_tokens=report.num_cached_tokens,
        events=report.take_events(),
    )
