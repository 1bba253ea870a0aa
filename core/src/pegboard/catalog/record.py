"""What one process chose and used, and the report of it. Knows nothing of how choices are made."""

import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from pegboard.api.ops import OpQuery
from pegboard.catalog.manager import CatalogPlugin
from pegboard.catalog.selection import BY_NAME, Entry, Selection

__all__ = ["Record"]

logger = logging.getLogger(__name__)


class Record:
    """Selections by kind (and op), and which components were used at all."""

    def __init__(self) -> None:
        """Nothing is chosen yet."""
        self._selections: dict[str, Selection] = {}
        self._used: set[tuple[str, str]] = set()

    def use(self, entry: Entry) -> None:
        """Note that a component was loaded or chosen."""
        self._used.add((entry.kind, entry.name))

    def note(self, selection: Selection, query: Any) -> None:  # noqa: ANN401
        """Keep a selection: one a kind, one an op, and one a component where a kind has several."""
        entry = selection.entry
        self.use(entry)
        known = self._selections.get(entry.kind)
        if known is not None and known.entry == entry and selection.reason == BY_NAME:
            return  # somebody uses what was chosen before, for the reason that is kept
        if isinstance(query, OpQuery):
            key = f"{entry.kind}/{query.op}"
        elif known is None or known.entry == entry:
            key = entry.kind
        else:
            key = f"{entry.kind}/{entry.name}"
        if self._selections.get(key) == selection:
            return
        self._selections[key] = selection
        logger.debug("selected %s %s of plugin %s", entry.kind, entry.name, entry.plugin)
        for verdict in selection.passed_over:
            if "was asked for" not in verdict.reason:
                logger.debug("passed over %s %s: %s", entry.kind, verdict.name, verdict.reason)

    def report(self, plugins: Sequence[CatalogPlugin]) -> dict[str, Any]:
        """Return, as JSON values: plugins, chosen, unused, fell_back."""
        return {
            "plugins": [_describe(plugin) for plugin in plugins],
            "chosen": {key: _chosen(s) for key, s in sorted(self._selections.items())},
            "unused": self._unused(plugins),
            "fell_back": self._fell_back(),
        }

    def _unused(self, plugins: Sequence[CatalogPlugin]) -> dict[str, list[str]]:
        unused: dict[str, list[str]] = {}
        for plugin in plugins:
            names = [
                f"{kind}/{spec.name}"
                for kind, specs in plugin.components.items()
                for spec in specs
                if (kind, spec.name) not in self._used
            ]
            if names:
                unused[plugin.info.name] = names
        return unused

    def _fell_back(self) -> list[dict[str, str]]:
        return [
            {
                "kind": selection.kind,
                "wanted": verdict.name,
                "got": selection.entry.name,
                "reason": verdict.reason,
            }
            for selection in self._selections.values()
            for verdict in selection.passed_over
            if verdict.priority > selection.spec.priority
        ]


def _chosen(selection: Selection) -> dict[str, Any]:
    return {
        "name": selection.entry.name,
        "plugin": selection.entry.plugin,
        "reason": selection.reason,
        "verdicts": msgspec.to_builtins(selection.verdicts),
    }


def _describe(plugin: CatalogPlugin) -> dict[str, Any]:
    return {
        "name": plugin.info.name,
        "version": plugin.info.version,
        "api": plugin.info.api,
        "summary": plugin.info.summary,
        "distribution": plugin.resolved.distribution,
        "path": plugin.resolved.path,
        "enabled": plugin.resolved.enabled,
        "components": {
            kind: [spec.name for spec in specs] for kind, specs in plugin.components.items()
        },
        "observes": sorted(plugin.observers),
    }
