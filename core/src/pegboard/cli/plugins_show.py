"""What `plugins list`, `inspect` and `doctor` print."""

from typing import Any

import msgspec

from pegboard.api.errors import ConfigError
from pegboard.api.hookspecs import COMPONENT_HOOKS, LIFECYCLE_HOOKS
from pegboard.catalog import Catalog
from pegboard.catalog.discovery import nearest
from pegboard.catalog.manager import CatalogPlugin
from pegboard.cli.output import line, show_json, table
from pegboard.config.fields import OptionField, fields_of
from pegboard.config.plugins import PluginsConfig

__all__ = ["show_findings", "show_list", "show_plugin"]


def show_list(catalog: Catalog, *, as_json: bool) -> int:
    """Print every loaded plugin with what it offers, and those left out with a warning."""
    report = catalog.report()
    if as_json:
        show_json({"plugins": report["plugins"], "failed": report["failed"]})
        return 0
    rows = [["PLUGIN", "VERSION", "API", "ACTS", "OFFERS"]]
    for plugin in report["plugins"]:
        offers = ", ".join(
            f"{kind} {_few(names)}" for kind, names in plugin["components"].items() if names
        )
        observes = f"observes {_few(plugin['observes'])}" if plugin["observes"] else ""
        rows.append(
            [
                plugin["name"],
                plugin["version"],
                plugin["api"],
                "yes" if plugin["enabled"] else "no",
                "; ".join(filter(None, (offers, observes))) or "nothing",
            ]
        )
    table(rows)
    for name, problem in report["failed"].items():
        line(f"left out: {name}: {problem}")
    line()
    line("ACTS: enabled by name, so that its routes, stat loggers and observers act (--plugins).")
    line("`platform plugins inspect NAME` tells more; `platform plugins explain` tells who wins.")
    return 0


def show_plugin(catalog: Catalog, name: str, *, as_json: bool) -> int:
    """Print all that one plugin declares.

    Raises:
        ConfigError: it is not loaded.
    """
    names = [plugin.info.name for plugin in catalog.plugins]
    if name not in names:
        why = f": {catalog.failed[name]}" if name in catalog.failed else nearest(name, names)
        raise ConfigError(f"plugin {name!r} is not loaded (loaded: {', '.join(names)}){why}")
    plugin = catalog.plugin(name)
    options = fields_of(type(plugin.config)) if plugin.config is not None else ()
    if as_json:
        show_json(_as_json(plugin, options))
        return 0
    info, resolved = plugin.info, plugin.resolved
    line(f"{info.name} {info.version}: {info.summary}")
    facts = [
        ["distribution", f"{resolved.distribution} {resolved.version}".strip() or "none"],
        ["entry module", f"{resolved.target} ({resolved.path})"],
        ["API", info.api],
        ["documentation", info.url or "-"],
        ["acts", "yes, enabled by name" if resolved.enabled else f"no (--plugins {info.name})"],
    ]
    table(facts, indent=2)
    for kind, specs in plugin.components.items():
        hook = COMPONENT_HOOKS[kind]
        line(f"{kind} ({hook.stability}; loads in {', '.join(hook.processes)})")
        rows = [[spec.name, str(spec.priority), spec.target, spec.summary] for spec in specs]
        table(rows, indent=2)
    if plugin.observers:
        line("observes")
        rows = [[hook, ", ".join(LIFECYCLE_HOOKS[hook].processes)] for hook in plugin.observers]
        table(rows, indent=2)
    if options:
        line(f"options ([plugins.{name}], or --plugin-config {name}.KEY=VALUE)")
        rows = [
            [field.name, _type(field), str(getattr(plugin.config, field.name)), field.help]
            for field in options
        ]
        table(rows, indent=2)
    return 0


def show_findings(plugins: PluginsConfig, *, deep: bool, as_json: bool) -> int:
    """Examine every plugin; return 1 if any check failed."""
    from pegboard.catalog.doctor import examine

    findings = []
    for finding in examine(plugins, deep=deep):
        findings.append(finding)
        if not as_json:
            detail = f": {finding.detail}" if finding.detail else ""
            line(f"{finding.status:4}  {finding.plugin:12}  {finding.check}{detail}")
    if as_json:
        show_json(msgspec.to_builtins(findings))
    return int(any(finding.status == "fail" for finding in findings))


def _as_json(plugin: CatalogPlugin, options: tuple[OptionField, ...]) -> dict[str, Any]:
    return {
        "info": msgspec.to_builtins(plugin.info),
        "resolved": msgspec.to_builtins(plugin.resolved),
        "components": msgspec.to_builtins(plugin.components),
        "observes": sorted(plugin.observers),
        "options": [
            msgspec.to_builtins(field) | {"value": getattr(plugin.config, field.name)}
            for field in options
        ],
    }


def _type(field: OptionField) -> str:
    return "|".join(field.choices) if field.choices else field.kind


def _few(names: list[str], limit: int = 4) -> str:
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return " ".join(names[:limit]) + rest
