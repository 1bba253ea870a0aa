"""Whether an engine lives and can answer, judged without waiting for it."""

import time
from collections.abc import Callable

from pegboard.api.engine import EngineHealth

__all__ = ["HealthMonitor"]


class HealthMonitor:
    """Keeps the signs of life of one engine core.

    Ready means that it can answer now; live, that it has not hung: while work exists its loop
    turns, however slowly. A probe reads what is known and never waits.
    """

    def __init__(
        self,
        *,
        silent_after_s: float = 5.0,
        stalled_after_s: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start as not ready.

        Args:
            silent_after_s: without any answer for so long it is not ready, and after
                `stalled_after_s` not live.
            stalled_after_s: with open work and no turn of the loop for so long it is not live.
            clock: seconds.
        """
        self._silent_after_s = silent_after_s
        self._stalled_after_s = stalled_after_s
        self._clock = clock
        self._started = False
        self._stopped = False
        self.dead: str | None = None
        self._progress: object = None
        self._progress_at = clock()

    def started(self) -> None:
        """The engine core said that it is ready."""
        self._started = True
        self._progress_at = self._clock()

    def stopping(self) -> None:
        """The engine is being shut down on purpose."""
        self._stopped = True

    def died(self, cause: str) -> None:
        """The engine core is gone; the first cause is kept."""
        if self.dead is None:
            self.dead = cause

    def heard(self, progress: object, *, has_work: bool) -> None:
        """Take a sign of life: counters that change with each step, and whether work is open."""
        if progress != self._progress or not has_work:
            self._progress = progress
            self._progress_at = self._clock()

    def health(self, last_heard: float) -> EngineHealth:
        """Judge.

        Args:
            last_heard: when anything came from the engine core, on the same clock.
        """
        if self.dead is not None:
            return EngineHealth(live=False, ready=False, reason=self.dead)
        if self._stopped:
            return EngineHealth(live=True, ready=False, reason="the engine is shutting down")
        if not self._started:
            return EngineHealth(live=True, ready=False, reason="the engine is starting")
        now = self._clock()
        silent = now - last_heard
        if silent > self._silent_after_s:
            reason = f"the engine core has not answered for {silent:.0f} s"
            return EngineHealth(live=silent <= self._stalled_after_s, ready=False, reason=reason)
        stalled = now - self._progress_at
        if stalled > self._stalled_after_s:
            reason = f"requests are open and no step has ended for {stalled:.0f} s"
            return EngineHealth(live=False, ready=False, reason=reason)
        return EngineHealth(live=True, ready=True)
