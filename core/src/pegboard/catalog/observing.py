"""Lifecycle observers: called one by one, each guarded, unhooked after repeated faults."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pegboard.api.errors import PegboardError
from pegboard.api.hookspecs import LIFECYCLE_HOOKS
from pegboard.catalog.guard import Guard
from pegboard.config.plugins import ResolvedPlugin

__all__ = ["Observers"]


class _Observing(Protocol):
    @property
    def resolved(self) -> ResolvedPlugin: ...

    @property
    def observers(self) -> dict[str, Callable[[Any], None]]: ...


class Observers:
    """The lifecycle hooks of plugins enabled by name.

    Pluggy would stop at the first that raises; these must not know of each other, so each is
    called by itself, in catalog order.
    """

    def __init__(self, plugins: Sequence[_Observing], guard: Guard) -> None:
        """Collect the observers of enabled plugins."""
        self._guard = guard
        self._listeners: dict[str, list[tuple[str, Callable[[Any], None]]]] = {}
        self._unhooked: list[str] = []
        for plugin in plugins:
            if plugin.resolved.enabled:
                for hook, function in plugin.observers.items():
                    listeners = self._listeners.setdefault(hook, [])
                    listeners.append((plugin.resolved.name, function))

    def listening(self, hook: str) -> bool:
        """Return whether anybody listens to a hook."""
        return bool(self._listeners.get(hook))

    def notify(self, hook: str, event: Any) -> None:  # noqa: ANN401 -- EngineEvent or Fault
        """Call every listener; never raises.

        Raises:
            KeyError: there is no such lifecycle hook.
        """
        listeners = self._listeners.get(hook)
        if not listeners:
            if hook not in LIFECYCLE_HOOKS:
                raise KeyError(f"{hook!r} is not a lifecycle hook")
            return
        for plugin, function in tuple(listeners):
            try:
                with self._guard.calling(plugin, hook, scope="plugin"):
                    function(event)
            except PegboardError:  # already logged and counted by the guard
                if self._guard.tripped(plugin, hook) and (plugin, function) in listeners:
                    listeners.remove((plugin, function))
                    self._unhooked.append(f"{plugin}.{hook}")

    def unhooked(self) -> list[str]:
        """Return "plugin.hook" of those that were unhooked."""
        return list(self._unhooked)
