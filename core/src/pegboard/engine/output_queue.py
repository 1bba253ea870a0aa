"""A request's outputs on their way to its asyncio client.

Holds at most one output: a client that is slow finds several steps merged, so that memory does
not grow with what it has not read.
"""

import asyncio

from pegboard.api.outputs import CompletionOutput, RequestOutput

__all__ = ["OutputQueue"]


class OutputQueue:
    """One writer and one reader, both in the event loop's thread."""

    __slots__ = ("_is_delta", "_pending", "_waiter")

    def __init__(self, *, is_delta: bool) -> None:
        """Merge deltas by joining them, other kinds by keeping the newest."""
        self._is_delta = is_delta
        self._pending: RequestOutput | Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: RequestOutput | Exception) -> None:
        """Add an output, or the error after which nothing follows."""
        pending = self._pending
        if isinstance(item, Exception) or not isinstance(pending, RequestOutput):
            self._pending = item if not isinstance(pending, Exception) else pending
        elif self._is_delta:
            _join(pending, item)
        else:
            self._pending = item
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> RequestOutput:
        """Return what there is, waiting for something; raise what was put as an error."""
        while self._pending is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        item, self._pending = self._pending, None
        if isinstance(item, Exception):
            raise item
        return item


def _join(older: RequestOutput, newer: RequestOutput) -> None:
    """Append a delta to one that was not read yet."""
    known = {completion.index: completion for completion in older.outputs}
    for completion in newer.outputs:
        if completion.index in known:
            _extend(known[completion.index], completion)
        else:
            older.outputs.append(completion)
    older.finished = newer.finished
    older.metrics = newer.metrics
    older.prompt_logprobs = newer.prompt_logprobs
    older.num_cached_tokens = newer.num_cached_tokens


def _extend(older: CompletionOutput, newer: CompletionOutput) -> None:
    older.text += newer.text
    older.token_ids += newer.token_ids
    older.cumulative_logprob = newer.cumulative_logprob
    older.finish_reason = newer.finish_reason
    older.stop_reason = newer.stop_reason
    if older.logprobs is not None and newer.logprobs is not None:
        older.logprobs.extend(newer.logprobs)
