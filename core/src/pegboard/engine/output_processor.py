"""What the engine core sends becomes what clients see.

Finds stop strings, decodes text and logprobs, gathers the completions of one request, keeps its
times. Knows neither asyncio nor sockets: each request has a sink that takes its outputs. Not
thread-safe: one thread adds requests and processes outputs.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from pegboard.api.errors import EngineDead, StepError
from pegboard.api.messages import (
    EngineCoreOutput,
    FinishedRequestStats,
    FinishReason,
    IterationStats,
    TokenLogprobs,
)
from pegboard.api.outputs import PositionLogprobs, RequestMetrics, RequestOutput
from pegboard.api.tokenizers import Tokenizer
from pegboard.engine.input_processor import PreparedRequest
from pegboard.engine.logprobs import LogprobsDecoder
from pegboard.engine.sequence_state import SequenceState

__all__ = ["OutputProcessor", "Processed", "Sink"]

#: Takes each output of a request, or the error that ended it; must not raise.
Sink = Callable[[RequestOutput | Exception], None]


@dataclass(frozen=True, slots=True)
class Processed:
    """What a batch of outputs leads to.

    Attributes:
        abort_ids: engine ids of requests that ended here and still run in the engine core.
        stats: numbers for the stat loggers.
    """

    abort_ids: list[str] = field(default_factory=list)
    stats: IterationStats = field(default_factory=IterationStats)


class _OpenRequest:
    """A client's request with its completions."""

    __slots__ = (
        "metrics",
        "num_cached_tokens",
        "num_open",
        "prepared",
        "prompt_logprobs",
        "sequences",
        "sink",
    )

    def __init__(
        self, prepared: PreparedRequest, sink: Sink, sequences: list[SequenceState]
    ) -> None:
        self.prepared = prepared
        self.sink = sink
        self.sequences = sequences
        self.num_open = len(sequences)
        self.num_cached_tokens = 0
        self.prompt_logprobs = _unreported(prepared)
        self.metrics = RequestMetrics(arrival_time=prepared.arrival_time)

    def output(self, sequence: SequenceState) -> RequestOutput:
        kind = self.prepared.params.output_kind
        shown = [sequence] if kind == "delta" else self.sequences
        return RequestOutput(
            request_id=self.prepared.request_id,
            prompt=self.prepared.prompt,
            prompt_token_ids=self.prepared.prompt_token_ids,
            prompt_logprobs=self.prompt_logprobs,
            outputs=[s.take() for s in shown],
            finished=self.num_open == 0,
            metrics=self.metrics,
            num_cached_tokens=self.num_cached_tokens,
        )


class OutputProcessor:
    """The open requests of one front end."""

    def __init__(self, tokenizer: Tokenizer, *, stream_interval: int = 1) -> None:
        """Decode with `tokenizer`; streams get an output every `stream_interval` tokens."""
        self._tokenizer = tokenizer
        self._stream_interval = stream_interval
        self._decoder = LogprobsDecoder(tokenizer)
        #: Engine id to the request and which of its completions.
        self._open: dict[str, tuple[_OpenRequest, SequenceState]] = {}
        #: Client's id to engine ids; a client may use an id twice.
        self._by_client_id: dict[str, list[str]] = {}

    @property
    def num_open(self) -> int:
        """Completions that have not ended."""
        return len(self._open)

    def add(self, prepared: PreparedRequest, sink: Sink) -> None:
        """Expect outputs of a request."""
        params = prepared.params
        sequences = [
            SequenceState(i, params, prepared.prompt_token_ids, self._tokenizer, self._decoder)
            for i in range(len(prepared.children))
        ]
        request = _OpenRequest(prepared, sink, sequences)
        for child, sequence in zip(prepared.children, sequences, strict=True):
            self._open[child.request_id] = (request, sequence)
        self._by_client_id.setdefault(prepared.request_id, []).extend(
            child.request_id for child in prepared.children
        )

    def forget(self, prepared: PreparedRequest) -> list[str]:
        """Drop a request whose client is gone; return the engine ids that still run."""
        return [c.request_id for c in prepared.children if self._drop(c.request_id)]

    def drop(self, engine_ids: Iterable[str]) -> None:
        """Drop completions by their engine ids; unknown ones are ignored."""
        for engine_id in engine_ids:
            self._drop(engine_id)

    def engine_ids(self, client_ids: Iterable[str]) -> list[str]:
        """Return the engine ids of clients' ids; unknown ones are left out."""
        return [e for c in client_ids for e in self._by_client_id.get(c, ())]

    def fail_all(self, error: Exception) -> None:
        """End every open request with an error."""
        requests = {id(request): request for request, _ in self._open.values()}
        self._open.clear()
        self._by_client_id.clear()
        for request in requests.values():
            request.sink(_error_for(request, error))

    def process(self, outputs: Sequence[EngineCoreOutput]) -> Processed:
        """Take one step's outputs; outputs of unknown requests (aborted since) are ignored."""
        processed = Processed()
        now = time.time()
        for output in outputs:
            found = self._open.get(output.request_id)
            if found is not None:
                self._process_one(output, *found, processed, now)
        return processed

    def _process_one(
        self,
        output: EngineCoreOutput,
        request: _OpenRequest,
        sequence: SequenceState,
        processed: Processed,
        now: float,
    ) -> None:
        if output.finish_reason == "error":
            self._fail(output, request, processed)
            return
        self._record(output, request, sequence, processed.stats, now)
        sequence.accept(output)
        if output.prompt_logprobs and sequence.index == 0:
            self._accept_prompt_logprobs(request, output.prompt_logprobs)
        if sequence.finish_reason is not None:
            self._finish(output, request, sequence.finish_reason, processed, now)
        kind = request.prepared.params.output_kind
        if kind == "final":
            if request.num_open == 0:
                request.sink(request.output(sequence))
            return
        interval = request.prepared.params.stream_interval or self._stream_interval
        if (output.new_token_ids or sequence.finish_reason) and sequence.is_due(interval):
            request.sink(request.output(sequence))

    def _finish(
        self,
        output: EngineCoreOutput,
        request: _OpenRequest,
        reason: FinishReason,
        processed: Processed,
        now: float,
    ) -> None:
        if output.finish_reason is None:  # a stop string, which the engine core cannot see
            processed.abort_ids.append(output.request_id)
        self._drop(output.request_id)
        request.num_open -= 1
        if request.num_open == 0:
            processed.stats.finished.append(_finished(request, reason, now))

    def _fail(self, output: EngineCoreOutput, request: _OpenRequest, processed: Processed) -> None:
        """One completion was lost: the whole request is."""
        for engine_id in self.forget(request.prepared):
            if engine_id != output.request_id:
                processed.abort_ids.append(engine_id)
        client_id = request.prepared.request_id
        processed.stats.finished.append(_finished(request, "error", time.time()))
        cause = output.error or "the engine gave no reason"
        request.sink(StepError(f"request {client_id} failed: {cause}", request_ids=[client_id]))

    def _drop(self, engine_id: str) -> bool:
        found = self._open.pop(engine_id, None)
        if found is None:
            return False
        client_id = found[0].prepared.request_id
        ids = self._by_client_id[client_id]
        ids.remove(engine_id)
        if not ids:
            del self._by_client_id[client_id]
        return True

    def _record(
        self,
        output: EngineCoreOutput,
        request: _OpenRequest,
        sequence: SequenceState,
        stats: IterationStats,
        now: float,
    ) -> None:
        metrics = request.metrics
        for event in output.events:
            if event.kind == "queued":
                metrics.queued_ts = metrics.queued_ts or event.time
            elif event.kind == "scheduled":
                metrics.scheduled_ts = metrics.scheduled_ts or event.time
            else:
                metrics.num_preemptions += 1
        if output.num_cached_tokens:
            request.num_cached_tokens = max(request.num_cached_tokens, output.num_cached_tokens)
        num_new = len(output.new_token_ids)
        if not num_new:
            return
        if sequence.num_tokens == 0:
            if not metrics.first_token_ts:
                metrics.first_token_ts = now
                stats.num_prompt_tokens += len(request.prepared.prompt_token_ids)
                stats.num_cached_tokens += request.num_cached_tokens
            stats.time_to_first_token_s.append(now - metrics.arrival_time)
        else:
            stats.inter_token_latency_s.append(now - sequence.last_token_ts)
        sequence.last_token_ts = now
        metrics.last_token_ts = now
        metrics.num_generation_tokens += num_new
        stats.num_generation_tokens += num_new

    def _accept_prompt_logprobs(
        self, request: _OpenRequest, entries: Sequence[TokenLogprobs]
    ) -> None:
        if request.prompt_logprobs is None:
            return
        most = len(request.prepared.prompt_token_ids) - len(request.prompt_logprobs)
        request.prompt_logprobs += [self._decoder.position(e) for e in entries[:most]]


def _unreported(prepared: PreparedRequest) -> list[PositionLogprobs | None] | None:
    """Return the prompt positions that get no logprobs, if any others do."""
    params = prepared.params
    if params.prompt_logprobs is None and params.prompt_logprob_token_ids is None:
        return None
    num_positions = max(1, params.prompt_logprob_start or 0)
    positions: list[PositionLogprobs | None] = [None]
    return positions * min(num_positions, len(prepared.prompt_token_ids))


def _error_for(request: _OpenRequest, error: Exception) -> Exception:
    """Return a fresh error a request: one object raised in many tasks would mix tracebacks."""
    ids = [request.prepared.request_id]
    return EngineDead(str(error), request_ids=ids) if isinstance(error, EngineDead) else error


def _finished(request: _OpenRequest, reason: FinishReason, now: float) -> FinishedRequestStats:
    metrics = request.metrics
    params = request.prepared.params
    start = metrics.scheduled_ts or metrics.arrival_time
    first = metrics.first_token_ts or now
    last = metrics.last_token_ts or now
    return FinishedRequestStats(
        finish_reason=reason,
        e2e_latency_s=now - metrics.arrival_time,
        queued_s=max(0.0, start - (metrics.queued_ts or metrics.arrival_time)),
        prefill_s=max(0.0, first - start),
        decode_s=max(0.0, last - first),
        inference_s=max(0.0, last - start),
        num_prompt_tokens=len(request.prepared.prompt_token_ids),
        num_cached_tokens=request.num_cached_tokens,
        num_generation_tokens=metrics.num_generation_tokens,
        max_tokens=params.max_tokens,
        n=params.n,
        num_preemptions=metrics.num_preemptions,
    )
