import json
import subprocess
import sys

import msgspec
import pytest

from pegboard.api.errors import PluginLoadError
from pegboard.catalog import build_catalog, rebuild_catalog
from pegboard.config.plugins import PluginsConfig, ResolvedPlugin

FLEET = """
@hookimpl
def executors():
    return [ExecutorSpec(name=PLUGIN.name + "_fleet", target="{module}:Missing", priority=3)]
"""
OPTIONS = """
class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    depth: int = 4
"""
CHILD = """
import json, sys, msgspec
from pegboard.catalog import rebuild_catalog
from pegboard.config.plugins import ResolvedPlugin
plugins = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=list[ResolvedPlugin])
catalog = rebuild_catalog(plugins, process="worker 3")
print(json.dumps([
    [p.info.name for p in catalog.plugins],
    [e.name for e in catalog.entries("executors")],
    catalog.plugin_config("a").depth,
    catalog.is_enabled("a"), catalog.is_enabled("b"),
    "torch" in sys.modules,
]))
"""


def changed(resolved: list[ResolvedPlugin], name: str, **values: object) -> list[ResolvedPlugin]:
    return [msgspec.structs.replace(p, **values) if p.name == name else p for p in resolved]


def test_child_process_has_the_parents_plugins_options_and_order(fake_plugins):
    fake_plugins.install("a", FLEET + OPTIONS, info="config=__name__ + ':Options', after=('b',)")
    fake_plugins.install("b", FLEET)
    fake_plugins.install("not_asked_for", "raise RuntimeError")
    plugins = PluginsConfig(enabled=("a",), only=["a", "b"], options={"a": {"depth": 9}})
    parent = build_catalog(plugins)
    child = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=msgspec.msgpack.encode(parent.resolved()),
        env=fake_plugins.environment,
        capture_output=True,
        timeout=60,
        check=True,
    )
    names, fleets, depth, a_enabled, b_enabled, torch = json.loads(child.stdout)
    assert names == [plugin.info.name for plugin in parent.plugins] == ["builtin", "b", "a"]
    assert fleets == [entry.name for entry in parent.entries("executors")]
    assert (depth, a_enabled, b_enabled, torch) == (9, True, False, False)


def test_core_is_part_of_what_is_resolved_and_always_loaded():
    catalog = build_catalog(PluginsConfig(enabled=(), only=[]))
    assert [plugin.name for plugin in catalog.resolved()] == ["builtin"]
    assert [plugin.info.name for plugin in rebuild_catalog([]).plugins] == ["builtin"]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"version": "0.9"}, "version is '1.0' here but '0.9' in the parent"),
        ({"path": "/elsewhere/plugin.py"}, "path is"),
    ],
)
def test_child_refuses_another_version_or_path(fake_plugins, values, says):
    fake_plugins.install("a", FLEET)
    resolved = changed(build_catalog(fake_plugins.only("a")).resolved(), "a", **values)
    with pytest.raises(PluginLoadError) as caught:
        rebuild_catalog(resolved, process="worker 3")
    assert says in str(caught.value)
    assert "plugin 'a'" in str(caught.value)
    assert "process worker 3" in str(caught.value)


def test_child_refuses_a_core_of_another_version():
    resolved = build_catalog(PluginsConfig(enabled=(), only=[])).resolved()
    with pytest.raises(PluginLoadError, match=r"plugin 'builtin'.*version"):
        rebuild_catalog(changed(resolved, "builtin", version="0.0.1"))


def test_child_reports_an_uninstalled_distribution(fake_plugins):
    fake_plugins.install("a", FLEET)
    resolved = build_catalog(fake_plugins.only("a")).resolved()
    with pytest.raises(PluginLoadError, match="'not installed' here"):
        rebuild_catalog(changed(resolved, "a", distribution="never-installed"))


def test_child_reports_plugin_process_and_cause_of_a_failed_import(fake_plugins):
    resolved = [ResolvedPlugin(name="a", target="a_module_only_the_parent_has")]
    with pytest.raises(PluginLoadError) as caught:
        rebuild_catalog(resolved, process="engine_core")
    text = str(caught.value)
    assert "plugin 'a'" in text
    assert "process engine_core" in text
    assert "a_module_only_the_parent_has" in text


def test_child_refuses_a_plugin_of_another_name(fake_plugins):
    module = fake_plugins.install("a")
    fake_plugins.declare("b", module)
    resolved = [ResolvedPlugin(name="b", target=module, distribution="fake-b", version="1.0")]
    with pytest.raises(PluginLoadError, match="PLUGIN is named 'a'"):
        rebuild_catalog(resolved)


def test_relative_file_is_resolved_for_a_child_in_another_folder(
    fake_plugins, tmp_path, monkeypatch
):
    module = fake_plugins.module(
        "PLUGIN = PluginInfo(name='loose', version='1', api='1.0', summary='')\n" + FLEET
    )
    loose = tmp_path / "loose"
    loose.mkdir()
    (fake_plugins.folder / f"{module}.py").rename(loose / f"{module}.py")
    monkeypatch.chdir(loose)
    target = f"./{module}.py"
    resolved = build_catalog(PluginsConfig(enabled=(target,), only=[])).resolved()
    sys.path.remove(str(loose))
    sys.modules.pop(module)
    monkeypatch.chdir(tmp_path)
    catalog = rebuild_catalog(resolved)
    assert catalog.is_enabled("loose")
    assert any(entry.name == "loose_fleet" for entry in catalog.entries("executors"))
    sys.path.remove(str(loose))
