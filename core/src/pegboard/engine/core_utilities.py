"""The engine core's utilities: what a front end may call by name beside generating."""

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from pegboard.api.engine import Executor
from pegboard.api.errors import InvalidRequest, PegboardError
from pegboard.api.messages import UtilityCall, UtilityResult
from pegboard.scheduler.scheduler import Scheduler

__all__ = ["CoreUtilities"]

logger = logging.getLogger(__name__)


class CoreUtilities:
    """A table of named functions over the scheduler and the executor. Runs in the loop's thread."""

    def __init__(self, scheduler: Scheduler, executor: Executor) -> None:
        """Fill the table."""
        self._scheduler = scheduler
        self._executor = executor
        self._table: dict[str, Callable[..., Any]] = {
            "collective_rpc": self._collective_rpc,
            "reset_prefix_cache": self._reset_prefix_cache,
            "stats": self._stats,
        }

    def call(self, call: UtilityCall) -> UtilityResult:
        """Answer a call; whatever is wrong with it is the answer's error."""
        try:
            function = self._table.get(call.method)
            if function is None:
                raise InvalidRequest(
                    f"utility {call.method!r} is not known; there are "
                    f"{', '.join(sorted(self._table))}"
                )
            return UtilityResult(call_id=call.call_id, value=function(*call.args))
        except PegboardError as error:
            return UtilityResult(call_id=call.call_id, error=str(error))
        except Exception as error:
            logger.exception("utility %s failed", call.method)
            text = " ".join(str(error).split())
            return UtilityResult(
                call_id=call.call_id, error=f"{call.method}: {type(error).__name__}: {text}"
            )

    def _collective_rpc(
        self, method: str, args: list[Any] | None = None, timeout_s: float | None = None
    ) -> list[Any]:
        return self._executor.collective_rpc(method, args or [], timeout_s)

    def _reset_prefix_cache(self) -> bool:
        return self._scheduler.reset_prefix_cache()

    def _stats(self) -> dict[str, Any]:
        return msgspec.to_builtins(self._scheduler.stats())
