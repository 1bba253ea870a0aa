"""Calls into plugins: timed, counted, and confined by a declared policy.

A request-scoped failure is that request's alone. Repeated plugin-scoped failures trip the
plugin's breaker, and later calls are refused at once, so that the caller can fall back or drain.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from pegboard.api.errors import PegboardError, PluginError
from pegboard.api.observers import Fault

__all__ = ["Breaker", "CallStats", "Guard", "Scope"]

logger = logging.getLogger(__name__)

Scope = Literal["request", "plugin"]

#: Consecutive plugin-scoped faults after which a breaker trips.
MAX_CONSECUTIVE_FAULTS = 3
#: Seconds a single guarded call may take before it counts as over its budget.
CALL_BUDGET_S = 0.05


class CallStats:
    """What calls of one hook of one plugin cost. Mutated under the guard's lock."""

    __slots__ = ("calls", "faults", "max_s", "over_budget", "total_s")

    def __init__(self) -> None:
        """Start at zero."""
        self.calls = 0
        self.faults = 0
        self.over_budget = 0
        self.total_s = 0.0
        self.max_s = 0.0

    def as_dict(self) -> dict[str, float]:
        """Return the numbers, times in milliseconds."""
        return {
            "calls": self.calls,
            "faults": self.faults,
            "over_budget": self.over_budget,
            "total_ms": round(self.total_s * 1000, 3),
            "max_ms": round(self.max_s * 1000, 3),
        }


class Breaker:
    """Counts consecutive faults; `tripped` once there were too many. Not thread-safe by itself."""

    __slots__ = ("_consecutive", "_threshold", "cause", "tripped")

    def __init__(self, threshold: int = MAX_CONSECUTIVE_FAULTS) -> None:
        """Trip after `threshold` faults without a success between them."""
        if threshold < 1:
            raise ValueError(f"threshold is {threshold}; at least 1 is needed")
        self._threshold = threshold
        self._consecutive = 0
        self.tripped = False
        self.cause = ""

    def success(self) -> None:
        """Note a call that returned."""
        self._consecutive = 0

    def fault(self, cause: str) -> bool:
        """Note a call that raised; return whether it tripped the breaker just now."""
        self._consecutive += 1
        self.cause = cause
        if self.tripped or self._consecutive < self._threshold:
            return False
        self.tripped = True
        return True


class Guard:
    """Every call through a seam goes through one of these. Thread-safe."""

    def __init__(
        self,
        *,
        on_fault: Callable[[Fault], None] | None = None,
        threshold: int = MAX_CONSECUTIVE_FAULTS,
        budget_s: float = CALL_BUDGET_S,
    ) -> None:
        """Report each fault to `on_fault`, outside the lock and from the failing thread."""
        self._on_fault = on_fault
        self._threshold = threshold
        self._budget_s = budget_s
        self._lock = threading.Lock()
        self._stats: dict[tuple[str, str], CallStats] = {}
        self._breakers: dict[tuple[str, str], Breaker] = {}

    @contextmanager
    def calling(
        self, plugin: str, hook: str, *, scope: Scope, request_id: str | None = None
    ) -> Iterator[None]:
        """Confine the plugin call made inside.

        Errors that Pegboard raises on purpose (`PegboardError`) pass through and are no fault.

        Raises:
            PluginError: the call raised something else (or tried to end the process), or the
                breaker has tripped.
        """
        key = (plugin, hook)
        breaker = self._breakers.get(key)
        if breaker is not None and breaker.tripped:
            raise PluginError(
                f"{hook} of plugin {plugin!r} is switched off after repeated faults, "
                f"the last: {breaker.cause}",
                plugin=plugin,
            )
        started = time.perf_counter()
        try:
            yield
        except PegboardError:
            self._account(key, time.perf_counter() - started)
            raise
        except (KeyboardInterrupt, GeneratorExit):
            raise  # Ctrl-C, and the end of a generator, are not the plugin's
        except BaseException as error:
            self._account(key, time.perf_counter() - started)
            cause = f"{type(error).__name__}: {error}"
            self._fault(key, cause, scope, request_id)
            raise PluginError(
                f"{hook} of plugin {plugin!r} raised {cause}", plugin=plugin
            ) from error
        else:
            self._account(key, time.perf_counter() - started)
            if breaker is not None:
                breaker.success()

    def tripped(self, plugin: str, hook: str) -> bool:
        """Return whether calls of this hook are refused."""
        breaker = self._breakers.get((plugin, hook))
        return breaker is not None and breaker.tripped

    def report(self) -> dict[str, dict[str, dict[str, float]]]:
        """Return plugin → hook → numbers."""
        with self._lock:
            result: dict[str, dict[str, dict[str, float]]] = {}
            for (plugin, hook), stats in sorted(self._stats.items()):
                result.setdefault(plugin, {})[hook] = stats.as_dict()
            return result

    def _account(self, key: tuple[str, str], elapsed_s: float) -> None:
        with self._lock:
            stats = self._stats.setdefault(key, CallStats())
            stats.calls += 1
            stats.total_s += elapsed_s
            stats.max_s = max(stats.max_s, elapsed_s)
            over = elapsed_s > self._budget_s
            stats.over_budget += over
            first = over and stats.over_budget == 1
        if first:
            logger.warning(
                "%s of plugin %s took %.0f ms, over its budget of %.0f ms",
                key[1],
                key[0],
                elapsed_s * 1000,
                self._budget_s * 1000,
            )

    def _fault(
        self, key: tuple[str, str], cause: str, scope: Scope, request_id: str | None
    ) -> None:
        plugin, hook = key
        with self._lock:
            self._stats.setdefault(key, CallStats()).faults += 1
            tripped = False
            if scope == "plugin":
                breaker = self._breakers.setdefault(key, Breaker(self._threshold))
                tripped = breaker.fault(cause)
        logger.warning("%s of plugin %s raised", hook, plugin, exc_info=True)
        if tripped:
            logger.error(
                "%s of plugin %s is switched off after %d faults in a row; the last: %s",
                hook,
                plugin,
                self._threshold,
                cause,
            )
        if self._on_fault is not None:
            self._on_fault(
                Fault(scope=scope, hook=hook, cause=cause, plugin=plugin, request_id=request_id)
            )
