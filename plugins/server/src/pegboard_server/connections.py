"""One HTTP/1.1 connection, with bounds on what a slow or greedy client can hold."""

import asyncio
import logging
from typing import Any

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from pegboard_server.config import ServerConfig
from pegboard_server.errors import error_body

__all__ = ["make_protocol"]


#: What clients do wrong is theirs to mend: no warnings for the operator.
_client_faults = logging.getLogger("pegboard_server.client_faults")
_client_faults.setLevel(logging.ERROR)
#: Requests of one connection that may wait for the one at work.
_MAX_PIPELINED = 16


class _HeadTooLarge(Exception):
    """The request line and headers are past a limit."""


class BoundedProtocol(HttpToolsProtocol):
    """Adds to uvicorn's protocol: size, number and time of headers, time of unread answers."""

    options: ServerConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 -- uvicorn's own
        """Start outside any request."""
        super().__init__(*args, **kwargs)
        self.logger = _client_faults
        self._in_head = True
        self._head_bytes = 0
        self._head_refused = False
        self._running: RequestResponseCycle | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start waiting for the first head."""
        super().connection_made(transport)
        self._arm_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers, and tell every request of the connection, not just the newest."""
        self._stop_head_timer()
        self._stop_write_timer()
        waiting = [cycle for cycle, _ in self.pipeline]
        self.pipeline.clear()
        for cycle in (self._running, *waiting):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, unless the head has grown too large."""
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_timer is None:
                self._arm_head_timer()
        super().data_received(data)
        if self._in_head and self._head_bytes > self.options.max_header_bytes:
            self._refuse_head()

    def on_message_begin(self) -> None:
        """A request begins."""
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is whole: check it, stop the clock."""
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        self._in_head = False
        self._head_bytes = 0
        self._stop_head_timer()
        if (
            size > self.options.max_header_bytes
            or len(self.headers) > self.options.max_header_count
        ):
            self._head_refused = True
            raise _HeadTooLarge
        if len(self.pipeline) >= _MAX_PIPELINED:
            self.transport.abort()
            return
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:  # noqa: ANN401
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_message_complete(self) -> None:
        """The request is whole; what follows is another head."""
        self._in_head = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, or too much of it, and close."""
        if self._head_refused:
            self._refuse_head()
        else:
            self._refuse(400, msg)

    def pause_writing(self) -> None:
        """The client does not read: give it a while."""
        super().pause_writing()
        timeout_s = self.options.write_timeout_s
        if timeout_s and self._write_timer is None:
            self._write_timer = self.loop.call_later(timeout_s, self._give_up_writing)

    def resume_writing(self) -> None:
        """It reads again."""
        self._stop_write_timer()
        super().resume_writing()

    def _give_up_writing(self) -> None:
        self._write_timer = None
        self.transport.abort()

    def _arm_head_timer(self) -> None:
        timeout_s = self.options.header_timeout_s
        if timeout_s:
            self._head_timer = self.loop.call_later(timeout_s, self._give_up_head)

    def _give_up_head(self) -> None:
        self._head_timer = None
        busy = self.cycle is not None and not self.cycle.response_complete
        if self._in_head and not busy and not self.transport.is_closing():
            self._refuse(408, "the request's headers did not come in time")

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _refuse_head(self) -> None:
        limit = self.options.max_header_bytes
        count = self.options.max_header_count
        self._refuse(431, f"the headers are larger than {limit} bytes or more than {count}")

    def _refuse(self, status: int, message: str) -> None:
        if self.transport.is_closing():
            return
        body = error_body(status, message, param=None)
        head = [
            STATUS_LINE[status],
            b"content-type: application/json\r\n",
            b"content-length: %d\r\n" % len(body),
            b"connection: close\r\n\r\n",
        ]
        self.transport.write(b"".join(head) + body)
        self.transport.close()


def make_protocol(options: ServerConfig) -> type[BoundedProtocol]:
    """Return a protocol class bound to the server's options, as uvicorn wants one."""
    return type("ServerProtocol", (BoundedProtocol,), {"options": options})
