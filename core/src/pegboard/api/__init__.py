"""All that a plugin may rely on: interfaces, specs, hooks, messages, errors.

Imports nothing else of pegboard, and no torch. `pegboard.api.hookspecs` has every hook on one
screen; each kind of component has a file of its own.
"""

from pegboard.api.plugin import ComponentContext, ComponentSpec, PluginInfo, hookimpl
from pegboard.api.version import API_VERSION

__all__ = ["API_VERSION", "ComponentContext", "ComponentSpec", "PluginInfo", "hookimpl"]
