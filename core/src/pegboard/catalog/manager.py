"""Hook calling: registers plugins with pluggy, checks every implementation, collects specs.

It knows hooks, not the user's wishes; errors name the plugin and its distribution.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pluggy

from pegboard.api.errors import PluginConflictError, SpecError
from pegboard.api.hookspecs import COMPONENT_HOOKS, LIFECYCLE_HOOKS, HookSpecs
from pegboard.api.plugin import ComponentSpec, PluginInfo
from pegboard.catalog.discovery import FoundPlugin, nearest
from pegboard.config.plugins import ResolvedPlugin

__all__ = ["CatalogPlugin", "HookManager", "LoadedPlugin"]


@dataclass(frozen=True, slots=True)
class LoadedPlugin:
    """A plugin whose entry module is imported.

    Attributes:
        found: where it came from.
        info: its `PLUGIN`.
        namespace: the module or object that holds its hook implementations.
        path: the file it was imported from.
        enabled: enabled by name, so that what acts unselected acts.
        options: its table of the configuration, not yet checked.
    """

    found: FoundPlugin
    info: PluginInfo
    namespace: Any
    path: str
    enabled: bool
    options: dict[str, Any]


class CatalogPlugin(msgspec.Struct, frozen=True, kw_only=True):
    """A loaded plugin as the catalog keeps it.

    Attributes:
        info: its `PLUGIN`.
        resolved: what a child loads and verifies.
        config: its options as its own struct, or None.
        components: specs by kind.
        observers: lifecycle hooks by name, whether or not the plugin is enabled.
    """

    info: PluginInfo
    resolved: ResolvedPlugin
    config: Any
    components: dict[str, list[ComponentSpec]]
    observers: dict[str, Callable[[Any], None]]


class HookManager:
    """Pluggy's plugin manager with the checks that pluggy leaves to its users."""

    def __init__(self) -> None:
        """Declare the hooks."""
        self._manager = pluggy.PluginManager("pegboard")
        self._manager.add_hookspecs(HookSpecs)
        self._names: dict[tuple[str, str], tuple[LoadedPlugin, ComponentSpec]] = {}

    def register(self, plugin: LoadedPlugin) -> dict[str, list[ComponentSpec]]:
        """Check a plugin's hook implementations and return its components by kind.

        Nothing of it stays registered if it raises.

        Raises:
            SpecError: an unknown hook, a wrong argument, or a result of the wrong type.
            PluginConflictError: a component name or alias that is taken; names both packages.
        """
        for name in self._implemented(plugin):
            self._check(plugin, name)
        self._manager.register(plugin.namespace, name=plugin.info.name)
        try:
            components = {
                kind: self._call(plugin, kind)
                for kind in COMPONENT_HOOKS
                if self._implements(plugin, kind)
            }
            self._claim_names(plugin, components)
        except Exception:
            self._manager.unregister(name=plugin.info.name)
            raise
        return components

    def observers(self, plugin: LoadedPlugin) -> dict[str, Callable[[Any], None]]:
        """Return the plugin's lifecycle hooks as functions of the one event."""
        result: dict[str, Callable[[Any], None]] = {}
        for hook in LIFECYCLE_HOOKS:
            for impl in getattr(self._manager.hook, hook).get_hookimpls():
                if impl.plugin is plugin.namespace:
                    takes_event = bool(impl.argnames)
                    function = impl.function
                    result[hook] = function if takes_event else _ignoring_event(function)
        return result

    def _implemented(self, plugin: LoadedPlugin) -> list[str]:
        return [
            name
            for name in dir(plugin.namespace)
            if self._manager.parse_hookimpl_opts(plugin.namespace, name) is not None
        ]

    def _implements(self, plugin: LoadedPlugin, hook: str) -> bool:
        impls = getattr(self._manager.hook, hook).get_hookimpls()
        return any(impl.plugin is plugin.namespace for impl in impls)

    def _check(self, plugin: LoadedPlugin, name: str) -> None:
        opts = self._manager.parse_hookimpl_opts(plugin.namespace, name) or {}
        hook = opts.get("specname") or name
        known = COMPONENT_HOOKS.keys() | LIFECYCLE_HOOKS.keys()
        if hook not in known:
            if opts.get("optionalhook"):
                return
            raise self._error(plugin, f"there is no hook {hook!r}{nearest(hook, known)}")
        if opts.get("wrapper") or opts.get("hookwrapper"):
            raise self._error(plugin, f"hook {hook} may not be wrapped; return specs of your own")
        spec_arguments = set(inspect.signature(getattr(HookSpecs, hook)).parameters) - {"self"}
        parameters = inspect.signature(getattr(plugin.namespace, name)).parameters.values()
        unknown = [p.name for p in parameters if p.name not in spec_arguments]
        if unknown:
            takes = ", ".join(sorted(spec_arguments)) or "none"
            raise self._error(
                plugin, f"hook {hook} passes no argument {unknown[0]!r}; it passes {takes}"
            )

    def _call(self, plugin: LoadedPlugin, kind: str) -> list[ComponentSpec]:
        others = [p for p in self._manager.get_plugins() if p is not plugin.namespace]
        expected = COMPONENT_HOOKS[kind].spec
        assert expected is not None
        try:
            results = self._manager.subset_hook_caller(kind, remove_plugins=others)()
        except (Exception, SystemExit) as error:
            raise self._error(
                plugin, f"hook {kind} raised {type(error).__name__}: {error}"
            ) from error
        specs: list[ComponentSpec] = []
        for result in results:
            if not isinstance(result, list | tuple):
                raise self._error(
                    plugin,
                    f"hook {kind} returned a {type(result).__name__}, "
                    f"not a list of {expected.__name__}",
                )
            for spec in result:
                if not isinstance(spec, expected):
                    raise self._error(
                        plugin,
                        f"hook {kind} returned a {type(spec).__name__} among its "
                        f"{expected.__name__}s",
                    )
                specs.append(spec)
        return specs

    def _claim_names(
        self, plugin: LoadedPlugin, components: dict[str, list[ComponentSpec]]
    ) -> None:
        claimed: dict[tuple[str, str], tuple[LoadedPlugin, ComponentSpec]] = {}
        for kind, specs in components.items():
            for spec in specs:
                for name in (spec.name, *spec.aliases):
                    other = self._names.get((kind, name)) or claimed.get((kind, name))
                    if other is not None:
                        raise self._conflict(kind, name, other, (plugin, spec))
                    claimed[kind, name] = (plugin, spec)
        self._names.update(claimed)

    @staticmethod
    def _conflict(
        kind: str,
        name: str,
        first: tuple[LoadedPlugin, ComponentSpec],
        second: tuple[LoadedPlugin, ComponentSpec],
    ) -> PluginConflictError:
        def who(plugin: LoadedPlugin, spec: ComponentSpec) -> str:
            alias = f", as an alias of {spec.name}" if spec.name != name else ""
            return f"plugin {plugin.info.name!r} ({plugin.found.owner}{alias})"

        plugin = second[0]
        mend = (
            f"leave one out with --plugins=-{plugin.info.name}"
            if first[0] is not plugin
            else "rename one"
        )
        return PluginConflictError(
            f"{kind} {name!r} is offered by both {who(*first)} and {who(*second)}; {mend}",
            plugin=plugin.info.name,
            distribution=plugin.found.distribution,
            version=plugin.found.version,
        )

    @staticmethod
    def _error(plugin: LoadedPlugin, problem: str) -> SpecError:
        return SpecError(
            f"plugin {plugin.info.name!r} ({plugin.found.owner}): {problem}",
            plugin=plugin.info.name,
            distribution=plugin.found.distribution,
            version=plugin.found.version,
        )


def _ignoring_event(function: Callable[[], None]) -> Callable[[Any], None]:
    def observe(event: Any) -> None:  # noqa: ANN401 -- whatever the hook passes
        del event
        function()

    return observe
