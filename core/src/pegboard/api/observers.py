"""Stat loggers: where numbers go; and the events that lifecycle hooks observe."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import msgspec

from pegboard.api.messages import IterationStats, SchedulerStats
from pegboard.api.plugin import ComponentContext, ComponentSpec

__all__ = ["EngineEvent", "Fault", "StatLogger", "StatLoggerQuery", "StatLoggerSpec"]


class StatLoggerQuery(msgspec.Struct, frozen=True, kw_only=True):
    """All stat loggers of enabled plugins are used; a query by name picks one."""

    name: str | None = None


class StatLoggerSpec(ComponentSpec, frozen=True, kw_only=True):
    """Describes a `StatLogger`; its `target` is the class."""

    kind: ClassVar[str] = "stat_loggers"


class StatLogger(ABC):
    """Receives numbers in the front end after each batch of outputs; must return quickly."""

    def __init__(self, context: ComponentContext) -> None:
        """Keep the context."""
        self.context = context

    @abstractmethod
    def record(self, scheduler: SchedulerStats, iteration: IterationStats) -> None:
        """Take one batch of numbers."""


class EngineEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What a lifecycle hook is told. `attributes` is open: new keys may come in any minor.

    Attributes:
        name: the hook's name without "on_", such as "request_finished".
        time: seconds since the epoch.
        request_id: where it is about one request.
        attributes: JSON values.
    """

    name: str
    time: float
    request_id: str | None = None
    attributes: dict[str, Any] = {}


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A failure that was confined, and to what.

    Attributes:
        scope: "request", "plugin" or "engine".
        plugin: the plugin at fault, or "".
        hook: where it arose.
        cause: one line.
        request_id: where it is about one request.
    """

    scope: str
    hook: str
    cause: str
    plugin: str = ""
    request_id: str | None = None
