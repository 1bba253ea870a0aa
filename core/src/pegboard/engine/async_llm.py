"""The asyncio client of an engine: what servers are given.

Many streams share one reader: the engine core's messages are processed in the event loop's
thread, a bounded number of outputs at a time, and each request's task is woken only when there
is something for it.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

from pegboard.api.engine import EngineConfigView, EngineHealth, Prompt, TextPrompt
from pegboard.api.errors import EngineDead, EngineError, InvalidRequest
from pegboard.api.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    LoraRequest,
    SchedulerStats,
    UtilityCall,
    UtilityResult,
)
from pegboard.api.observers import StatLogger
from pegboard.api.outputs import RequestOutput
from pegboard.api.renderers import Renderer
from pegboard.api.sampling_params import SamplingParams
from pegboard.api.tokenizers import Tokenizer
from pegboard.catalog.catalog import Catalog
from pegboard.config.engine import EngineConfig, EngineOptions
from pegboard.engine.admission import QueueLimits
from pegboard.engine.frontend import Frontend, ProgressPrinter
from pegboard.engine.health import HealthMonitor
from pegboard.engine.input_processor import PreparedRequest
from pegboard.engine.output_queue import OutputQueue

__all__ = ["AsyncLLM"]

logger = logging.getLogger(__name__)

#: Outputs processed before the event loop gets its turn.
_CHUNK = 64
#: Texts up to this many characters are tokenised where they are: a thread costs more.
_INLINE_CHARS = 2048
_PING_EVERY_S = 1.0
_TOKENISE_THREADS = 2


class AsyncLLM:
    """One engine, for one event loop. Satisfies `pegboard.api.engine.EngineClient`."""

    def __init__(self, frontend: Frontend, *, monitor: HealthMonitor | None = None) -> None:
        """Take the parts over; `start` starts the engine core."""
        self._frontend = frontend
        self._monitor = monitor or HealthMonitor()
        self._limits = QueueLimits(frontend.config.scheduler)
        self._pool = ThreadPoolExecutor(_TOKENISE_THREADS, thread_name_prefix="tokenise")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting: asyncio.Task[None] | None = None
        self._pinger: asyncio.Task[None] | None = None
        self._arrived: deque[EngineCoreOutputs] = deque()
        self._draining = False
        self._backlog: deque[EngineCoreOutput] = deque()
        self._call_ids = itertools.count(1)
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._on_death: asyncio.Event = asyncio.Event()
        self._meanwhile: Callable[[], None] | None = None

    @classmethod
    def from_options(
        cls,
        options: EngineOptions | None = None,
        *,
        catalog: Catalog | None = None,
        config: EngineConfig | None = None,
        in_process: bool = False,
        progress: ProgressPrinter | None = None,
    ) -> Self:
        """Resolve the options; the engine starts with `start`, or with the first request.

        Raises:
            PegboardError: what the user gave cannot work.
        """
        frontend = Frontend(
            options, catalog=catalog, config=config, in_process=in_process, progress=progress
        )
        return cls(frontend)

    # --- life ---

    async def start(self, meanwhile: Callable[[], None] | None = None) -> None:
        """Start the engine core and wait until it can answer. May be called again.

        Args:
            meanwhile: called once while the core starts, in the thread that makes this side's
                parts and after them, so that no two threads import one package at a time.

        Raises:
            PegboardError: it could not; the first cause.
        """
        if self._starting is None:
            self._loop = asyncio.get_running_loop()
            self._meanwhile = meanwhile
            self._starting = asyncio.create_task(self._start())
        await asyncio.shield(self._starting)

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        core = loop.run_in_executor(None, self._frontend.start_core, self._on_outputs)
        try:
            await loop.run_in_executor(None, self._make_parts)
        except BaseException:
            self._frontend.close()
            await asyncio.gather(core, return_exceptions=True)
            raise
        await core
        self._monitor.started()
        self._pinger = asyncio.create_task(self._keep_pinging())

    def _make_parts(self) -> None:
        self._frontend.make_parts()
        _ = self._frontend.renderer  # a broken template stops the start, not a request
        if self._meanwhile is not None:
            self._meanwhile()

    async def shutdown(self) -> None:
        """End the engine; open requests fail with `EngineDead`. May be called twice."""
        self._monitor.stopping()
        if self._pinger is not None:
            self._pinger.cancel()
            self._pinger = None
        await asyncio.get_running_loop().run_in_executor(None, self._frontend.close)
        if self._starting is not None:  # a start that this cut short has failed: nobody else looks
            await asyncio.gather(self._starting, return_exceptions=True)
        self._fail_all(EngineDead("the engine was shut down"))
        self._pool.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.shutdown()

    # --- what a front end reads ---

    @property
    def config(self) -> EngineConfigView:
        """The resolved configuration."""
        return self._frontend.config

    @property
    def catalog(self) -> Catalog:
        """The front end's catalog."""
        return self._frontend.catalog

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. After `start`."""
        return self._frontend.tokenizer

    @property
    def renderer(self) -> Renderer:
        """The model's chat renderer. After `start`."""
        return self._frontend.renderer

    @property
    def stats(self) -> SchedulerStats:
        """The newest the engine core has sent."""
        return self._frontend.stats

    @property
    def stat_loggers(self) -> list[StatLogger]:
        """Those of plugins enabled by name, in catalog order. After `start`."""
        return [stat_logger for _, stat_logger in self._frontend.loggers]

    @property
    def num_open(self) -> int:
        """Completions that have not ended."""
        return self._frontend.outputs.num_open

    @property
    def engine_pid(self) -> int | None:
        """Process id of the engine core, if it has a process."""
        return self._frontend.client.pid if self._frontend.client else None

    def health(self) -> EngineHealth:
        """Return at once; never waits for the device."""
        client = self._frontend.client
        return self._monitor.health(client.last_heard if client else 0.0)

    async def wait_dead(self) -> str:
        """Wait until the engine core has died, and return the cause."""
        await self._on_death.wait()
        return self._monitor.dead or "the engine core is gone"

    def explain(self) -> dict[str, Any]:
        """Return the start report: plugins, choices with reasons, phases, memory ledger."""
        return self._frontend.explain()

    # --- requests ---

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        lora: LoraRequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Yield outputs as `params.output_kind` says until the request is finished.

        Closing the iterator aborts the request.

        Raises:
            RequestError: before the first output, for input that cannot be served.
            EngineError: the request was lost; the message says why.
        """
        await self.start()
        self._check_alive()
        arrival = time.time()
        prepared = await self._prepare(
            prompt,
            params,
            request_id,
            priority=priority,
            lora=lora,
            trace_headers=trace_headers,
            arrival_time=arrival,
        )
        queue = OutputQueue(is_delta=params.output_kind == "delta")
        self._submit(prepared, queue)
        finished = False
        try:
            while not finished:
                output = await queue.get()
                finished = output.finished
                yield output
        finally:
            if not finished:
                self._abort_engine_ids(self._frontend.outputs.forget(prepared))

    async def _prepare(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str,
        **rest: Any,  # noqa: ANN401
    ) -> PreparedRequest:
        def process() -> PreparedRequest:
            return self._frontend.inputs.process(request_id, prompt, params, **rest)

        if isinstance(prompt, TextPrompt) and len(prompt.prompt) > _INLINE_CHARS:
            return await asyncio.get_running_loop().run_in_executor(self._pool, process)
        return process()

    def _submit(self, prepared: PreparedRequest, queue: OutputQueue) -> None:
        """Hand a request over, or refuse it; nothing is left behind if that fails."""
        self._check_alive()
        n = len(prepared.children)
        self._limits.admit(n, n * len(prepared.prompt_token_ids))
        self._frontend.outputs.add(prepared, queue.put)
        client = self._frontend.client
        assert client is not None
        try:
            for child in prepared.children:
                client.add(child)
        except BaseException:
            self._frontend.outputs.forget(prepared)
            raise

    def _check_alive(self) -> None:
        if self._monitor.dead is not None:
            raise EngineDead(self._monitor.dead)

    async def abort(self, request_ids: Sequence[str]) -> None:
        """End requests by the client's ids; unknown ones are ignored.

        Their iterators end with the finish reason "abort".
        """
        self._abort_engine_ids(self._frontend.outputs.engine_ids(request_ids))

    def _abort_engine_ids(self, engine_ids: Sequence[str]) -> None:
        client = self._frontend.client
        if not engine_ids or client is None or self._monitor.dead is not None:
            return
        try:
            client.abort(engine_ids)
        except EngineDead:
            logger.debug("nothing to abort: the engine core is gone")

    async def call(self, method: str, *args: Any) -> Any:  # noqa: ANN401 -- a msgpack value
        """Call a named utility of the engine core (reset_prefix_cache, collective_rpc, …).

        Raises:
            InvalidRequest: the engine core refused it, or it failed there.
            EngineDead: there is no engine core.
        """
        await self.start()
        self._check_alive()
        call_id = next(self._call_ids)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = answer
        client = self._frontend.client
        assert client is not None
        try:
            client.call(UtilityCall(call_id=call_id, method=method, args=list(args)))
            return await answer
        finally:
            self._calls.pop(call_id, None)

    # --- outputs ---

    def _on_outputs(self, outputs: EngineCoreOutputs) -> None:
        """Called by the engine core's client from its own thread."""
        self._arrived.append(outputs)
        loop = self._loop
        if not self._draining and loop is not None and not loop.is_closed():
            self._draining = True
            loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        """Process what has arrived, then let the event loop go on."""
        self._draining = False
        while self._arrived:
            message = self._arrived.popleft()
            self._take(message)
        self._process_chunk()

    def _take(self, message: EngineCoreOutputs) -> None:
        if message.utility_result is not None:
            self._answer(message.utility_result)
        if message.stats is not None:
            self._frontend.stats = message.stats
            finished = sum(1 for o in message.outputs if o.finish_reason is not None)
            self._limits.observe(message.stats, finished, time.monotonic())
            self._heard()
        self._backlog.extend(message.outputs)
        if message.engine_dead is not None:
            self._process_all()
            self._monitor.died(message.engine_dead)
            self._fail_all(EngineDead(message.engine_dead))
            self._on_death.set()

    def _process_all(self) -> None:
        while self._backlog:
            self._process(len(self._backlog))

    def _process_chunk(self) -> None:
        if not self._backlog:
            return
        self._process(min(_CHUNK, len(self._backlog)))
        if self._backlog and self._loop is not None:
            self._loop.call_soon(self._process_chunk)

    def _process(self, count: int) -> None:
        outputs = [self._backlog.popleft() for _ in range(count)]
        processed = self._frontend.outputs.process(outputs)
        self._abort_engine_ids(processed.abort_ids)
        self._frontend.record(processed.stats)

    def _answer(self, result: UtilityResult) -> None:
        answer = self._calls.pop(result.call_id, None)
        if answer is None or answer.done():
            return
        if result.error is not None:
            answer.set_exception(InvalidRequest(result.error, param="method"))
        else:
            answer.set_result(result.value)

    def _fail_all(self, error: EngineError) -> None:
        if self._frontend.parts_made:
            self._frontend.outputs.fail_all(error)
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(EngineDead(str(error)))
        self._calls.clear()

    def _heard(self) -> None:
        client = self._frontend.client
        turns = client.turns if client else 0
        self._monitor.heard((turns, self.stats.num_steps), has_work=self.num_open > 0)

    async def _keep_pinging(self) -> None:
        """Ask a silent engine core for a sign of life, so that health knows without waiting."""
        client = self._frontend.client
        assert client is not None
        while self._monitor.dead is None:
            await asyncio.sleep(_PING_EVERY_S)
            self._heard()
            with contextlib.suppress(EngineDead):  # its end is told by other means
                client.ping()
