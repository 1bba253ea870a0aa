"""The catalog: all components that loaded plugins offer, selected and loaded on demand.

One a process. It remembers what was chosen and what failed, for the report at ready.
"""

import importlib
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pegboard.api.errors import PegboardError, PluginError, PluginLoadError
from pegboard.api.hookspecs import COMPONENT_HOOKS
from pegboard.api.observers import Fault
from pegboard.api.ops import OpQuery
from pegboard.api.platforms import Detection, PlatformSpec
from pegboard.api.plugin import ComponentContext, ComponentSpec
from pegboard.catalog.discovery import one_line
from pegboard.catalog.guard import Guard
from pegboard.catalog.manager import CatalogPlugin
from pegboard.catalog.observing import Observers
from pegboard.catalog.record import Record
from pegboard.catalog.selection import BY_NAME, Entry, Selection, Verdict, judge, select
from pegboard.config.plugins import ResolvedPlugin

__all__ = ["Catalog", "CatalogPlugin"]

logger = logging.getLogger(__name__)


class Catalog:
    """Components by kind, in deterministic order: the core's own, then `after`, then name."""

    def __init__(
        self,
        plugins: Sequence[CatalogPlugin],
        *,
        process: str,
        failed: Mapping[str, str] | None = None,
    ) -> None:
        """Index the plugins' components.

        Args:
            plugins: in order.
            process: what this process is, for messages: "frontend", "engine_core", "worker 0".
            failed: plugins that were left out with a warning, and why.
        """
        self.process = process
        self.plugins = tuple(plugins)
        self.failed = dict(failed or {})
        self._by_name = {plugin.info.name: plugin for plugin in plugins}
        self._entries = _index(plugins)
        self._record = Record()
        self._detections: dict[str, Detection] = {}
        self.guard = Guard(on_fault=self._on_fault)
        self._observers = Observers(plugins, self.guard)

    def resolved(self) -> list[ResolvedPlugin]:
        """Return what every child loads and verifies, in order."""
        return [plugin.resolved for plugin in self.plugins]

    def plugin(self, name: str) -> CatalogPlugin:
        """Return a loaded plugin.

        Raises:
            KeyError: it is not loaded.
        """
        return self._by_name[name]

    def plugin_config(self, name: str) -> Any:  # noqa: ANN401 -- the plugin's own struct
        """Return a plugin's options as its own struct, or None if it has none."""
        plugin = self._by_name.get(name)
        return plugin.config if plugin else None

    def entries(self, kind: str) -> list[Entry]:
        """Return all components of a kind, selectable or acting, in order.

        Raises:
            KeyError: `kind` is not the name of a component hook.
        """
        if kind not in COMPONENT_HOOKS:
            raise KeyError(f"{kind!r} is not a component kind")
        return list(self._entries.get(kind, ()))

    def acting(self, kind: str) -> list[Entry]:
        """Return components that act unselected: those of plugins enabled by name."""
        return [entry for entry in self.entries(kind) if self.is_enabled(entry.plugin)]

    def is_enabled(self, plugin: str) -> bool:
        """Return whether a plugin is enabled by name (the core's own always is)."""
        return self._by_name[plugin].resolved.enabled

    def select(
        self,
        kind: str,
        query: Any,  # noqa: ANN401 -- the kind's own query
        *,
        name: str | None = None,
        order: Sequence[str] = (),
        because: str = BY_NAME,
    ) -> Selection:
        """Choose the component that fits best, and log why.

        Args:
            kind: the hook's name, such as "attention_backends".
            query: the kind's query struct.
            name: an explicit choice; aliases count; nothing else may win.
            order: names preferred over priority, the first most (`[ops]`).
            because: why `name` is the only one that may win, as reports say it.

        Raises:
            SelectionError: nobody fits, or the one asked for does not; carries every reason.
        """
        selection = select(
            kind,
            self._candidates(kind, query),
            query,
            name=name,
            order=order,
            because=because,
            supports=self._reason_against,
        )
        verdicts = self._with_probes(kind, selection.verdicts)
        selection = msgspec.structs.replace(selection, verdicts=verdicts)
        self._record.note(selection, query)
        return selection

    def explain(
        self,
        kind: str,
        query: Any,  # noqa: ANN401 -- the kind's own query
        *,
        name: str | None = None,
        order: Sequence[str] = (),
    ) -> list[Verdict]:
        """Return the verdict on every candidate, the preferred first. Never raises."""
        _, verdicts = judge(
            self._candidates(kind, query),
            query,
            name=name,
            order=order,
            supports=self._reason_against,
        )
        return list(self._with_probes(kind, verdicts))

    def load(self, entry: Entry | ComponentSpec) -> Any:  # noqa: ANN401 -- what `target` names
        """Import what a component's `target` names.

        Raises:
            PluginLoadError: it does not import; carries plugin, process and cause.
        """
        entry = self._entry(entry)
        self._record.use(entry)
        return self._import(entry, entry.spec.target, "target")

    def create(
        self,
        entry: Entry | ComponentSpec,
        *args: Any,  # noqa: ANN401 -- the kind's constructor says
        config: Any = None,  # noqa: ANN401 -- an EngineConfigView
    ) -> Any:  # noqa: ANN401 -- the component
        """Load a component and make it: `target(context, *args)`.

        Raises:
            PluginLoadError: it does not import.
            PluginError: its factory raised something that is not a `PegboardError`.
        """
        entry = self._entry(entry)
        factory = self.load(entry)
        try:
            return factory(self.context(entry.plugin, config=config), *args)
        except PegboardError:
            raise
        except Exception as error:
            raise PluginError(
                f"{self._who(entry)} could not be made in process {self.process} "
                f"(pid {os.getpid()}): {one_line(f'{type(error).__name__}: {error}')}",
                plugin=entry.plugin,
                distribution=entry.distribution,
                version=entry.version,
            ) from error

    def context(self, plugin: str, *, config: Any = None) -> ComponentContext:  # noqa: ANN401
        """Return the context that components of a plugin are made with."""
        return ComponentContext(
            plugin=plugin, plugin_config=self.plugin_config(plugin), config=config
        )

    def detect(self, entry: Entry) -> Detection:
        """Probe a platform once; a probe that raises counts as "not available", with the cause."""
        if entry.name not in self._detections:
            self._detections[entry.name] = self._probe(entry)
        return self._detections[entry.name]

    def observe(self, hook: str, event: Any) -> None:  # noqa: ANN401 -- EngineEvent or Fault
        """Tell enabled plugins' lifecycle hooks. Never raises; no work when nobody listens."""
        self._observers.notify(hook, event)

    def observed(self, hook: str) -> bool:
        """Return whether anybody listens, so that callers need not build an event."""
        return self._observers.listening(hook)

    def report(self) -> dict[str, Any]:
        """Return, as JSON values: plugins, chosen, registered but unused, fell back, failed."""
        return {
            "process": self.process,
            **self._record.report(self.plugins),
            "failed": dict(self.failed),
            "unhooked": self._observers.unhooked(),
            "hook_times": self.guard.report(),
        }

    def _candidates(self, kind: str, query: Any) -> list[Entry]:  # noqa: ANN401
        info = COMPONENT_HOOKS.get(kind)
        entries = self.acting(kind) if info and info.acts_unselected else self.entries(kind)
        if isinstance(query, OpQuery):  # another op's implementations are no candidates at all
            return [e for e in entries if getattr(e.spec, "op", query.op) == query.op]
        return entries

    def _with_probes(self, kind: str, verdicts: Sequence[Verdict]) -> tuple[Verdict, ...]:
        """Add to the verdict on each platform that fits what its probe found."""
        if kind != PlatformSpec.kind:
            return tuple(verdicts)
        found = {name: detection.reason for name, detection in self._detections.items()}
        return tuple(
            msgspec.structs.replace(v, reason=f"{v.reason}; {found[v.name]}") if v.fits else v
            for v in verdicts
        )

    def _entry(self, entry: Entry | ComponentSpec) -> Entry:
        if isinstance(entry, Entry):
            return entry
        for candidate in self._entries.get(entry.kind, ()):
            if candidate.spec == entry:
                return candidate
        raise KeyError(f"{entry.kind} {entry.name!r} is not in the catalog")

    def _reason_against(self, entry: Entry, query: Any) -> str | None:  # noqa: ANN401
        if entry.spec.supports is not None:
            try:
                supports = self._import(entry, entry.spec.supports, "supports")
                with self.guard.calling(entry.plugin, f"{entry.kind}.supports", scope="request"):
                    reason = supports(query)
            except PegboardError as error:
                return one_line(str(error))
            if reason is not None:
                return one_line(str(reason))
        if isinstance(entry.spec, PlatformSpec):
            detection = self.detect(entry)
            return None if detection.available else detection.reason
        return None

    def _probe(self, entry: Entry) -> Detection:
        assert isinstance(entry.spec, PlatformSpec)
        try:
            probe = self._import(entry, entry.spec.detect, "detect")
            with self.guard.calling(entry.plugin, "platforms.detect", scope="request"):
                detection = probe()
                if not isinstance(detection, Detection):
                    raise TypeError(f"{entry.spec.detect} returned a {type(detection).__name__}")
        except PegboardError as error:
            return Detection(available=False, reason=one_line(str(error)))
        return detection

    def _import(self, entry: Entry, target: str, what: str) -> Any:  # noqa: ANN401
        module_name, _, attribute = target.partition(":")
        try:
            result: Any = importlib.import_module(module_name)
            for part in attribute.split("."):
                result = getattr(result, part)
        except (Exception, SystemExit) as error:
            cause = one_line(f"{type(error).__name__}: {error}")
            raise PluginLoadError(
                f"{self._who(entry)} does not load in process {self.process} "
                f"(pid {os.getpid()}): {cause} ({what} {target})",
                plugin=entry.plugin,
                distribution=entry.distribution,
                version=entry.version,
            ) from error
        return result

    @staticmethod
    def _who(entry: Entry) -> str:
        owner = f" ({entry.distribution} {entry.version})" if entry.distribution else ""
        return f"{entry.kind} {entry.name!r} of plugin {entry.plugin!r}{owner}"

    def _on_fault(self, fault: Fault) -> None:
        if fault.hook != "on_fault":
            self.observe("on_fault", fault)


def _index(plugins: Sequence[CatalogPlugin]) -> dict[str, list[Entry]]:
    entries: dict[str, list[Entry]] = {}
    for plugin in plugins:
        for kind, specs in plugin.components.items():
            entries.setdefault(kind, []).extend(
                Entry(
                    kind=kind,
                    spec=spec,
                    plugin=plugin.info.name,
                    distribution=plugin.resolved.distribution,
                    version=plugin.resolved.version,
                )
                for spec in specs
            )
    return entries
