"""Reads a request's body within bounds of size, time, type and depth."""

import asyncio
import re
from typing import TypeVar

from pydantic import BaseModel

from pegboard_server.config import ServerConfig
from pegboard_server.errors import HttpError
from pegboard_server.responder import ClientGone, HttpRequest

__all__ = ["read_json"]

M = TypeVar("M", bound=BaseModel)

# A whole string, or one that never ends (so that the scan stays linear), or a bracket.
_TOKENS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
_OPENING = frozenset((b"[", b"{"))


def _check_content_type(request: HttpRequest) -> None:
    given = request.header(b"content-type") or ""
    if given.partition(";")[0].strip().lower() != "application/json":
        shown = f"is {given[:80]!r}" if given else "is missing"
        raise HttpError(
            400,
            f"the Content-Type header {shown}; send application/json",
            type_="Bad Request",
            param="Content-Type",
        )


def _check_announced_length(request: HttpRequest, limit: int) -> None:
    length = request.header(b"content-length")
    if length is not None and length.isdecimal() and (len(length) > 18 or int(length) > limit):
        raise _too_large(limit)


def _too_large(limit: int) -> HttpError:
    return HttpError(
        413,
        f"the body is larger than {limit} bytes (--max-request-body-bytes)",
        close=True,
    )


async def _read_body(request: HttpRequest, config: ServerConfig) -> bytes:
    limit = config.max_request_body_bytes
    _check_announced_length(request, limit)
    pieces: list[bytes] = []
    size = 0
    more = True
    try:
        async with asyncio.timeout(config.body_timeout_s or None):
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                piece = message.get("body", b"")
                size += len(piece)
                if size > limit:
                    raise _too_large(limit)
                if piece:
                    pieces.append(piece)
                more = message.get("more_body", False)
    except TimeoutError:
        raise HttpError(
            408, f"the body did not come within {config.body_timeout_s:g} s", close=True
        ) from None
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _check_depth(body: bytes, limit: int) -> None:
    if body.count(b"{") + body.count(b"[") <= limit:
        return
    depth = 0
    for match in _TOKENS.finditer(body):
        token = match.group()
        if token in _OPENING:
            depth += 1
            if depth > limit:
                raise HttpError(
                    400,
                    f"the body nests deeper than {limit} levels (--max-json-depth)",
                    type_="Bad Request",
                )
        elif token in (b"]", b"}"):
            depth -= 1


async def read_json(request: HttpRequest, model: type[M], config: ServerConfig) -> M:
    """Return the request's body as `model`.

    Raises:
        HttpError: wrong content type (400), too large (413), too slow (408), too deep (400).
        ValidationError: not JSON, not UTF-8, or of another shape.
        ClientGone: the client left before it was whole.
    """
    _check_content_type(request)
    body = await _read_body(request, config)
    _check_depth(body, config.max_json_depth)
    return model.model_validate_json(body)
