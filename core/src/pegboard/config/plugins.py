"""Which plugins are there, and which act; `[plugins]`."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

__all__ = ["PluginsConfig", "ResolvedPlugin"]


class PluginsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The user's word on plugins. `[plugins.<name>]` tables go to `options`."""

    enabled: Annotated[
        tuple[str, ...],
        Meta(
            description="Plugins enabled by name: those whose routes, stat loggers and observers "
            "act, and that must be there. A path or module:attr loads an uninstalled one."
        ),
    ] = ("server",)
    disabled: Annotated[list[str], Meta(description="Plugins not to load.")] = []
    only: Annotated[list[str] | None, Meta(description="Load just these and the core's own.")] = (
        None
    )
    on_error: Annotated[
        Literal["fail", "warn"],
        Meta(description="What an installed plugin that does not import does to the start."),
    ] = "fail"
    options: Annotated[
        dict[str, dict[str, Any]], Meta(description="Options of each plugin, by its name.")
    ] = {}


class ResolvedPlugin(msgspec.Struct, frozen=True, kw_only=True):
    """One plugin as the parent resolved it; children load exactly these and verify them.

    Attributes:
        name: entry point's name.
        target: module of the entry point, or "path/to/file.py" for an uninstalled one.
        distribution, version: who declares it; "" for an uninstalled one.
        path: where the module was found.
        enabled: enabled by name, so that what acts unselected acts.
        options: its table of the configuration.
    """

    name: str
    target: str
    distribution: str = ""
    version: str = ""
    path: str = ""
    enabled: bool = False
    options: dict[str, Any] = {}
