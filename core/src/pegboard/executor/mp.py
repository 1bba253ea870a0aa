"""One process a rank on this host, each holding its part of every layer.

Every command goes to all ranks in the same order, so their collectives meet. Rank 0 answers for
a step. One thread starts the processes, takes replies and watches for deaths; when a worker is
lost the rest of the fleet is ended, since no collective could finish.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import Any

import msgspec
import zmq

from pegboard.api.engine import Executor, StepHandle
from pegboard.api.errors import StepError, WorkerError
from pegboard.api.kv import KVGroup, KVLayerNeed
from pegboard.api.messages import SchedulerOutput, StepOutput
from pegboard.api.plugin import ComponentContext
from pegboard.config.env import read_environment
from pegboard.executor.fleet import Fleet
from pegboard.worker.protocol import (
    Answer,
    Call,
    Command,
    Execute,
    Reply,
    Sample,
    StepDone,
    StepFailed,
    Stop,
    command_address,
    reply_address,
)

__all__ = ["MpExecutor"]

logger = logging.getLogger(__name__)

#: How often the thread looks whether a process has died.
_WATCH_MS = 200
#: How long ranks may disagree on whether a step failed before the fleet is given up.
_AGREE_S = 5.0
_SHUTDOWN_S = 5.0
_START_CALL = 0


class _Step:
    """A step that was sent; satisfies `StepHandle`."""

    __slots__ = ("step_id",)

    def __init__(self, step_id: int) -> None:
        self.step_id = step_id


class _Failing:
    """A step that some ranks have reported as failed."""

    __slots__ = ("deadline", "error", "ranks")

    def __init__(self, error: str) -> None:
        self.error = error
        self.ranks: set[int] = set()
        self.deadline = time.monotonic() + _AGREE_S


class MpExecutor(Executor):
    """Sends commands to worker processes and hands their replies to futures."""

    def __init__(self, context: ComponentContext, catalog: object = None) -> None:
        """Keep the context; starts nothing. Workers build their own catalogs."""
        super().__init__(context)
        del catalog
        self._world_size: int = context.config.parallel.tensor_parallel_size
        self._lock = threading.Lock()  # guards the sockets, the futures and the cause
        self._sockets: list[zmq.Socket[bytes]] = []
        self._calls: dict[int, dict[int, Future[Any]]] = {}
        self._steps: dict[int, Future[StepOutput]] = {}
        self._failing: dict[int, _Failing] = {}
        self._num_calls = _START_CALL
        self._cause: str | None = None
        self._callback: Callable[[str], None] | None = None
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._fleet: Fleet | None = None

    def start(self) -> None:
        """Start every process and wait until each has loaded its part of the model."""
        self._fleet = Fleet(self.context.config, self._world_size, read_environment().inherited)
        zmq_context = zmq.Context.instance()
        replies = zmq_context.socket(zmq.PULL)
        replies.set(zmq.RCVHWM, 0)
        replies.bind(reply_address(self._fleet.folder))
        for rank in range(self._world_size):
            socket = zmq_context.socket(zmq.PUSH)
            socket.set(zmq.LINGER, 0)
            socket.set(zmq.SNDHWM, 0)
            socket.bind(command_address(self._fleet.folder, rank))
            self._sockets.append(socket)
        ready = self._expect(_START_CALL)
        self._thread = threading.Thread(
            target=self._run, args=(self._fleet, replies), name="pegboard-fleet", daemon=True
        )
        self._thread.start()
        _results(ready, None)

    def kv_needs(self) -> list[KVLayerNeed]:
        """Return what each layer of a worker asks of the KV manager; ranks agree on it."""
        return msgspec.convert(self.collective_rpc("kv_needs")[0], list[KVLayerNeed])

    def available_kv_bytes(self) -> int:
        """Return the least over the fleet."""
        return min(self.collective_rpc("available_kv_bytes"))

    def initialize_kv(self, groups: Sequence[KVGroup], num_blocks: int) -> None:
        """Allocate the caches in every worker, then warm up."""
        self.collective_rpc("initialize_kv", (msgspec.to_builtins(list(groups)), num_blocks))

    def execute(self, step: SchedulerOutput) -> StepHandle:
        """Send a step to every rank and return at once."""
        self._send(Execute(step))
        return _Step(step.step_id)

    def sample(self, handle: StepHandle, grammar_masks: bytes | None = None) -> Future[StepOutput]:
        """Ask for a step's output."""
        future: Future[StepOutput] = Future()
        with self._lock:
            if self._cause is None:
                self._steps[handle.step_id] = future
        self._send(Sample(handle.step_id, grammar_masks), future)
        return future

    def collective_rpc(
        self, method: str, args: Sequence[Any] = (), timeout_s: float | None = None
    ) -> list[Any]:
        """Call a named method on every worker, between steps; results in rank order."""
        with self._lock:
            self._num_calls += 1
            call_id = self._num_calls
        futures = self._expect(call_id)
        self._send(Call(call_id, method, list(args)), *futures.values())
        try:
            return _results(futures, timeout_s)
        except FutureTimeout as error:
            late = [str(rank) for rank, future in futures.items() if not future.done()]
            raise WorkerError(
                f"worker {', '.join(late)} did not answer {method} within {timeout_s} s"
            ) from error

    def on_failure(self, callback: Callable[[str], None]) -> None:
        """Call `callback(cause)` once, when a worker is lost; at once if one already is."""
        with self._lock:
            self._callback = callback
            cause = self._cause
        if cause is not None and not self._closing.is_set():
            callback(cause)

    def shutdown(self) -> None:
        """Ask every worker to end, and see to it. May be called twice."""
        if self._closing.is_set():
            return
        self._send(Stop())
        self._closing.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._fail_all("the executor was shut down")
        with self._lock:
            for socket in self._sockets:
                socket.close()
            self._sockets.clear()

    def _expect(self, call_id: int) -> dict[int, Future[Any]]:
        futures: dict[int, Future[Any]] = {rank: Future() for rank in range(self._world_size)}
        with self._lock:
            self._calls[call_id] = futures
        return futures

    def _send(self, command: Command, *futures: Future[Any]) -> None:
        """Send to every rank; if the fleet is gone, fail the futures that wait for answers."""
        blob = msgspec.msgpack.encode(command)
        with self._lock:
            cause = self._cause or ("the executor is not running" if not self._sockets else None)
            if cause is None:
                for socket in self._sockets:
                    # A rank that is gone cannot take it; the fleet's thread is about to say so.
                    with suppress(zmq.Again):
                        socket.send(blob, zmq.NOBLOCK)
                return
        for future in futures:
            _fail(future, WorkerError(cause))

    def _run(self, fleet: Fleet, replies: "zmq.Socket[bytes]") -> None:
        """Start the fleet, take replies and watch for deaths until it is over."""
        decoder = msgspec.msgpack.Decoder(Reply)
        cause = None
        try:
            fleet.launch()
            while not self._closing.is_set() and cause is None:
                # All that a worker still said comes before the news of its death.
                timeout = _WATCH_MS
                while replies.poll(timeout):
                    self._take(decoder.decode(replies.recv()))
                    timeout = 0
                cause = self._cause or self._lost(fleet)
        except Exception as error:
            logger.exception("the fleet's thread failed")
            cause = f"{type(error).__name__}: {error}"
        if cause is not None:
            self._fail_all(cause)
        fleet.end(0.0 if cause is not None else _SHUTDOWN_S)
        replies.close(linger=0)

    def _lost(self, fleet: Fleet) -> str | None:
        """Return why the fleet cannot go on, or None if it can."""
        dead = fleet.dead()
        if dead and not self._closing.is_set():
            return dead[0][1]
        now = time.monotonic()
        for step_id, failing in self._failing.items():
            if now > failing.deadline:
                return self._disagreement(step_id, failing)
        return None

    def _disagreement(self, step_id: int, failing: _Failing) -> str:
        ranks = ", ".join(map(str, sorted(failing.ranks)))
        return f"step {step_id} failed on worker {ranks} alone: {failing.error}"

    def _take(self, reply: Reply) -> None:
        if isinstance(reply, StepDone):
            self._step_done(reply.output)
        elif isinstance(reply, StepFailed):
            self._step_failed(reply)
        else:
            self._answered(reply)

    def _step_done(self, output: StepOutput) -> None:
        failing = self._failing.get(output.step_id)
        if failing is not None:
            failing.deadline = 0.0
            return
        with self._lock:
            future = self._steps.pop(output.step_id, None)
        if future is not None and future.set_running_or_notify_cancel():
            future.set_result(output)

    def _step_failed(self, reply: StepFailed) -> None:
        """Fail a step's requests if all ranks failed it alike; else their batches differ."""
        failing = self._failing.setdefault(reply.step_id, _Failing(reply.error))
        failing.ranks.add(reply.rank)
        with self._lock:
            future = self._steps.get(reply.step_id)
            if future is None:  # rank 0 had answered already
                failing.deadline = 0.0
            if len(failing.ranks) < self._world_size:
                return
            self._steps.pop(reply.step_id, None)
        del self._failing[reply.step_id]
        if future is not None:
            _fail(future, StepError(failing.error))

    def _answered(self, reply: Answer) -> None:
        with self._lock:
            futures = self._calls.get(reply.call_id)
            if futures is None:
                return
            if all(f.done() for rank, f in futures.items() if rank != reply.rank):
                del self._calls[reply.call_id]
        if reply.error is None:
            futures[reply.rank].set_result(reply.value)
            return
        cause = f"worker {reply.rank}: {reply.error}"
        if reply.call_id == _START_CALL:
            self._fail_all(cause)
        _fail(futures[reply.rank], WorkerError(cause))

    def _fail_all(self, cause: str) -> None:
        """Fail everything that waits, and whatever comes, with the first cause there was."""
        with self._lock:
            first = self._cause is None
            self._cause = self._cause or cause
            cause = self._cause
            waiting: list[Future[Any]] = list(self._steps.values())
            waiting += [f for futures in self._calls.values() for f in futures.values()]
            self._steps.clear()
            self._calls.clear()
            callback = self._callback
        for future in waiting:
            _fail(future, WorkerError(cause))
        if first and not self._closing.is_set():
            logger.error("the worker fleet is lost: %s", cause)
            if callback is not None:
                callback(cause)


def _fail(future: Future[Any], error: Exception) -> None:
    if not future.done() and future.set_running_or_notify_cancel():
        future.set_exception(error)


def _results(futures: dict[int, Future[Any]], timeout_s: float | None) -> list[Any]:
    """Wait for every rank's result; the first failure by rank is raised."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    results: list[Any] = []
    for rank in sorted(futures):
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        results.append(futures[rank].result(timeout=left))
    return results
