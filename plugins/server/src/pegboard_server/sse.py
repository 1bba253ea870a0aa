"""Server-sent events: one stream's start, chunks, silence, failure and end."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import msgspec

from pegboard_server.errors import answer_for
from pegboard_server.responder import HttpRequest

__all__ = ["EventStream", "encode_event", "send_events"]

_DONE = b"data: [DONE]\n\n"
_KEEP_ALIVE = b": keep-alive\n\n"
_encode = msgspec.json.Encoder().encode


def encode_event(chunk: msgspec.Struct) -> bytes:
    """Return one event."""
    return b"data: " + _encode(chunk) + b"\n\n"


class EventStream:
    """A stream of events.

    The head of the answer goes out with the first event, so that a request refused before it
    still gets its own status. Used as an async context manager; leaving it stops the
    keep-alive comments.
    """

    __slots__ = ("_interval_s", "_keep_alive", "_loop", "_request", "_sent_at", "started")

    def __init__(self, request: HttpRequest, keep_alive_interval_s: float) -> None:
        """Prepare a stream; sends nothing."""
        self._request = request
        self._interval_s = keep_alive_interval_s
        self._keep_alive: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._sent_at = self._loop.time()
        self.started = False

    async def __aenter__(self) -> Self:
        """Watch for silence, if comments are wanted."""
        if self._interval_s:
            self._keep_alive = asyncio.create_task(self._fill_silence())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop watching."""
        if self._keep_alive is not None:
            self._keep_alive.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keep_alive

    async def send(self, events: bytes) -> None:
        """Send encoded events; waits while the client does not read."""
        if not self.started:
            self.started = True
            await self._request.start_stream()
        if self._interval_s:
            self._sent_at = self._loop.time()
        await self._request.write(events)

    async def end(self, events: bytes = b"") -> None:
        """Send the last events and the end mark."""
        if not self.started:
            self.started = True
            await self._request.start_stream()
        await self._request.end_stream(events + _DONE)

    async def fail(self, error: BaseException) -> None:
        """Send the error as an event, and the end mark."""
        body = answer_for(error, self._request.request_id).body
        await self.end(b"data: " + body + b"\n\n")

    async def _fill_silence(self) -> None:
        while True:
            due = self._sent_at + self._interval_s
            wait_s = due - self._loop.time()
            if wait_s <= 0:
                await self.send(_KEEP_ALIVE)
                continue
            await asyncio.sleep(wait_s)


async def send_events(
    request: HttpRequest,
    produce: Callable[[EventStream], Awaitable[None]],
    *,
    keep_alive_interval_s: float,
    timeout_s: float,
) -> None:
    """Answer with the events that `produce` sends; a failure after the first becomes an event.

    Args:
        request: what is answered.
        produce: sends the events, all of them.
        keep_alive_interval_s: seconds of silence before a comment; 0 for none.
        timeout_s: most seconds it may take; 0 for no limit.

    Raises:
        Exception: what `produce` raised before the first event.
    """
    async with EventStream(request, keep_alive_interval_s) as stream:
        try:
            async with asyncio.timeout(timeout_s or None):
                await produce(stream)
        except Exception as error:
            if not stream.started:
                raise
            await stream.fail(error)
