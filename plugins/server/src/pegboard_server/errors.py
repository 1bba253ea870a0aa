"""Failures as the OpenAI protocol writes them.

{"error": {"message": …, "type": …, "param": …, "code": <HTTP status>}}
"""

import logging
import math
import re
from http import HTTPStatus

import msgspec
from pydantic import ValidationError

from pegboard.api.errors import (
    Aborted,
    ContextLength,
    EngineDead,
    EngineError,
    Overloaded,
    PegboardError,
    RequestError,
)

__all__ = ["Answer", "HttpError", "answer_for", "error_body"]

logger = logging.getLogger(__name__)

_MAX_MESSAGE = 1000
#: Paths and addresses, which are the operator's business; the log has them.
_INNARDS = re.compile(r"(?<![\w/:])/(?:[\w.@+-]+/)+[\w.@+-]*|\b0x[0-9a-fA-F]{6,}\b")
_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    429: "RateLimitError",
    500: "InternalServerError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
}


class HttpError(Exception):
    """A failure that belongs to HTTP: key, path, body, load. Never reaches the engine."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type_: str | None = None,
        param: str | None = None,
        headers: dict[str, str] | None = None,
        close: bool = False,
    ) -> None:
        """Say what to answer; `close` ends the connection, where its bytes cannot be trusted."""
        super().__init__(message)
        self.status = status
        self.type = type_
        self.param = param
        self.headers = dict(headers or {})
        if close:
            self.headers["connection"] = "close"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What an exception is answered with."""

    status: int
    body: bytes
    headers: dict[str, str] = {}


def error_body(status: int, message: str, *, type_: str | None = None, param: str | None) -> bytes:
    """Return the JSON of one error object."""
    phrase = HTTPStatus(status).phrase
    if status >= 500:
        message = _INNARDS.sub("…", message)
    error = {
        "message": " ".join(message.split())[:_MAX_MESSAGE],
        "type": type_ or _TYPES.get(status, phrase),
        "param": param,
        "code": status,
    }
    return msgspec.json.encode({"error": error})


def _describe_validation(error: ValidationError) -> tuple[str, str | None]:
    """Return one clear line, and the parameter, of the first few things wrong with a body."""
    entries = error.errors(include_url=False, include_context=False, include_input=False)
    lines: list[str] = []
    first: str | None = None
    for entry in entries[:10]:
        path = ".".join(str(part) for part in entry["loc"])
        if entry["type"] == "json_invalid":
            return f"the body is not valid JSON: {entry['msg']}", None
        if entry["type"] == "model_type":
            return "the body must be a JSON object", None
        first = first or path or None
        message = entry["msg"][:200]
        lines.append(f"{path}: {message}" if path else message)
    return "; ".join(lines), first


def answer_for(error: BaseException, request_id: str) -> Answer:
    """Return what to answer for `error`, logging what an operator must know.

    Args:
        error: what a handler raised.
        request_id: names the request in the log where the cause is ours.
    """
    if isinstance(error, HttpError):
        body = error_body(error.status, str(error), type_=error.type, param=error.param)
        return Answer(status=error.status, body=body, headers=error.headers)
    if isinstance(error, ValidationError):
        message, param = _describe_validation(error)
        return Answer(status=400, body=error_body(400, message, type_="Bad Request", param=param))
    if isinstance(error, RequestError):
        return _answer_for_request_error(error)
    if isinstance(error, TimeoutError):
        body = error_body(504, "the request took longer than the server allows", param=None)
        return Answer(status=504, body=body)
    if isinstance(error, EngineError):
        logger.error("request failed request_id=%s cause=%s", request_id, error)
        prefix = "the engine has stopped: " if isinstance(error, EngineDead) else ""
        return Answer(status=500, body=error_body(500, f"{prefix}{error}", param=None))
    if isinstance(error, PegboardError):
        logger.error("request failed request_id=%s cause=%s", request_id, error)
        return Answer(status=500, body=error_body(500, str(error), param=None))
    logger.error("request failed request_id=%s", request_id, exc_info=error)
    message = f"internal error; the server's log has it under request id {request_id}"
    return Answer(status=500, body=error_body(500, message, param=None))


def _answer_for_request_error(error: RequestError) -> Answer:
    status = int(error.status)
    headers = {}
    param = error.param
    if isinstance(error, Overloaded):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    elif isinstance(error, Aborted):
        status = 503  # its client is still here, so it was the server that gave it up
    elif isinstance(error, ContextLength):
        param = param or "input_tokens"
    return Answer(status=status, body=error_body(status, str(error), param=param), headers=headers)
