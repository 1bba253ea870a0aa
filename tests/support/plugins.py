"""Fake plugins that are real entry points: a dist-info folder and modules on a temporary path."""

import importlib
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pegboard.config.env import read_environment
from pegboard.config.plugins import PluginsConfig

HEAD = """
import msgspec
from pegboard.api import ComponentSpec, PluginInfo, hookimpl
from pegboard.api.attention import AttentionBackendSpec
from pegboard.api.engine import ExecutorSpec
from pegboard.api.frontends import CliCommandSpec, FrontendSpec, HttpRouteSpec
from pegboard.api.observers import StatLoggerSpec
from pegboard.api.ops import OpImplementationSpec
from pegboard.api.platforms import Detection, PlatformSpec
"""

_serial = itertools.count()


class FakePlugins:
    """Installs plugins into a folder, each as a distribution of its own.

    Modules get a fresh name each time, since what was imported stays imported. `{module}` in a
    source stands for the module's own name.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.modules: list[str] = []

    def module(self, source: str, stem: str = "fake") -> str:
        """Write a module and return its name."""
        name = f"{stem}_{next(_serial)}"
        text = HEAD + source.replace("{module}", name)
        (self.folder / f"{name}.py").write_text(text, encoding="utf-8")
        self.modules.append(name)
        importlib.invalidate_caches()
        return name

    def install(
        self,
        name: str,
        source: str = "",
        *,
        version: str = "1.0",
        api: str = "1.0",
        info: str = "",
        distribution: str | None = None,
        declare: bool = True,
        target: str | None = None,
    ) -> str:
        """Install a plugin and return its entry module's name.

        Args:
            name: of entry point and PLUGIN.
            source: hook implementations, after the imports in `HEAD`.
            version: of distribution and PLUGIN.
            api: of PLUGIN.
            info: further keywords of PluginInfo, as source text.
            distribution: its name; default "fake-<name>".
            declare: write PLUGIN; False leaves the module without one.
            target: what the entry point names instead of the module that is written.
        """
        plugin = (
            f"PLUGIN = PluginInfo(name={name!r}, version={version!r}, api={api!r}, "
            f'summary="fake {name}", {info})\n'
        )
        module = self.module((plugin if declare else "") + source, name)
        self.declare(name, target or module, version=version, distribution=distribution)
        return module

    def declare(
        self, name: str, target: str, *, version: str = "1.0", distribution: str | None = None
    ) -> None:
        """Write the metadata of a distribution with one entry point."""
        project = distribution or f"fake-{name.replace('_', '-')}"
        folder = self.folder / f"{project.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        metadata = f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n"
        (folder / "METADATA").write_text(metadata, encoding="utf-8")
        points = f"[pegboard.plugins]\n{name} = {target}\n"
        (folder / "entry_points.txt").write_text(points, encoding="utf-8")
        importlib.invalidate_caches()

    def only(self, *names: str, **settings: object) -> PluginsConfig:
        """Return settings that load just these plugins, so that installed ones do not matter."""
        return PluginsConfig(only=list(names), enabled=(), **settings)  # type: ignore[arg-type]

    @property
    def environment(self) -> dict[str, str]:
        """The environment for a child that shall find these plugins."""
        inherited = read_environment().inherited
        older = inherited.get("PYTHONPATH")
        path = f"{self.folder}:{older}" if older else str(self.folder)
        own = {key: value for key, value in inherited.items() if not key.startswith("PEGBOARD_")}
        return own | {"PYTHONPATH": path}


@pytest.fixture
def fake_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePlugins]:
    """Return an installer whose folder is on the module search path for the test."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    plugins = FakePlugins(folder)
    yield plugins
    for module in plugins.modules:
        sys.modules.pop(module, None)
