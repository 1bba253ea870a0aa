"""The synchronous client of an engine: add requests, step, read outputs."""

import itertools
import logging
import queue
from collections.abc import Mapping, Sequence
from typing import Any, Self

from pegboard.api.engine import Prompt
from pegboard.api.errors import EngineDead, InvalidRequest
from pegboard.api.messages import EngineCoreOutputs, UtilityCall
from pegboard.api.outputs import RequestOutput
from pegboard.api.sampling_params import SamplingParams
from pegboard.catalog.catalog import Catalog
from pegboard.config.engine import EngineConfig, EngineOptions
from pegboard.engine.frontend import Frontend, ProgressPrinter

__all__ = ["LLMEngine"]

logger = logging.getLogger(__name__)


class LLMEngine:
    """One engine for one thread. It is running when the constructor returns."""

    def __init__(
        self,
        options: EngineOptions | None = None,
        *,
        catalog: Catalog | None = None,
        config: EngineConfig | None = None,
        in_process: bool = False,
        progress: ProgressPrinter | None = None,
    ) -> None:
        """Resolve the options and start the engine core.

        Raises:
            PegboardError: it could not start; the first cause.
        """
        self.frontend = Frontend(
            options, catalog=catalog, config=config, in_process=in_process, progress=progress
        )
        self._arrived: queue.SimpleQueue[EngineCoreOutputs] = queue.SimpleQueue()
        self._ready: list[RequestOutput] = []
        self._failures: list[Exception] = []
        self._call_ids = itertools.count(1)
        self._answers: dict[int, Any] = {}
        self._dead: str | None = None
        try:
            self.frontend.start_with_parts(self._arrived.put)
        except BaseException:
            self.frontend.close()
            raise

    @property
    def has_unfinished(self) -> bool:
        """Whether a request has not ended."""
        return self.frontend.outputs.num_open > 0

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        priority: int = 0,
        trace_headers: Mapping[str, str] | None = None,
    ) -> None:
        """Hand a request over; its outputs come from `step`.

        Raises:
            RequestError: it cannot be served.
            EngineDead: there is no engine core.
        """
        self._check_alive()
        inputs = self.frontend.inputs
        prepared = inputs.process(
            request_id, prompt, params, priority=priority, trace_headers=trace_headers
        )
        self.frontend.outputs.add(prepared, self._sink)
        try:
            for child in prepared.children:
                self._client.add(child)
        except BaseException:
            self.frontend.outputs.forget(prepared)
            raise

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests by their ids; their last output has the finish reason "abort"."""
        self._client.abort(self.frontend.outputs.engine_ids(request_ids))

    def forget(self, request_ids: Sequence[str]) -> None:
        """End requests whose outputs nobody wants any more."""
        engine_ids = self.frontend.outputs.engine_ids(request_ids)
        self.frontend.outputs.drop(engine_ids)
        wanted = set(request_ids)
        self._ready = [o for o in self._ready if o.request_id not in wanted]
        if self._dead is None:
            self._client.abort(engine_ids)

    def step(self) -> list[RequestOutput]:
        """Wait for the engine core's next message and return the outputs it leads to.

        Raises:
            EngineDead: the engine core died; every open request is lost.
            StepError: a request failed in the engine.
        """
        if not self._ready and not self._failures and self.has_unfinished:
            self._take(self._arrived.get())
        while not self._arrived.empty():
            self._take(self._arrived.get())
        if self._failures:
            raise self._failures.pop(0)
        ready, self._ready = self._ready, []
        return ready

    def call(self, method: str, *args: Any) -> Any:  # noqa: ANN401 -- a msgpack value
        """Call a named utility of the engine core.

        Raises:
            InvalidRequest: the engine core refused it, or it failed there.
            EngineDead: there is no engine core.
        """
        self._check_alive()
        call_id = next(self._call_ids)
        self._client.call(UtilityCall(call_id=call_id, method=method, args=list(args)))
        while call_id not in self._answers:
            self._take(self._arrived.get())
            self._check_alive()
        result = self._answers.pop(call_id)
        if result.error is not None:
            raise InvalidRequest(result.error, param="method")
        return result.value

    def shutdown(self) -> None:
        """End the engine. May be called twice."""
        self.frontend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()

    @property
    def _client(self) -> Any:  # noqa: ANN401 -- a CoreClient, there since the start
        return self.frontend.client

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise EngineDead(self._dead)

    def _sink(self, item: RequestOutput | Exception) -> None:
        if isinstance(item, Exception):
            self._failures.append(item)
        else:
            self._ready.append(item)

    def _take(self, message: EngineCoreOutputs) -> None:
        if message.utility_result is not None:
            self._answers[message.utility_result.call_id] = message.utility_result
        if message.stats is not None:
            self.frontend.stats = message.stats
        if message.outputs:
            processed = self.frontend.outputs.process(message.outputs)
            self._client.abort(processed.abort_ids)
            self.frontend.record(processed.stats)
        if message.engine_dead is not None:
            self._dead = message.engine_dead
            self.frontend.outputs.fail_all(EngineDead(message.engine_dead))
