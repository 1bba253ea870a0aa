"""One request and its answer: the thin layer over ASGI that every handler is given."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, TypeVar

import msgspec

__all__ = ["ClientGone", "HttpRequest"]

T = TypeVar("T")
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_JSON = (b"content-type", b"application/json")
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class ClientGone(Exception):
    """The client closed its connection; there is nobody to answer."""


class HttpRequest:
    """An ASGI exchange. Answers are sent by its methods, so that `status` is always known.

    Attributes:
        scope: the ASGI scope.
        request_id: names the request in logs and headers.
        path: without the root path.
        status: what was answered; 0 before.
        extra_headers: sent with whatever is answered.
    """

    __slots__ = (
        "_headers",
        "_send",
        "extra_headers",
        "finished",
        "path",
        "receive",
        "request_id",
        "scope",
        "status",
    )

    def __init__(
        self, scope: MutableMapping[str, Any], receive: Receive, send: Send, request_id: str
    ) -> None:
        """Wrap one exchange."""
        self.scope = scope
        self.receive = receive
        self._send = send
        self.request_id = request_id
        self.status = 0
        self.finished = False
        self.extra_headers: list[tuple[bytes, bytes]] = []
        self._headers: dict[bytes, bytes] | None = None
        path: str = scope["path"]
        root: str = scope.get("root_path", "")
        self.path = path[len(root) :] if root and path.startswith(root) else path

    @property
    def method(self) -> str:
        """Such as GET."""
        return self.scope["method"]

    def header(self, name: bytes) -> str | None:
        """Return a header by its lower-case name; the last one if it came twice."""
        if self._headers is None:
            self._headers = dict(self.scope["headers"])
        value = self._headers.get(name)
        return None if value is None else value.decode("latin-1")

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Pass an ASGI message on, noting what it says; for mounted applications."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), *self.extra_headers]
        elif not message.get("more_body", False):
            self.finished = True
        await self._send(message)

    async def answer(
        self,
        status: int,
        body: bytes,
        *,
        headers: dict[str, str] | None = None,
        content_type: bytes = b"application/json",
    ) -> None:
        """Send a whole response."""
        pairs = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
        pairs += [(k.encode("latin-1"), v.encode("latin-1")) for k, v in (headers or {}).items()]
        await self.send({"type": "http.response.start", "status": status, "headers": pairs})
        await self.send({"type": "http.response.body", "body": body, "more_body": False})

    async def answer_json(self, value: object, status: int = 200) -> None:
        """Send a value as JSON."""
        await self.answer(status, msgspec.json.encode(value))

    async def start_stream(self) -> None:
        """Begin an event stream, answered 200."""
        headers = list(_STREAM_HEADERS)
        await self.send({"type": "http.response.start", "status": 200, "headers": headers})

    async def write(self, data: bytes) -> None:
        """Send bytes of the stream; waits while the client does not read."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end_stream(self, data: bytes) -> None:
        """Send the stream's last bytes."""
        self.finished = True
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work`, cancelling it as soon as the client is gone.

        Raises:
            ClientGone: it went first.
        """
        task = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(self._disconnected())
        try:
            await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientGone
            return task.result()
        finally:
            task.cancel()
            gone.cancel()
            await asyncio.wait((task, gone))

    async def _disconnected(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
