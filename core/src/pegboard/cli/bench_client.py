"""A small HTTP client that times the events of a streamed completion."""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from pegboard.api.errors import ConfigError

__all__ = ["RequestTimes", "Target", "closed_loop", "first_model", "stream_once"]

_READ_BYTES = 1 << 16
_PROBLEM = (OSError, ValueError, KeyError, RuntimeError, EOFError, TimeoutError)


class Target:
    """A server: where it is, and what every request to it says.

    Attributes:
        url: as it was given.
        model: the name that requests use.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str = "",
        endpoint: str = "completions",
        api_key: str | None = None,
        extra_body: dict[str, Any] | None = None,
        ignore_eos: bool = True,
        timeout_s: float = 300.0,
    ) -> None:
        """Parse the address.

        Raises:
            ConfigError: it is no HTTP URL.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{url!r} is no server; write http://127.0.0.1:8000/v1 (--base-url)")
        self.url = url
        self.host = parts.hostname
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self.path = parts.path.rstrip("/")
        self.tls = ssl.create_default_context() if parts.scheme == "https" else None
        self.model = model
        self.endpoint = endpoint
        self.timeout_s = timeout_s
        self._key = api_key or "none"
        self._extra = extra_body or {}
        self._ignore_eos = ignore_eos

    def body(self, prompt: str, output_len: int) -> dict[str, Any]:
        """Return a streamed, greedy completion request."""
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": output_len,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._ignore_eos:
            body["ignore_eos"] = True
        if self.endpoint == "chat":
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        return {**body, **self._extra}

    def head(self, method: str, path: str, length: int) -> bytes:
        """Return a request's head."""
        return (
            f"{method} {self.path}{path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n"
            f"Authorization: Bearer {self._key}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {length}\r\nConnection: close\r\n\r\n"
        ).encode()


class RequestTimes:
    """What one request saw; times by `time.perf_counter`.

    Attributes:
        start: before the connection was opened.
        first, last: when the first and the last text came; 0 before.
        gaps: seconds between two events with text.
        num_prompt_tokens, num_output_tokens, num_cached_tokens: as the server counts.
        error: one line, or None.
    """

    __slots__ = (
        "error",
        "first",
        "gaps",
        "last",
        "num_cached_tokens",
        "num_output_tokens",
        "num_prompt_tokens",
        "start",
    )

    def __init__(self) -> None:
        """Start the clock."""
        self.start = time.perf_counter()
        self.first = 0.0
        self.last = 0.0
        self.gaps: list[float] = []
        self.num_prompt_tokens = 0
        self.num_output_tokens = 0
        self.num_cached_tokens: int | None = None
        self.error: str | None = None

    def text_came(self) -> None:
        """Note an event with text."""
        now = time.perf_counter()
        if self.first:
            self.gaps.append(now - self.last)
        else:
            self.first = now
        self.last = now

    def take_usage(self, usage: dict[str, Any]) -> None:
        """Take the server's counts."""
        self.num_prompt_tokens = usage.get("prompt_tokens") or 0
        self.num_output_tokens = usage.get("completion_tokens") or 0
        details = usage.get("prompt_tokens_details") or {}
        self.num_cached_tokens = details.get("cached_tokens")


async def _exchange(
    target: Target, method: str, path: str, body: dict[str, Any] | None
) -> AsyncIterator[tuple[int, bytes]]:
    """Yield (status, nothing) and then (status, piece) for each piece of the answer's body."""
    data = b"" if body is None else json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(
        target.host, target.port, ssl=target.tls, limit=1 << 20
    )
    try:
        writer.write(target.head(method, path, len(data)) + data)
        await writer.drain()
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(head[0].split()[1])
        fields = {name.strip().lower(): value.strip() for name, _, value in _pairs(head[1:])}
        yield status, b""
        if fields.get("transfer-encoding", "").lower() == "chunked":
            while size := int((await reader.readline()).partition(b";")[0] or b"0", 16):
                yield status, await reader.readexactly(size)
                await reader.readexactly(2)
        else:
            left = int(fields.get("content-length", 1 << 40))
            while left > 0 and (piece := await reader.read(min(left, _READ_BYTES))):
                left -= len(piece)
                yield status, piece
    finally:
        writer.close()


def _pairs(lines: Sequence[str]) -> list[tuple[str, str, str]]:
    return [line.partition(":") for line in lines]


async def first_model(target: Target) -> str:
    """Return the first model that the server lists.

    Raises:
        RuntimeError: it answers, but not with a list.
        OSError: it does not answer.
    """
    status, data = 0, b""
    async for code, piece in _exchange(target, "GET", "/models", None):
        status, data = code, data + piece
    if status != 200:
        raise RuntimeError(f"GET {target.url}/models: HTTP {status}")
    return str(json.loads(data)["data"][0]["id"])


def _take_event(line: bytes, times: RequestTimes) -> None:
    if not line.startswith(b"data:"):
        return
    data = line[5:].strip()
    if data == b"[DONE]":
        return
    event = json.loads(data)
    if error := event.get("error"):
        raise RuntimeError(str(error)[:300])
    if usage := event.get("usage"):
        times.take_usage(usage)
    for choice in event.get("choices") or ():
        delta = choice.get("delta")
        if (choice.get("text") if delta is None else delta.get("content")) is None:
            continue
        if (choice.get("text") if delta is None else delta.get("content")) != "":
            times.text_came()


async def stream_once(target: Target, prompt: str, output_len: int) -> RequestTimes:
    """Send one streamed request. A failure is noted, not raised."""
    path = "/chat/completions" if target.endpoint == "chat" else "/completions"
    times = RequestTimes()
    status, rest = 0, b""
    try:
        async with asyncio.timeout(target.timeout_s):
            body = target.body(prompt, output_len)
            async for code, piece in _exchange(target, "POST", path, body):
                status = code
                rest += piece
                if status == 200 and b"\n" in piece:
                    *lines, rest = rest.split(b"\n")
                    for line in lines:
                        _take_event(line.strip(), times)
        if status != 200:
            raise RuntimeError(f"HTTP {status}: {rest[:200].decode('utf-8', 'replace')}")
        _take_event(rest.strip(), times)
        if not times.first:
            raise RuntimeError("no text came")
        times.num_output_tokens = times.num_output_tokens or 1 + len(times.gaps)
    except _PROBLEM as error:
        times.error = f"{type(error).__name__}: {error}"
    return times


async def closed_loop(
    target: Target, prompts: Sequence[str], output_len: int, concurrency: int
) -> tuple[list[RequestTimes], float]:
    """Run clients that each send their next request when the last one ended.

    Returns:
        What each request saw, and the wall time of all in seconds.
    """
    results: list[RequestTimes] = []
    left = iter(prompts)

    async def client() -> None:
        for prompt in left:
            results.append(await stream_once(target, prompt, output_len))

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(min(concurrency, len(prompts)))))
    return results, time.perf_counter() - start
