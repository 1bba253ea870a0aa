"""Which plugins are installed, and how one is imported. Reading metadata imports nothing.

It does not know which of them the user wants; `build` decides that.
"""

import difflib
import importlib
import importlib.metadata
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from pegboard.api.errors import PluginConflictError, PluginLoadError
from pegboard.api.plugin import PluginInfo

__all__ = [
    "BUILTIN",
    "GROUP",
    "FoundPlugin",
    "absolute_target",
    "discover",
    "import_namespace",
    "is_uninstalled",
    "nearest",
    "one_line",
    "ordered",
    "search_report",
]

GROUP = "pegboard.plugins"


class FoundPlugin(msgspec.Struct, frozen=True, kw_only=True):
    """A plugin that can be loaded: an entry point, or what the user pointed at.

    Attributes:
        name: the entry point's name; for an uninstalled one, what the user wrote.
        target: "module", "module:attr" or the path of a file.
        distribution, version: who declares it; "" for an uninstalled one.
        location: folder in which the distribution lies.
    """

    name: str
    target: str
    distribution: str = ""
    version: str = ""
    location: str = ""

    @property
    def owner(self) -> str:
        """Whom to name in a message: the distribution with its version, or the target."""
        return f"{self.distribution} {self.version}" if self.distribution else self.target


BUILTIN = FoundPlugin(name="builtin", target="pegboard.builtin.plugin")


def discover() -> list[FoundPlugin]:
    """Return every installed plugin, ordered by name, without importing any.

    Raises:
        PluginConflictError: two distributions declare one name; names both.
    """
    found: dict[str, FoundPlugin] = {BUILTIN.name: BUILTIN}
    for point in importlib.metadata.entry_points(group=GROUP):
        plugin = _from_entry_point(point)
        other = found.get(plugin.name)
        if other is not None:
            raise PluginConflictError(
                f"plugin name {plugin.name!r} is declared by both {other.owner} "
                f"({other.location or 'the core'}) and {plugin.owner} ({plugin.location}); "
                "uninstall one of them",
                plugin=plugin.name,
                distribution=plugin.distribution,
                version=plugin.version,
            )
        found[plugin.name] = plugin
    del found[BUILTIN.name]
    return [found[name] for name in sorted(found)]


def _from_entry_point(point: importlib.metadata.EntryPoint) -> FoundPlugin:
    distribution = point.dist
    return FoundPlugin(
        name=point.name,
        target=point.value.replace(" ", ""),
        distribution=distribution.name if distribution else "",
        version=distribution.version if distribution else "",
        location=str(distribution.locate_file("")) if distribution else "",
    )


def is_uninstalled(name: str) -> bool:
    """Return whether `name` points at a plugin (a path or module:attr) instead of naming one."""
    return ":" in name or _is_path(name)


def search_report(found: Iterable[FoundPlugin]) -> str:
    """Say where `discover` looked and what it found, on one line."""
    names = ", ".join(plugin.name for plugin in found) or "none"
    folders = [folder for folder in sys.path if folder and Path(folder).is_dir()]
    shown = ", ".join(folders[:4]) + (f" and {len(folders) - 4} more" if len(folders) > 4 else "")
    return f"looked for entry points of group {GROUP} in {shown}; found {names}"


def nearest(word: str, words: Iterable[str]) -> str:
    """Return '; did you mean …?' for the nearest of `words`, or ''."""
    match = difflib.get_close_matches(word, list(words), n=1, cutoff=0.6)
    return f"; did you mean {match[0]}?" if match else ""


def import_namespace(plugin: FoundPlugin, process: str) -> tuple[Any, PluginInfo, str]:
    """Import a plugin's entry module.

    Returns:
        What holds the hook implementations, its `PLUGIN`, and the file the module came from.

    Raises:
        PluginLoadError: it does not import, or holds no `PLUGIN`; carries plugin and cause.
    """
    try:
        module, attribute = _import_module(plugin.target)
        namespace: Any = module
        for part in attribute.split(".") if attribute else ():
            namespace = getattr(namespace, part)
    except (Exception, SystemExit) as error:
        raise _load_error(plugin, process, _import_cause(plugin, error)) from error
    if isinstance(namespace, PluginInfo):
        namespace = module
    elif isinstance(namespace, type):
        namespace = namespace()
    info = getattr(namespace, "PLUGIN", None)
    if not isinstance(info, PluginInfo):
        raise _load_error(
            plugin,
            process,
            f"{plugin.target} holds no PLUGIN = PluginInfo(...)"
            + ("" if info is None else f" but a {type(info).__name__}"),
        )
    if plugin.distribution and info.name != plugin.name:
        raise _load_error(
            plugin,
            process,
            f"its PLUGIN is named {info.name!r}; entry point and PLUGIN must have one name",
        )
    return namespace, info, str(Path(module.__file__).resolve()) if module.__file__ else ""


def absolute_target(target: str) -> str:
    """Return `target` as any process can import it, whatever its working folder."""
    return str(Path(target).expanduser().resolve()) if _is_path(target) else target


def _is_path(target: str) -> bool:
    return target.endswith(".py") or "/" in target or "\\" in target


def _import_module(target: str) -> tuple[ModuleType, str]:
    if _is_path(target):
        return _import_file(Path(target)), ""
    name, _, attribute = target.partition(":")
    return importlib.import_module(name), attribute


def _import_file(path: Path) -> ModuleType:
    """Import a file, or a package folder's `plugin.py`, under its own name.

    Its folder joins the end of the module search path, so that targets of its specs
    ("file:Class") import in every process without shadowing an installed module.
    """
    path = path.expanduser().resolve()
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    folder, name = path.parent, path.stem
    if path.is_dir():
        name = f"{path.name}.plugin" if (path / "plugin.py").is_file() else path.name
        path = path / "plugin.py" if (path / "plugin.py").is_file() else path / "__init__.py"
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
        importlib.invalidate_caches()
    module = importlib.import_module(name)
    if not module.__file__ or Path(module.__file__).resolve() != path:
        raise ImportError(f"module name {name!r} is taken by {module.__file__}; rename the file")
    return module


def _import_cause(plugin: FoundPlugin, error: BaseException) -> str:
    module = plugin.target.partition(":")[0]
    if (
        isinstance(error, ModuleNotFoundError)
        and error.name
        and f"{module}.".startswith(f"{error.name}.")
    ):
        return f"its module {module} is gone although its metadata is there; reinstall it"
    return f"{plugin.target} does not import: {type(error).__name__}: {error}"


def _load_error(plugin: FoundPlugin, process: str, cause: str) -> PluginLoadError:
    return PluginLoadError(
        f"plugin {plugin.name!r} ({plugin.owner}) in process {process}: {one_line(cause)}",
        plugin=plugin.name,
        distribution=plugin.distribution,
        version=plugin.version,
    )


def one_line(text: str, limit: int = 400) -> str:
    """Return `text` on one line, cut to `limit` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else f"{flat[: limit - 1]}…"


def ordered(infos: Sequence[PluginInfo]) -> list[str]:
    """Return plugin names in the order their components are taken: `after`, then name.

    Raises:
        PluginConflictError: plugins that each want to come after the other.
    """
    waiting = {
        info.name: {name for name in info.after if any(o.name == name for o in infos)}
        for info in infos
    }
    order: list[str] = []
    while waiting:
        free = sorted(name for name, before in waiting.items() if not before - set(order))
        if not free:
            cycle = ", ".join(
                f"{name} after {'/'.join(sorted(before - set(order)))}"
                for name, before in sorted(waiting.items())
            )
            raise PluginConflictError(
                f"plugins cannot be ordered: {cycle}; drop one `after`",
                plugin=min(waiting),
            )
        order.append(free[0])
        del waiting[free[0]]
    return order
