"""The engine core's loop: receive → schedule → execute → sample → update → send.

Two steps are in flight where asynchronous scheduling is on: step k + 1 is scheduled and given to
the workers before step k's tokens are known here. Knows no sockets: messages come out of a queue
and leave through a function. One thread runs everything but the executor's own work.
"""

import logging
import queue
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from pegboard.api.engine import Executor
from pegboard.api.errors import EngineDead, EngineError, PegboardError, StepError, WorkerError
from pegboard.api.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    SchedulerOutput,
    StepOutput,
    UtilityCall,
)
from pegboard.api.observers import EngineEvent, Fault
from pegboard.catalog.catalog import Catalog
from pegboard.engine.core_utilities import CoreUtilities
from pegboard.engine.wire import Wish
from pegboard.observability.timeline import Timeline
from pegboard.scheduler.scheduler import Scheduler

__all__ = ["CoreMessage", "EngineCore", "Inbox"]

logger = logging.getLogger(__name__)

#: What a front end wishes, or None as a wake-up: a step is done.
CoreMessage = tuple[Wish, Any] | None
Inbox = queue.SimpleQueue[CoreMessage]
Send = Callable[[int, EngineCoreOutputs], None]

_STATS_CLIENT = 0


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A step that was given to the workers."""

    step: SchedulerOutput
    output: "Future[StepOutput]"


class EngineCore:
    """The loop over a scheduler and an executor that have been started.

    Attributes:
        turns: of the loop so far; read by other threads as a sign of progress.
        busy: whether work exists; likewise.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        catalog: Catalog,
        *,
        inbox: Inbox,
        send: Send,
        async_scheduling: bool = True,
        timeline: Timeline | None = None,
    ) -> None:
        """Keep the parts; `run` starts the loop.

        Args:
            scheduler: owned by the loop from now on.
            executor: started, with its KV initialised.
            catalog: whose observers are told.
            inbox: where messages come from; None in it wakes the loop.
            send: takes a front end's index and a message for it; called from the loop's thread.
            async_scheduling: keep two steps in flight.
            timeline: records each step's phases, or None.
        """
        self._scheduler = scheduler
        self._executor = executor
        self._catalog = catalog
        self._inbox = inbox
        self._send_to = send
        self._max_in_flight = 2 if async_scheduling else 1
        self._in_flight: deque[_InFlight] = deque()
        self._timeline = timeline or Timeline(None, "engine_core")
        self._utilities = CoreUtilities(scheduler, executor)
        self._clients: dict[str, int] = {}
        self._stopping = False
        self._worker_failure: str | None = None
        self.turns = 0
        self.busy = False
        executor.on_failure(self._on_worker_failure)

    def run(self) -> None:
        """Run until asked to stop.

        Raises:
            EngineDead: a worker died, or the loop itself failed; every front end has been told.
        """
        self._observe("on_engine_start")
        try:
            while not self._stopping:
                self.turn()
        except Exception as error:
            cause = error if isinstance(error, PegboardError) else _unexpected(error)
            self._die(str(cause))
            raise EngineDead(str(cause)) from error
        finally:
            self._observe("on_engine_stop")
            self._timeline.close()

    def turn(self) -> None:
        """One turn: take what has come, start a step if there is one, finish one if it is time."""
        self._receive()
        if self._stopping:
            return
        started = self._start_step()
        if self._in_flight and (not started or len(self._in_flight) >= self._max_in_flight):
            self._finish_step()
        self.turns += 1

    def _receive(self) -> None:
        """Handle every message that is there; wait for one only where there is nothing to do."""
        self.busy = bool(self._in_flight) or self._scheduler.has_unfinished()
        wait = not self.busy
        while not self._stopping:
            try:
                message = self._inbox.get() if wait else self._inbox.get_nowait()
            except queue.Empty:
                break
            wait = False
            if message is not None:
                self._handle(*message)
        self.busy = True
        if self._worker_failure is not None:
            raise WorkerError(self._worker_failure)

    def _start_step(self) -> bool:
        """Schedule a step and give it to the workers; return whether there was one."""
        if len(self._in_flight) >= self._max_in_flight:
            return False
        with self._timeline.span("schedule"):
            step = self._scheduler.schedule()
        if step is None:
            return False
        if self._catalog.observed("on_step_scheduled"):
            self._observe("on_step_scheduled", attributes=_about(step))
        with self._timeline.span("execute", step=step.step_id):
            output = self._execute(step)
        self._in_flight.append(_InFlight(step, output))
        return True

    def _execute(self, step: SchedulerOutput) -> "Future[StepOutput]":
        try:
            handle = self._executor.execute(step)
            return self._executor.sample(handle)
        except StepError as error:
            failed: Future[StepOutput] = Future()
            failed.set_exception(error)
            return failed

    def _finish_step(self) -> None:
        """Wait for the oldest step; meanwhile take messages and fill a place in flight."""
        oldest = self._in_flight[0]
        with self._timeline.span("wait", step=oldest.step.step_id):
            self._wait_for(oldest.output)
        if self._stopping:
            return
        self._in_flight.popleft()
        with self._timeline.span("update", step=oldest.step.step_id):
            outputs = self._update(oldest)
        if self._catalog.observed("on_step_finished"):
            self._observe("on_step_finished", attributes=_about(oldest.step))
        with self._timeline.span("send", step=oldest.step.step_id):
            self._send(outputs, with_stats=True)

    def _wait_for(self, output: "Future[StepOutput]") -> None:
        if output.done():
            return
        output.add_done_callback(lambda _: self._inbox.put(None))
        while not output.done() and not self._stopping:
            message = self._inbox.get()
            if message is not None:
                self._handle(*message)
                if len(self._in_flight) < self._max_in_flight:
                    self._start_step()
            if self._worker_failure is not None:
                raise WorkerError(self._worker_failure)

    def _update(self, done: _InFlight) -> list[EngineCoreOutput]:
        try:
            output = done.output.result()
        except WorkerError:
            raise
        except Exception as error:
            cause = str(error) if isinstance(error, PegboardError) else str(_unexpected(error))
            logger.error("step %d failed: %s", done.step.step_id, cause, exc_info=error)
            self._catalog.observe("on_fault", Fault(scope="request", hook="execute", cause=cause))
            return self._scheduler.fail_step(done.step, cause)
        return self._scheduler.update(done.step, output)

    def _handle(self, wish: Wish, body: Any) -> None:  # noqa: ANN401 -- as the wish says
        """Take one message. A request that the scheduler refuses fails alone."""
        if wish is Wish.ADD:
            self._add(body)
        elif wish is Wish.ABORT:
            self._send(self._scheduler.abort(body), with_stats=True)
        elif wish is Wish.CALL:
            self._call(body)
        elif wish is Wish.STOP:
            self._stopping = True

    def _add(self, request: EngineCoreRequest) -> None:
        self._clients[request.request_id] = request.client_index
        try:
            self._scheduler.add(request)
        except Exception as error:
            logger.warning("request %s was refused: %s", request.request_id, error)
            self._send(
                [
                    EngineCoreOutput(
                        request_id=request.request_id, finish_reason="error", error=str(error)
                    )
                ]
            )
            return
        if self._catalog.observed("on_request_added"):
            self._observe(
                "on_request_added",
                request_id=request.request_id,
                attributes={"num_prompt_tokens": len(request.prompt_token_ids)},
            )

    def _call(self, call: UtilityCall) -> None:
        result = self._utilities.call(call)
        self._send_to(call.client_index, EngineCoreOutputs(utility_result=result))

    def _send(self, outputs: Sequence[EngineCoreOutput], *, with_stats: bool = False) -> None:
        """Send each front end its outputs, and the statistics to the first."""
        by_client: dict[int, list[EngineCoreOutput]] = {}
        for output in outputs:
            request_id = output.request_id
            if output.finish_reason is None:
                client = self._clients.get(request_id, 0)
            else:
                client = self._clients.pop(request_id, 0)
                self._observe_finished(output)
            by_client.setdefault(client, []).append(output)
        stats = self._scheduler.stats() if with_stats else None
        if stats is not None:
            by_client.setdefault(_STATS_CLIENT, [])
        for client, its_outputs in by_client.items():
            self._send_to(
                client,
                EngineCoreOutputs(
                    outputs=its_outputs,
                    stats=stats if client == _STATS_CLIENT else None,
                ),
            )

    def _die(self, cause: str) -> None:
        """Tell every front end, once, why nothing follows."""
        self._catalog.observe("on_fault", Fault(scope="engine", hook="loop", cause=cause))
        for client in sorted({_STATS_CLIENT, *self._clients.values()}):
            self._send_to(client, EngineCoreOutputs(engine_dead=cause))

    def _on_worker_failure(self, cause: str) -> None:
        """Called by the executor from any thread."""
        self._worker_failure = cause
        self._inbox.put(None)

    def _observe_finished(self, output: EngineCoreOutput) -> None:
        if self._catalog.observed("on_request_finished"):
            self._observe(
                "on_request_finished",
                request_id=output.request_id,
                attributes={"finish_reason": output.finish_reason},
            )

    def _observe(
        self,
        hook: str,
        *,
        request_id: str | None = None,
        attributes: dict[str, Any] | None = None,
    ) -> None:
        if self._catalog.observed(hook):
            event = EngineEvent(
                name=hook.removeprefix("on_"),
                time=time.time(),
                request_id=request_id,
                attributes=attributes or {},
            )
            self._catalog.observe(hook, event)


def _about(step: SchedulerOutput) -> dict[str, int]:
    return {
        "step_id": step.step_id,
        "num_requests": len(step.rows),
        "num_tokens": step.total_num_scheduled_tokens,
    }


def _unexpected(error: Exception) -> EngineError:
    text = " ".join(str(error).split())
    return EngineError(f"{type(error).__name__}: {text}" if text else type(error).__name__)
