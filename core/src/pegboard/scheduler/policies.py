"""The core's own orders over requests."""

from pegboard.api.scheduling import QueuedRequest, SchedulerPolicy

__all__ = ["Fcfs", "Priority"]


class Fcfs(SchedulerPolicy):
    """First come, first served; the last to come gives way."""

    def key(self, request: QueuedRequest) -> tuple[float, ...]:
        """Order by arrival."""
        return (request.arrival_time,)


class Priority(SchedulerPolicy):
    """Smaller priority first; among equals, first come, first served."""

    def key(self, request: QueuedRequest) -> tuple[float, ...]:
        """Order by the client's priority, then by arrival."""
        return (request.priority, request.arrival_time)
