"""What the multi-process executor and its workers say to each other, as msgpack.

    executor --command--> every rank, in the same order      one socket a rank
    executor <--reply---- any rank                           one socket for all

Steps are answered by rank 0 alone; a rank that cannot run one says so.
"""

from typing import Any

import msgspec

from pegboard.api.messages import SchedulerOutput, StepOutput
from pegboard.config.engine import EngineConfig

__all__ = [
    "Answer",
    "Call",
    "Command",
    "Execute",
    "Launch",
    "Reply",
    "Sample",
    "StepDone",
    "StepFailed",
    "Stop",
    "command_address",
    "reply_address",
]


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker process is started with, read from an inherited descriptor.

    Attributes:
        config: the engine's.
        rank, world_size: its place in the fleet.
        folder: private to this fleet; sockets and the meeting place of the process group.
    """

    config: EngineConfig
    rank: int
    world_size: int
    folder: str


class Execute(msgspec.Struct, frozen=True, tag="execute"):
    """Run a step's forward pass."""

    step: SchedulerOutput


class Sample(msgspec.Struct, frozen=True, tag="sample"):
    """Sample the step that was executed last, and answer."""

    step_id: int
    grammar_masks: bytes | None = None


class Call(msgspec.Struct, frozen=True, tag="call"):
    """Call a named method of the worker, and answer."""

    call_id: int
    method: str
    args: list[Any] = []


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End in good order."""


Command = Execute | Sample | Call | Stop


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """The answer to a call; call 0 is the start itself. `error` is one line, or None."""

    rank: int
    call_id: int
    value: Any = None
    error: str | None = None


class StepDone(msgspec.Struct, frozen=True, tag="done"):
    """What a step gave, from rank 0."""

    output: StepOutput


class StepFailed(msgspec.Struct, frozen=True, tag="failed"):
    """A step raised on a rank; `error` is one line."""

    rank: int
    step_id: int
    error: str


Reply = Answer | StepDone | StepFailed


def command_address(folder: str, rank: int) -> str:
    """Return where a rank reads its commands."""
    return f"ipc://{folder}/{rank}"


def reply_address(folder: str) -> str:
    """Return where all ranks write their replies."""
    return f"ipc://{folder}/replies"
