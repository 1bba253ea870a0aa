"""What a plugin module declares: a `PLUGIN = PluginInfo(...)` and `@hookimpl` functions.

A plugin's entry module imports only `pegboard.api`, returns static descriptors (specs) and
touches no device. What a spec's `target` names is imported when the component is selected, in
the processes that need it.
"""

import re
from typing import Any, ClassVar

import msgspec
import pluggy

__all__ = ["ComponentContext", "ComponentSpec", "PluginInfo", "check_target", "hookimpl"]

#: Marks a function of a plugin's entry module as a hook implementation.
hookimpl = pluggy.HookimplMarker("pegboard")

_PLUGIN_NAME = re.compile(r"[a-z][a-z0-9_]*")
_COMPONENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


class PluginInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who a plugin is. Its entry module holds one as `PLUGIN`.

    Attributes:
        name: what `--plugins` and `[plugins.<name>]` call it; equal to its entry point's name.
        version: the plugin's own version.
        api: the `API_VERSION` it was built against, such as "1.0".
        summary: one line for `platform plugins list`.
        url: where its documentation is.
        config: "module:Struct" of its options, filled from `[plugins.<name>]`; None for none.
        after: names of plugins whose components come before its own, where both are there.
    """

    name: str
    version: str
    api: str
    summary: str
    url: str = ""
    config: str | None = None
    after: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the form of the names."""
        if not _PLUGIN_NAME.fullmatch(self.name):
            raise ValueError(f"plugin name {self.name!r} must match {_PLUGIN_NAME.pattern}")
        if self.config is not None:
            check_target(self.config, f"config of plugin {self.name!r}")


class ComponentSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The static description of one component; the base of every kind's spec.

    Attributes:
        name: what an operator calls it. Open strings: a plugin may give any number.
        target: "module:attribute" of the implementation, imported when it is selected.
        summary: one line for `platform plugins list`.
        priority: the highest of those that fit wins; ties go by plugin order, then name.
        aliases: other names that mean the same.
        supports: "module:function" taking the kind's query and returning a reason against it or
            None, for what data cannot say. It must import as cheaply as the entry module.
    """

    kind: ClassVar[str] = ""

    name: str
    target: str
    summary: str = ""
    priority: int = 0
    aliases: tuple[str, ...] = ()
    supports: str | None = None

    def __post_init__(self) -> None:
        """Check the form of names and targets."""
        for name in (self.name, *self.aliases):
            if not _COMPONENT_NAME.fullmatch(name):
                raise ValueError(f"component name {name!r} must match {_COMPONENT_NAME.pattern}")
        check_target(self.target, f"target of {self.name!r}")
        if self.supports is not None:
            check_target(self.supports, f"supports of {self.name!r}")

    def reasons_against(self, query: Any) -> list[str]:  # noqa: ANN401 -- each kind has its own query
        """Return why this component does not fit `query`, from data alone; empty if it fits."""
        del query
        return []


class ComponentContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a component's factory may know besides its arguments.

    Attributes:
        plugin: the name of the plugin that offers it.
        plugin_config: that plugin's options (its `PluginInfo.config` struct), or None.
        config: the frozen engine configuration (`pegboard.api.engine.EngineConfigView`), or
            None where no engine is being built.
    """

    plugin: str
    plugin_config: Any = None
    config: Any = None


def check_target(target: str, what: str) -> None:
    """Raise ValueError unless `target` has the form "module:attribute"."""
    if not _TARGET.fullmatch(target):
        raise ValueError(f'{what} is {target!r}; it must be "module:attribute"')
