"""From the user's word on plugins to a catalog; and from a resolved list to the same catalog.

parent: discover → allow or deny → API check → import entry modules → validate → catalog
child:  import exactly what the parent resolved, verify it → validate → catalog
"""

import importlib
import importlib.metadata
import logging
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from pegboard.api.errors import (
    ApiVersionError,
    ConfigError,
    PluginConflictError,
    PluginError,
    PluginLoadError,
    SpecError,
)
from pegboard.api.plugin import PluginInfo
from pegboard.api.version import api_version_problem
from pegboard.catalog.catalog import Catalog
from pegboard.catalog.discovery import (
    BUILTIN,
    FoundPlugin,
    absolute_target,
    discover,
    import_namespace,
    is_uninstalled,
    nearest,
    one_line,
    ordered,
    search_report,
)
from pegboard.catalog.manager import CatalogPlugin, HookManager, LoadedPlugin
from pegboard.config.fields import coerce, fields_of
from pegboard.config.plugins import PluginsConfig, ResolvedPlugin
from pegboard.config.validation import describe_problem

__all__ = ["build_catalog", "rebuild_catalog"]

logger = logging.getLogger(__name__)

#: Enabled without anybody's asking: they need not be installed until something needs them.
_ENABLED_BY_DEFAULT = PluginsConfig().enabled


def build_catalog(
    plugins: PluginsConfig, *, named: Sequence[str] = (), process: str = "frontend"
) -> Catalog:
    """Find, check and load plugins as the user asked.

    Args:
        plugins: which are enabled, removed or allowed; and their options.
        named: plugins that must be there besides those of `plugins.enabled`.
        process: what this process is, for messages.

    Raises:
        PluginLoadError: a named plugin is missing, or a plugin does not import.
        PluginConflictError: two plugins offer one name, or want to come after each other.
        ApiVersionError: a plugin was built against an API that this core does not serve.
        SpecError: a hook implementation or spec does not have the declared form.
        ConfigError: the settings contradict each other, or a plugin's options are wrong.
    """
    _check_settings(plugins)
    required = _required(plugins, named)
    installed = discover() if required or plugins.only != [] else []
    _check_required(required, installed)
    wanted = [p for p in installed if _is_allowed(p.name, plugins, required)]
    wanted += [
        FoundPlugin(name=name, target=name)
        for name in dict.fromkeys((*plugins.enabled, *(plugins.only or ()), *named))
        if is_uninstalled(name)
    ]
    _check_options(plugins, installed, wanted)
    builder = _Builder(process, strict=plugins.on_error == "fail", required=required)
    builder.load(BUILTIN, enabled=True, options={})
    for found in wanted:
        builder.load(
            found,
            enabled=found.name in plugins.enabled or is_uninstalled(found.name),
            options=plugins.options,
        )
    return builder.catalog()


def rebuild_catalog(resolved: Sequence[ResolvedPlugin], *, process: str = "child") -> Catalog:
    """Load exactly what the parent resolved, and verify that it is the same.

    Raises:
        PluginLoadError: a plugin does not import here, or has another version, name or path
            than in the parent; carries plugin, process and cause.
    """
    builder = _Builder(process, strict=True, required=set())
    if all(plugin.name != BUILTIN.name for plugin in resolved):
        builder.load(BUILTIN, enabled=True, options={})
    for plugin in resolved:
        found = FoundPlugin(
            name=plugin.name,
            target=plugin.target,
            distribution="" if plugin.name == BUILTIN.name else plugin.distribution,
            version=plugin.version,
        )
        builder.load(found, enabled=plugin.enabled, options={plugin.name: plugin.options})
        _verify(plugin, builder.loaded[-1], process)
    return builder.catalog(order=[plugin.name for plugin in resolved])


class _Builder:
    """Loads plugins one by one; with `strict` off, leaves broken ones out with a warning."""

    def __init__(self, process: str, *, strict: bool, required: set[str]) -> None:
        self._process = process
        self._strict = strict
        self._required = required
        self.loaded: list[LoadedPlugin] = []
        self._failed: dict[str, str] = {}

    def load(
        self, found: FoundPlugin, *, enabled: bool, options: dict[str, dict[str, Any]]
    ) -> None:
        try:
            namespace, info, path = import_namespace(found, self._process)
            self._check_api(found, info)
            self._check_name(found, info)
        except PluginError as error:
            self._leave_out(found.name, error)
            return
        self.loaded.append(
            LoadedPlugin(
                found=found,
                info=info,
                namespace=namespace,
                path=path,
                enabled=enabled,
                options=options.get(info.name, {}),
            )
        )

    def catalog(self, order: Sequence[str] | None = None) -> Catalog:
        by_name = {plugin.info.name: plugin for plugin in self.loaded}
        others = [p.info for p in self.loaded if p.info.name != BUILTIN.name]
        names = ordered(others) if order is None else [n for n in order if n != BUILTIN.name]
        hooks = HookManager()
        plugins: list[CatalogPlugin] = []
        for name in (BUILTIN.name, *names):
            plugin = by_name[name]
            try:
                components = hooks.register(plugin)
            except PluginError as error:
                self._leave_out(plugin.found.name, error)
                continue
            plugins.append(
                CatalogPlugin(
                    info=plugin.info,
                    resolved=_resolve(plugin),
                    config=_plugin_config(plugin, self._process),
                    components=components,
                    observers=hooks.observers(plugin),
                )
            )
        return Catalog(plugins, process=self._process, failed=self._failed)

    def _leave_out(self, name: str, error: PluginError) -> None:
        if self._strict or name in self._required or name == BUILTIN.name:
            raise error
        logger.warning("plugin %s is left out: %s", name, error)
        self._failed[name] = str(error)

    @staticmethod
    def _check_api(found: FoundPlugin, info: PluginInfo) -> None:
        problem = api_version_problem(info.api)
        if problem:
            raise ApiVersionError(
                f"plugin {info.name!r} ({found.owner}): {problem}",
                plugin=info.name,
                distribution=found.distribution,
                version=found.version,
            )

    def _check_name(self, found: FoundPlugin, info: PluginInfo) -> None:
        for other in self.loaded:
            if other.info.name == info.name:
                raise PluginConflictError(
                    f"plugin name {info.name!r} is used by both {other.found.owner} and "
                    f"{found.owner}; leave one out",
                    plugin=info.name,
                    distribution=found.distribution,
                    version=found.version,
                )


def _check_settings(plugins: PluginsConfig) -> None:
    if BUILTIN.name in plugins.disabled:
        raise ConfigError("plugins.disabled names builtin, the core's own; it cannot be removed")
    asked = [name for name in plugins.enabled if name not in _ENABLED_BY_DEFAULT]
    for name in asked:
        if name in plugins.disabled:
            raise ConfigError(f"plugins.enabled and plugins.disabled both name {name}; drop one")
        if plugins.only is not None and name not in plugins.only and not is_uninstalled(name):
            raise ConfigError(
                f"plugins.enabled names {name}, which plugins.only leaves out; "
                "add it to --only-plugins"
            )


def _required(plugins: PluginsConfig, named: Sequence[str]) -> set[str]:
    asked = {name for name in plugins.enabled if name not in _ENABLED_BY_DEFAULT}
    return (asked | set(named) | set(plugins.only or ())) - {BUILTIN.name}


def _check_required(required: Iterable[str], installed: Sequence[FoundPlugin]) -> None:
    names = [plugin.name for plugin in installed]
    for name in sorted(required):
        if name not in names and not is_uninstalled(name):
            raise PluginLoadError(
                f"plugin {name!r} was named but is not installed: "
                f"{search_report(installed)}{nearest(name, names)}",
                plugin=name,
            )


def _is_allowed(name: str, plugins: PluginsConfig, required: set[str]) -> bool:
    if name in plugins.disabled:
        return False
    return plugins.only is None or name in plugins.only or name in required


def _check_options(
    plugins: PluginsConfig, installed: Sequence[FoundPlugin], wanted: Sequence[FoundPlugin]
) -> None:
    known = {plugin.name for plugin in installed} | set(plugins.disabled)
    has_uninstalled = any(is_uninstalled(plugin.name) for plugin in wanted)
    for name in plugins.disabled:
        if name not in {plugin.name for plugin in installed}:
            logger.warning("plugins.disabled names %s, which is not installed", name)
    for name in plugins.options:
        if name not in known and not has_uninstalled:
            raise ConfigError(
                f"[plugins.{name}] configures a plugin that is not installed: "
                f"{search_report(installed)}{nearest(name, known)}"
            )


def _resolve(plugin: LoadedPlugin) -> ResolvedPlugin:
    found = plugin.found
    builtin = found.name == BUILTIN.name
    return ResolvedPlugin(
        name=plugin.info.name,
        target=absolute_target(found.target),
        distribution="pegboard-core" if builtin else found.distribution,
        version=plugin.info.version if builtin else found.version,
        path=plugin.path,
        enabled=plugin.enabled,
        options=plugin.options,
    )


def _plugin_config(plugin: LoadedPlugin, process: str) -> Any:  # noqa: ANN401 -- its own struct
    name, target = plugin.info.name, plugin.info.config
    if target is None:
        if plugin.options:
            key = next(iter(plugin.options))
            raise ConfigError(f"plugins.{name}.{key} is set, but plugin {name!r} has no options")
        return None
    module, _, attribute = target.partition(":")
    try:
        struct = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:
        raise PluginLoadError(
            f"plugin {name!r} ({plugin.found.owner}) in process {process}: its config {target} "
            f"does not import: {one_line(f'{type(error).__name__}: {error}')}",
            plugin=name,
            distribution=plugin.found.distribution,
            version=plugin.found.version,
        ) from error
    if not (isinstance(struct, type) and issubclass(struct, msgspec.Struct)):
        raise SpecError(
            f"plugin {name!r} ({plugin.found.owner}): its config {target} is no msgspec.Struct",
            plugin=name,
        )
    kinds = {field.name: field for field in fields_of(struct)}
    options = {
        key: coerce(kinds[key], value) if key in kinds else value
        for key, value in plugin.options.items()
    }
    try:
        return msgspec.convert(options, struct)
    except msgspec.ValidationError as error:
        problem = describe_problem(struct, options, error)
        raise ConfigError(f"plugins.{name}.{problem} (--plugin-config {name}.key=value)") from error


def _verify(expected: ResolvedPlugin, plugin: LoadedPlugin, process: str) -> None:
    found = plugin.found
    version = expected.version
    if found.distribution:
        try:
            version = importlib.metadata.version(found.distribution)
        except importlib.metadata.PackageNotFoundError:
            version = "not installed"
    elif found.name == BUILTIN.name:
        version = plugin.info.version
    for what, here, there in (
        ("name", plugin.info.name, expected.name),
        ("version", version, expected.version),
        ("path", plugin.path, expected.path or plugin.path),
    ):
        if here != there:
            raise PluginLoadError(
                f"plugin {expected.name!r} ({found.owner}) in process {process}: its {what} is "
                f"{here!r} here but {there!r} in the parent; "
                "start every process in one environment",
                plugin=expected.name,
                distribution=expected.distribution,
                version=expected.version,
            )
