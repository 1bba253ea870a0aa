"""One worker in the engine core's process, on a step thread of its own.

The thread runs everything that touches the device or torch, from the start on: thread pools of
kernels belong to the thread that first uses them, and the loop's thread stays free to schedule
the next step meanwhile.
"""

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from pegboard.api.engine import Executor, PendingStepOutput, StepHandle, Worker
from pegboard.api.errors import PegboardError, WorkerError
from pegboard.api.kv import KVGroup, KVLayerNeed
from pegboard.api.messages import SchedulerOutput, StepOutput
from pegboard.api.plugin import ComponentContext
from pegboard.catalog import Catalog, rebuild_catalog
from pegboard.worker.worker import make_worker

__all__ = ["UniExecutor"]

logger = logging.getLogger(__name__)

_SHUTDOWN_S = 5.0

_Job = tuple[Callable[[], Any], Future[Any]]


class _Step:
    """A step in the queue, and its forward pass's result once there is one."""

    __slots__ = ("running", "step_id")

    def __init__(self, step_id: int) -> None:
        self.step_id = step_id
        self.running: Future[Any] = Future()


class _Reader:
    """Waits for outputs that are still on the device, on a thread of its own, in step order.

    The step thread can thus queue the next step while the device is busy with this one.
    """

    def __init__(self) -> None:
        self._outputs: queue.SimpleQueue[tuple[PendingStepOutput, Future[StepOutput]] | None] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None

    def read(self, queued: "Future[PendingStepOutput]", output: "Future[StepOutput]") -> None:
        """Pass a step's output on once it can be read; called by the step thread."""
        error = queued.exception()
        if error is not None:
            output.set_exception(error)
            return
        pending = queued.result()
        if pending.is_ready:
            _settle(pending, output)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pegboard-read", daemon=True)
            self._thread.start()
        self._outputs.put((pending, output))

    def close(self) -> None:
        """End the thread once it has read what was queued."""
        if self._thread is not None:
            self._outputs.put(None)
            self._thread.join(_SHUTDOWN_S)

    def _run(self) -> None:
        while (item := self._outputs.get()) is not None:
            _settle(*item)
            del item


def _settle(pending: PendingStepOutput, output: "Future[StepOutput]") -> None:
    try:
        result = pending.wait_sync()
    except BaseException as error:
        output.set_exception(error)
    else:
        output.set_result(result)


class UniExecutor(Executor):
    """Runs the jobs of one worker in the order they come."""

    def __init__(self, context: ComponentContext, catalog: Catalog | None = None) -> None:
        """Keep the context; starts nothing.

        Args:
            context: whose `config` is the engine's.
            catalog: of this process, if it is at hand; else the worker builds its own.
        """
        super().__init__(context)
        self._catalog = catalog
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._reader = _Reader()
        self._worker: Worker

    def start(self) -> None:
        """Start the thread, open the device, load the model."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pegboard-step", daemon=True)
            self._thread.start()
        self._submit(self._start_worker).result()

    def kv_needs(self) -> list[KVLayerNeed]:
        """Return what each layer asks of the KV manager."""
        return self._submit(lambda: self._worker.model_runner.kv_needs()).result()

    def available_kv_bytes(self) -> int:
        """Return the bytes the worker has for KV blocks."""
        return self._submit(lambda: self._worker.available_kv_bytes()).result()

    def initialize_kv(self, groups: Sequence[KVGroup], num_blocks: int) -> None:
        """Allocate the caches, then warm up."""
        self._submit(lambda: self._worker.initialize_kv(groups, num_blocks)).result()

    def execute(self, step: SchedulerOutput) -> StepHandle:
        """Queue a step and return at once; a failure comes out of `sample`'s future."""
        handle = _Step(step.step_id)
        self._submit(lambda: self._worker.model_runner.execute(step), handle.running)
        return handle

    def sample(self, handle: StepHandle, grammar_masks: bytes | None = None) -> Future[StepOutput]:
        """Queue the sampling of a step."""
        assert isinstance(handle, _Step)

        def job() -> PendingStepOutput:
            running = handle.running.result(timeout=0)  # its job ran before this one
            return self._worker.model_runner.start_sampling(running, grammar_masks)

        output: Future[StepOutput] = Future()
        self._submit(job).add_done_callback(lambda queued: self._reader.read(queued, output))
        return output

    def collective_rpc(
        self, method: str, args: Sequence[Any] = (), timeout_s: float | None = None
    ) -> list[Any]:
        """Call a named method of the worker, between steps."""
        future = self._submit(lambda: self._worker.call(method, args))
        try:
            return [future.result(timeout=timeout_s)]
        except FutureTimeout as error:
            raise WorkerError(f"worker 0 did not answer {method} within {timeout_s} s") from error

    def on_failure(self, callback: Callable[[str], None]) -> None:
        """Do nothing: a worker in this process does not die alone."""

    def shutdown(self) -> None:
        """End the thread after the job it is in. May be called twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._jobs.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_SHUTDOWN_S)
            if self._thread.is_alive():
                logger.warning("the step thread is still busy after %.0f s", _SHUTDOWN_S)

    def _start_worker(self) -> None:
        config = self.context.config
        catalog = self._catalog or rebuild_catalog(config.plugins, process="worker 0")
        self._worker = make_worker(config, catalog)
        try:
            self._worker.start()
        except PegboardError:
            raise
        except Exception as error:
            raise WorkerError(f"worker 0: {type(error).__name__}: {error}") from error

    def _submit(self, job: Callable[[], Any], future: Future[Any] | None = None) -> Future[Any]:
        future = future or Future()
        with self._lock:
            if self._closed or self._thread is None:
                future.set_exception(WorkerError("the executor is not running"))
            else:
                self._jobs.put((job, future))
        return future

    def _run(self) -> None:
        """Run jobs until told to stop, then fail what is left."""
        while (item := self._jobs.get()) is not None:
            job, future = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = job()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            del item, job, future
        self._drain()
        self._reader.close()
        if hasattr(self, "_worker"):
            self._worker.shutdown()

    def _drain(self) -> None:
        while True:
            try:
                item = self._jobs.get_nowait()
            except queue.Empty:
                return
            if item is not None:
                item[1].set_exception(WorkerError("the executor was shut down"))
