"""Examines every installed plugin by itself, so that one broken plugin hides no other.

Run by `platform plugins doctor`; `python -m pegboard.catalog.doctor` is the child that proves a
plugin loads in another process, and imports every implementation if asked.
"""

import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator

import msgspec

from pegboard.api.errors import PegboardError
from pegboard.api.platforms import PlatformSpec
from pegboard.catalog.build import build_catalog, rebuild_catalog
from pegboard.catalog.catalog import Catalog
from pegboard.catalog.discovery import GROUP, discover
from pegboard.config.plugins import PluginsConfig, ResolvedPlugin

__all__ = ["Finding", "examine"]

CHILD_TIMEOUT_S = 120


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One check of one plugin.

    Attributes:
        plugin: its name.
        check: what was looked at.
        status: "ok", "warn" or "fail".
        detail: one line; with the mend where it is not ok.
    """

    plugin: str
    check: str
    status: str
    detail: str = ""


class _Ask(msgspec.Struct):
    """What the parent asks the child: plugins to load, and whether to import implementations."""

    plugins: list[ResolvedPlugin]
    deep: bool


def examine(plugins: PluginsConfig, *, deep: bool = False) -> Iterator[Finding]:
    """Yield findings as they are made.

    Args:
        plugins: the user's settings; options are checked against each plugin's struct.
        deep: also import every implementation, in a child process.
    """
    try:
        installed = discover()
    except PegboardError as error:
        yield Finding(plugin="-", check="discovery", status="fail", detail=str(error))
        return
    where = f"{len(installed)} entry points of group {GROUP}"
    yield Finding(plugin="-", check="discovery", status="ok", detail=where)
    for found in installed:
        if plugins.only is not None and found.name not in plugins.only:
            continue
        if found.name in plugins.disabled:
            yield Finding(plugin=found.name, check="loads", status="warn", detail="is disabled")
            continue
        yield from _examine_one(found.name, plugins, deep=deep)
    yield _together(plugins)


def _examine_one(name: str, plugins: PluginsConfig, *, deep: bool) -> Iterator[Finding]:
    options = {name: plugins.options[name]} if name in plugins.options else {}
    alone = PluginsConfig(enabled=(name,), only=[name], options=options)
    try:
        catalog = build_catalog(alone, process="doctor")
    except PegboardError as error:
        yield Finding(plugin=name, check="loads", status="fail", detail=str(error))
        return
    plugin = catalog.plugin(name)
    count = sum(len(specs) for specs in plugin.components.values())
    detail = f"API {plugin.info.api}, {count} components, {len(plugin.observers)} observers"
    yield Finding(plugin=name, check="loads", status="ok", detail=detail)
    if plugin.resolved.version != plugin.info.version:
        detail = (
            f"PLUGIN says {plugin.info.version}, {plugin.resolved.distribution} is "
            f"{plugin.resolved.version}; its metadata is stale, reinstall it"
        )
        yield Finding(plugin=name, check="version", status="warn", detail=detail)
    yield from _requirements(name, plugin.resolved.distribution)
    yield from _platforms(name, catalog)
    yield _child(name, catalog, deep=deep)


def _requirements(name: str, distribution: str) -> Iterator[Finding]:
    for requirement in importlib.metadata.requires(distribution) or ():
        wanted = requirement.split(";")[0].strip()
        project = wanted
        for position, character in enumerate(wanted):
            if not (character.isalnum() or character in "-_."):
                project = wanted[:position]
                break
        if "extra ==" in requirement or "extra==" in requirement:
            continue
        if ";" in requirement and "python_version" not in requirement:
            continue  # of another operating system or machine
        try:
            importlib.metadata.version(project)
        except importlib.metadata.PackageNotFoundError:
            detail = f"requires {wanted}, which is not installed"
            yield Finding(plugin=name, check="requirements", status="fail", detail=detail)


def _platforms(name: str, catalog: Catalog) -> Iterator[Finding]:
    for entry in catalog.entries("platforms"):
        if entry.plugin == name and isinstance(entry.spec, PlatformSpec):
            detection = catalog.detect(entry)
            found = f"{entry.name}: {detection.reason}"
            status = "ok" if detection.available else "warn"
            yield Finding(plugin=name, check="device", status=status, detail=found)


def _child(name: str, catalog: Catalog, *, deep: bool) -> Finding:
    check = "loads in a child, with all implementations" if deep else "loads in a child"
    ask = msgspec.msgpack.encode(_Ask(plugins=catalog.resolved(), deep=deep))
    try:
        child = subprocess.run(
            [sys.executable, "-m", "pegboard.catalog.doctor"],
            input=ask,
            capture_output=True,
            timeout=CHILD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        detail = f"no answer within {CHILD_TIMEOUT_S} s"
        return Finding(plugin=name, check=check, status="fail", detail=detail)
    if child.returncode:
        lines = child.stderr.decode(errors="replace").strip().splitlines()
        detail = lines[-1] if lines else f"exit status {child.returncode}"
        return Finding(plugin=name, check=check, status="fail", detail=detail)
    return Finding(plugin=name, check=check, status="ok")


def _together(plugins: PluginsConfig) -> Finding:
    try:
        build_catalog(plugins, process="doctor")
    except PegboardError as error:
        return Finding(plugin="-", check="all together", status="fail", detail=str(error))
    return Finding(plugin="-", check="all together", status="ok")


def _answer() -> int:
    ask = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=_Ask)
    try:
        catalog = rebuild_catalog(ask.plugins, process="doctor's child")
        if ask.deep:
            for plugin in catalog.plugins:
                for specs in plugin.components.values():
                    for spec in specs:
                        if plugin.info.name != "builtin":
                            catalog.load(spec)
    except PegboardError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_answer())
