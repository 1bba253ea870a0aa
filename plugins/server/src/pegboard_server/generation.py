"""Runs the calls of one HTTP request through the engine, whole or as a stream of outputs."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

import msgspec

from pegboard.api.engine import Prompt
from pegboard.api.errors import EngineError
from pegboard.api.outputs import CompletionOutput, RequestMetrics, RequestOutput
from pegboard.api.sampling_params import SamplingParams
from pegboard_server.schemas.responses import Usage
from pegboard_server.state import ServerState

__all__ = [
    "EngineCall",
    "UsageCount",
    "all_or_none",
    "finish_of",
    "open_outputs",
    "request_metrics",
    "run_to_end",
]

T = TypeVar("T")


class EngineCall(msgspec.Struct, kw_only=True):
    """One prompt on its way to the engine.

    Attributes:
        request_id: the engine's.
        num_prompt_tokens: where it is known before the first output.
        prompt_text: where it is text, or was decoded for echo.
    """

    request_id: str
    prompt: Prompt
    params: SamplingParams
    priority: int = 0
    trace_headers: dict[str, str] | None = None
    num_prompt_tokens: int = 0
    prompt_text: str | None = None


@asynccontextmanager
async def open_outputs(
    state: ServerState, call: EngineCall
) -> AsyncIterator[AsyncIterator[RequestOutput]]:
    """Start a call; leaving the context ends it in the engine, finished or not."""
    outputs: Any = state.client.generate(
        call.prompt,
        call.params,
        call.request_id,
        priority=call.priority,
        trace_headers=call.trace_headers,
    )
    state.open_ids.add(call.request_id)
    try:
        async with aclosing(outputs):
            yield outputs
    finally:
        state.open_ids.discard(call.request_id)


async def run_to_end(state: ServerState, call: EngineCall) -> RequestOutput:
    """Return a call's final output.

    Raises:
        RequestError: it cannot be served.
        EngineError: it was lost.
    """
    last = None
    async with open_outputs(state, call) as outputs:
        async for output in outputs:
            last = output
    if last is None:
        raise EngineError("the engine ended the request without an output")
    last.outputs.sort(key=lambda completion: completion.index)
    for completion in last.outputs:
        finish_of(completion)
    return last


def finish_of(completion: CompletionOutput) -> str | None:
    """Return the finish reason as the protocol writes it.

    Raises:
        EngineError: the completion failed.
    """
    if completion.finish_reason == "error":
        detail = completion.stop_reason if isinstance(completion.stop_reason, str) else ""
        raise EngineError(f"the engine failed this request{': ' if detail else ''}{detail}")
    return completion.finish_reason


async def all_or_none(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run everything at once; the first failure cancels the rest and is raised as it is."""
    if len(work) == 1:
        return [await work[0]]
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        pending = [task for task in tasks if not task.done()]
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.gather(*pending, return_exceptions=True)


class UsageCount:
    """Adds up the tokens of one HTTP request."""

    __slots__ = ("_details", "cached", "completion", "prompt")

    def __init__(self, *, details: bool) -> None:
        """Start at zero; `details` reports cached tokens."""
        self._details = details
        self.prompt = 0
        self.completion = 0
        self.cached = 0

    def add_whole(self, output: RequestOutput) -> None:
        """Add a final output."""
        self.prompt += len(output.prompt_token_ids)
        self.cached += output.num_cached_tokens
        self.completion += sum(len(c.token_ids) for c in output.outputs)

    def report(self) -> Usage:
        """Return the counts so far."""
        usage = Usage(
            prompt_tokens=self.prompt,
            completion_tokens=self.completion,
            total_tokens=self.prompt + self.completion,
        )
        if self._details:
            usage.prompt_tokens_details = {"cached_tokens": self.cached}
        return usage


def request_metrics(metrics: RequestMetrics | None) -> dict[str, float | None]:
    """Return a request's times in milliseconds."""
    if metrics is None or not metrics.first_token_ts:
        return {}
    decode_s = metrics.last_token_ts - metrics.first_token_ts
    after_first = metrics.num_generation_tokens - 1
    return {
        "time_to_first_token_ms": (metrics.first_token_ts - metrics.arrival_time) * 1e3,
        "queue_time_ms": max(0.0, metrics.scheduled_ts - metrics.queued_ts) * 1e3,
        "generation_time_ms": decode_s * 1e3,
        "mean_itl_ms": decode_s / after_first * 1e3 if after_first > 0 else None,
        "tokens_per_second": after_first / decode_s if decode_s > 0 else None,
    }
