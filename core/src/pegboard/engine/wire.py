"""What travels between a front end and its engine core: a kind byte and a msgpack body.

Knows nothing of sockets. Each direction has its own kinds; an unknown kind or a body that does
not decode is a `WireError`, which both sides log, count and survive.
"""

import enum
from typing import Any

import msgspec

from pegboard.api.errors import EngineError, InvalidRequest, RequestError
from pegboard.api.messages import EngineCoreOutputs, EngineCoreRequest, UtilityCall

__all__ = [
    "CoreFailure",
    "CoreKind",
    "CoreReady",
    "Ping",
    "Pong",
    "Progress",
    "WireError",
    "Wish",
    "decode_from_core",
    "decode_to_core",
    "encode",
]


class WireError(EngineError):
    """A message that is no message; the sender is at fault, nobody dies of it.

    Attributes:
        request_id: of the request that it was to be, where that much can be read.
    """

    def __init__(self, message: str, request_id: str | None = None) -> None:
        """Say what is wrong with which message."""
        super().__init__(message)
        self.request_id = request_id


class Wish(enum.Enum):
    """Kinds that a front end sends to the engine core."""

    ADD = b"A"
    ABORT = b"X"
    CALL = b"U"
    PING = b"P"
    STOP = b"S"


class CoreKind(enum.Enum):
    """Kinds that the engine core sends to a front end."""

    OUTPUTS = b"O"
    PROGRESS = b"G"
    READY = b"R"
    FAILED = b"F"
    PONG = b"Q"


class Ping(msgspec.Struct, kw_only=True):
    """Asks the engine core's receiving thread for a sign of life."""

    sent: float


class Pong(msgspec.Struct, kw_only=True):
    """The answer: how many turns the loop has finished, and whether it is in one.

    Attributes:
        sent: of the `Ping`.
        turns: turns of the loop so far.
        busy: the loop is inside a turn, or waits for a step.
    """

    sent: float
    turns: int
    busy: bool


class Progress(msgspec.Struct, kw_only=True):
    """A phase of the start has ended.

    Attributes:
        phase: such as "load model".
        seconds: how long it took.
        detail: one line, or "".
    """

    phase: str
    seconds: float
    detail: str = ""


class CoreReady(msgspec.Struct, kw_only=True):
    """The engine core can answer.

    Attributes:
        num_blocks, block_size: of the KV pool.
        kv_bytes: of the KV pool in each worker.
        max_tokens: that the pool holds for one sequence.
        phases: of the start, in order, in seconds.
        ledger: who holds memory, in bytes.
        report: the engine core's catalog report.
    """

    num_blocks: int
    block_size: int
    kv_bytes: int
    max_tokens: int
    phases: dict[str, float] = {}
    ledger: dict[str, int] = {}
    report: dict[str, Any] = {}


class CoreFailure(msgspec.Struct, kw_only=True):
    """The engine core could not start: the error's class and its one line."""

    error: str
    message: str


_TO_CORE: dict[bytes, type] = {
    Wish.ADD.value: EngineCoreRequest,
    Wish.ABORT.value: list[str],
    Wish.CALL.value: UtilityCall,
    Wish.PING.value: Ping,
    Wish.STOP.value: type(None),
}
_FROM_CORE: dict[bytes, type] = {
    CoreKind.OUTPUTS.value: EngineCoreOutputs,
    CoreKind.PROGRESS.value: Progress,
    CoreKind.READY.value: CoreReady,
    CoreKind.FAILED.value: CoreFailure,
    CoreKind.PONG.value: Pong,
}
_ENCODER = msgspec.msgpack.Encoder()
_TO_CORE_DECODERS = {k: msgspec.msgpack.Decoder(t) for k, t in _TO_CORE.items()}
_FROM_CORE_DECODERS = {k: msgspec.msgpack.Decoder(t) for k, t in _FROM_CORE.items()}


def encode(kind: Wish | CoreKind, body: object) -> list[bytes]:
    """Return the two frames of a message.

    Raises:
        InvalidRequest: the body holds what cannot be sent: no message can be made of it.
    """
    try:
        return [kind.value, _ENCODER.encode(body)]
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequest(f"{type(body).__name__} cannot be sent: {error}") from error


def _decode(
    frames: list[bytes], decoders: dict[bytes, "msgspec.msgpack.Decoder[Any]"]
) -> tuple[bytes, Any]:
    if len(frames) != 2 or frames[0] not in decoders:
        head = frames[0][:8] if frames else b""
        raise WireError(f"message of {len(frames)} frame(s) with kind {head!r} is not known")
    try:
        return frames[0], decoders[frames[0]].decode(frames[1])
    except (msgspec.DecodeError, RequestError, ValueError) as error:
        raise WireError(
            f"message of kind {frames[0]!r} does not decode: {error}", _named_in(frames)
        ) from error


class _Named(msgspec.Struct):
    request_id: str


def _named_in(frames: list[bytes]) -> str | None:
    """Return the id of a request whose other fields are wrong, so that it can be failed."""
    if frames[0] != Wish.ADD.value:
        return None
    try:
        return msgspec.msgpack.decode(frames[1], type=_Named).request_id
    except (msgspec.DecodeError, ValueError):
        return None


def decode_to_core(frames: list[bytes]) -> tuple[Wish, Any]:
    """Decode what a front end sent.

    Raises:
        WireError: it is not a message.
    """
    kind, body = _decode(frames, _TO_CORE_DECODERS)
    return Wish(kind), body


def decode_from_core(frames: list[bytes]) -> tuple[CoreKind, Any]:
    """Decode what the engine core sent.

    Raises:
        WireError: it is not a message.
    """
    kind, body = _decode(frames, _FROM_CORE_DECODERS)
    return CoreKind(kind), body
