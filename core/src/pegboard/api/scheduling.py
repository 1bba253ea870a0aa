"""Scheduler policies: which waiting request goes first, and which running one gives way."""

from abc import ABC, abstractmethod
from typing import ClassVar, Protocol

import msgspec

from pegboard.api.plugin import ComponentContext, ComponentSpec

__all__ = ["QueuedRequest", "SchedulerPolicy", "SchedulerPolicyQuery", "SchedulerPolicySpec"]


class QueuedRequest(Protocol):
    """What a policy may look at."""

    @property
    def request_id(self) -> str:
        """The engine's id."""
        ...

    @property
    def priority(self) -> int:
        """The client's; smaller goes first."""
        ...

    @property
    def arrival_time(self) -> float:
        """Seconds since the epoch."""
        ...

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt."""
        ...


class SchedulerPolicyQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which policy, by --scheduling-policy."""

    name: str


class SchedulerPolicySpec(ComponentSpec, frozen=True, kw_only=True):
    """Describes a `SchedulerPolicy`; its `target` is the class."""

    kind: ClassVar[str] = "scheduler_policies"

    def reasons_against(self, query: SchedulerPolicyQuery) -> list[str]:
        """Fits exactly the one that is asked for."""
        if query.name in (self.name, *self.aliases):
            return []
        return [f"{query.name} was asked for"]


class SchedulerPolicy(ABC):
    """An order over requests. Pure: equal requests give equal keys, whenever asked."""

    def __init__(self, context: ComponentContext) -> None:
        """Keep the context."""
        self.context = context

    @abstractmethod
    def key(self, request: QueuedRequest) -> tuple[float, ...]:
        """Return a sort key: the least waits at the head, the greatest running is preempted."""
