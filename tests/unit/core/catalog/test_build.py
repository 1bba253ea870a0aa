import sys

import pytest

from pegboard.api.errors import (
    ApiVersionError,
    ConfigError,
    PluginConflictError,
    PluginLoadError,
    SpecError,
)
from pegboard.catalog import build_catalog
from pegboard.catalog.discovery import discover
from pegboard.config.plugins import PluginsConfig

EXECUTOR = """
@hookimpl
def executors():
    return [ExecutorSpec(name={name!r}, target="{{module}}:Thing", aliases={aliases!r})]

class Thing:
    def __init__(self, context, *args):
        self.context, self.args = context, args
"""
OPTIONS = """
from typing import Annotated
class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    depth: Annotated[int, msgspec.Meta(ge=1)] = 4
    label: str = ""
"""


def executor(name: str, *aliases: str) -> str:
    return EXECUTOR.format(name=name, aliases=aliases)


def own_names(catalog) -> list[str]:
    return [plugin.info.name for plugin in catalog.plugins]


def test_discovery_reads_metadata_and_imports_nothing(fake_plugins):
    module = fake_plugins.install("quiet", version="3.2")
    (found,) = [plugin for plugin in discover() if plugin.name == "quiet"]
    assert (found.target, found.distribution, found.version) == (module, "fake-quiet", "3.2")
    assert found.location == str(fake_plugins.folder)
    assert module not in sys.modules


def test_installed_plugin_is_loaded_without_being_named(fake_plugins):
    fake_plugins.install("found", executor("found_fleet"))
    catalog = build_catalog(PluginsConfig(enabled=()))
    assert "found" in own_names(catalog)
    assert not catalog.is_enabled("found")
    assert any(entry.name == "found_fleet" for entry in catalog.entries("executors"))


def test_only_leaves_every_other_plugin_out(fake_plugins):
    fake_plugins.install("one")
    fake_plugins.install("two")
    assert own_names(build_catalog(fake_plugins.only("two"))) == ["builtin", "two"]


def test_core_alone_lists_its_own():
    catalog = build_catalog(PluginsConfig(enabled=(), only=[]))
    assert own_names(catalog) == ["builtin"]
    assert [entry.name for entry in catalog.entries("attention_backends")] == ["REFERENCE"]


def test_disabled_plugin_is_not_loaded(fake_plugins):
    module = fake_plugins.install("gone", "raise RuntimeError('must not be imported')")
    catalog = build_catalog(PluginsConfig(enabled=(), disabled=["gone"]))
    assert "gone" not in own_names(catalog)
    assert module not in sys.modules


def test_named_plugin_that_is_missing_says_where_it_looked_and_what_it_found(fake_plugins):
    fake_plugins.install("myorg_attn")
    with pytest.raises(PluginLoadError) as caught:
        build_catalog(PluginsConfig(enabled=("myorg_atn",)))
    text = str(caught.value)
    assert "'myorg_atn' was named but is not installed" in text
    assert "pegboard.plugins" in text
    assert str(fake_plugins.folder) in text
    assert "found" in text
    assert "did you mean myorg_attn?" in text
    assert "\n" not in text


def test_default_enabled_plugin_may_be_absent(fake_plugins):
    plugins = PluginsConfig(disabled=["server"])
    assert "server" not in own_names(build_catalog(plugins))


@pytest.mark.parametrize("how", ["enabled", "only", "named"])
def test_every_way_of_naming_demands_the_plugin(fake_plugins, how):
    plugins = {
        "enabled": PluginsConfig(enabled=("absent",)),
        "only": PluginsConfig(enabled=(), only=["absent"]),
        "named": PluginsConfig(enabled=()),
    }[how]
    with pytest.raises(PluginLoadError, match="absent"):
        build_catalog(plugins, named=["absent"] if how == "named" else [])


def test_installed_plugin_that_does_not_import_stops_the_start(fake_plugins):
    fake_plugins.install("broken", "import a_module_that_is_not_there")
    with pytest.raises(PluginLoadError) as caught:
        build_catalog(PluginsConfig(enabled=()), process="frontend")
    error = caught.value
    assert (error.plugin, error.distribution, error.version) == ("broken", "fake-broken", "1.0")
    assert "process frontend" in str(error)
    assert "No module named 'a_module_that_is_not_there'" in str(error)


def test_on_error_warn_leaves_it_out_and_reports_it(fake_plugins, caplog):
    fake_plugins.install("broken", "raise OSError('disk on fire')")
    fake_plugins.install("whole")
    catalog = build_catalog(PluginsConfig(enabled=(), on_error="warn"))
    assert "broken" not in own_names(catalog)
    assert "whole" in own_names(catalog)
    assert "disk on fire" in catalog.report()["failed"]["broken"]
    assert "disk on fire" in caplog.text


def test_on_error_warn_does_not_excuse_a_plugin_that_was_named(fake_plugins):
    fake_plugins.install("broken", "raise OSError('disk on fire')")
    with pytest.raises(PluginLoadError, match="disk on fire"):
        build_catalog(PluginsConfig(enabled=("broken",), on_error="warn"))


def test_module_that_exits_on_import_does_not_end_the_process(fake_plugins):
    fake_plugins.install("quitter", "raise SystemExit(3)")
    with pytest.raises(PluginLoadError, match="SystemExit"):
        build_catalog(fake_plugins.only("quitter"))


def test_stale_metadata_is_told_from_a_broken_import(fake_plugins):
    fake_plugins.declare("stale", "a_package_long_gone.plugin")
    with pytest.raises(PluginLoadError, match="gone although its metadata is there; reinstall"):
        build_catalog(fake_plugins.only("stale"))


def test_module_without_plugin_info_is_refused(fake_plugins):
    fake_plugins.install("anonymous", declare=False)
    with pytest.raises(PluginLoadError, match="holds no PLUGIN"):
        build_catalog(fake_plugins.only("anonymous"))


def test_entry_point_and_plugin_must_have_one_name(fake_plugins):
    module = fake_plugins.install("inner")
    fake_plugins.declare("outer", module)
    with pytest.raises(PluginLoadError, match="PLUGIN is named 'inner'"):
        build_catalog(fake_plugins.only("outer"))


def test_two_distributions_with_one_plugin_name_are_both_named(fake_plugins):
    fake_plugins.install("twin", distribution="first-dist")
    fake_plugins.install("twin", distribution="second-dist", version="2.0")
    with pytest.raises(PluginConflictError) as caught:
        build_catalog(PluginsConfig(enabled=()))
    assert "first-dist 1.0" in str(caught.value)
    assert "second-dist 2.0" in str(caught.value)


@pytest.mark.parametrize(
    ("api", "says"),
    [("1.99", "newer than the core's"), ("2.0", "needs a core of API 2"), ("0.9", "too old")],
)
def test_api_version_that_does_not_fit_is_refused(fake_plugins, api, says):
    fake_plugins.install("misfit", api=api)
    with pytest.raises(ApiVersionError, match=says) as caught:
        build_catalog(fake_plugins.only("misfit"))
    assert "fake-misfit 1.0" in str(caught.value)


FAULTY_HOOKS = {
    "unknown hook": (
        "@hookimpl\ndef atention_backends():\n    return []",
        "no hook 'atention_backends'; did you mean attention_backends",
    ),
    "wrong argument": (
        "@hookimpl\ndef executors(fleet):\n    return []",
        "executors passes no argument 'fleet'; it passes none",
    ),
    "wrong argument of an observer": (
        "@hookimpl\ndef on_fault(event):\n    pass",
        "on_fault passes no argument 'event'; it passes fault",
    ),
    "no list": (
        "@hookimpl\ndef executors():\n    return ExecutorSpec(name='x', target='a:b')",
        "executors returned a ExecutorSpec, not a list of ExecutorSpec",
    ),
    "wrong spec": (
        "@hookimpl\ndef executors():\n    return [FrontendSpec(name='x', target='a:b')]",
        "executors returned a FrontendSpec among its ExecutorSpecs",
    ),
    "raises": (
        "@hookimpl\ndef executors():\n    return [ExecutorSpec(name='x', target='no colon')]",
        "hook executors raised ValueError: target of 'x' is 'no colon'",
    ),
    "wrapper": (
        "@hookimpl(wrapper=True)\ndef executors():\n    return (yield)",
        "may not be wrapped",
    ),
}


@pytest.mark.parametrize("fault", FAULTY_HOOKS)
def test_faulty_hook_is_refused_with_its_plugin_named(fake_plugins, fault):
    source, says = FAULTY_HOOKS[fault]
    fake_plugins.install("faulty", source)
    with pytest.raises(SpecError) as caught:
        build_catalog(fake_plugins.only("faulty"))
    assert says in str(caught.value)
    assert "plugin 'faulty' (fake-faulty 1.0)" in str(caught.value)


def test_faulty_plugin_leaves_nothing_behind_under_warn(fake_plugins):
    first = executor("shared") + "\n@hookimpl\ndef frontends():\n    return [3]\n"
    fake_plugins.install("a_faulty", first)
    fake_plugins.install("b_whole", executor("shared"))
    catalog = build_catalog(PluginsConfig(enabled=(), on_error="warn"))
    owners = [e.plugin for e in catalog.entries("executors") if e.name == "shared"]
    assert owners == ["b_whole"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (executor("same"), executor("same")),
        (executor("same"), executor("other", "same")),
        (executor("one", "same"), executor("other", "same")),
    ],
)
def test_component_name_taken_twice_names_both_packages(fake_plugins, first, second):
    fake_plugins.install("alpha", first, version="1.1")
    fake_plugins.install("beta", second, version="2.2")
    with pytest.raises(PluginConflictError) as caught:
        build_catalog(fake_plugins.only("alpha", "beta"))
    text = str(caught.value)
    assert "executors 'same'" in text
    assert "'alpha' (fake-alpha 1.1" in text
    assert "'beta' (fake-beta 2.2" in text
    assert "--plugins=-beta" in text


def test_plugin_cannot_shadow_the_cores_own(fake_plugins):
    fake_plugins.install("shadow", executor("uni"))
    with pytest.raises(PluginConflictError, match="'builtin'"):
        build_catalog(fake_plugins.only("shadow"))


def test_one_name_may_serve_two_kinds(fake_plugins):
    source = executor("both") + (
        "\n@hookimpl\ndef frontends():\n    return [FrontendSpec(name='both', target='a:b')]\n"
    )
    fake_plugins.install("versatile", source)
    catalog = build_catalog(fake_plugins.only("versatile"))
    assert {e.kind for e in catalog.entries("executors") if e.name == "both"} == {"executors"}
    assert [e.name for e in catalog.entries("frontends")] == ["both"]


def test_order_is_builtin_then_declared_then_by_name(fake_plugins):
    fake_plugins.install("zeta")
    fake_plugins.install("alpha", info="after=('zeta', 'not_there')")
    fake_plugins.install("mid")
    catalog = build_catalog(fake_plugins.only("alpha", "mid", "zeta"))
    assert own_names(catalog) == ["builtin", "mid", "zeta", "alpha"]


def test_uninstalled_plugin_takes_its_place_by_name(fake_plugins):
    fake_plugins.install("mid")
    module = fake_plugins.module(
        "PLUGIN = PluginInfo(name='alpha', version='1', api='1.0', summary='')"
    )
    plugins = PluginsConfig(enabled=(f"{module}:PLUGIN",), only=["mid"])
    with pytest.raises(ConfigError, match=r"plugins\.only leaves out"):
        build_catalog(PluginsConfig(enabled=("mid",), only=[]))
    assert own_names(build_catalog(plugins)) == ["builtin", "alpha", "mid"]


def test_plugins_that_each_come_after_the_other_are_refused(fake_plugins):
    fake_plugins.install("hen", info="after=('egg',)")
    fake_plugins.install("egg", info="after=('hen',)")
    with pytest.raises(PluginConflictError, match="egg after hen, hen after egg"):
        build_catalog(fake_plugins.only("hen", "egg"))


def test_options_fill_the_plugins_own_struct(fake_plugins):
    fake_plugins.install("tuned", OPTIONS, info="config=__name__ + ':Options'")
    plugins = fake_plugins.only("tuned", options={"tuned": {"depth": "8k", "label": "12"}})
    config = build_catalog(plugins).plugin_config("tuned")
    assert (config.depth, config.label) == (8000, "12")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"depth": 0}, "plugins.tuned.depth is 0; at least 1 is needed"),
        ({"depht": 1}, "plugins.tuned.depht is not a known key; did you mean depth?"),
        ({"label": 3}, "plugins.tuned.label is 3; a string is needed"),
    ],
)
def test_wrong_option_names_key_value_and_need(fake_plugins, options, says):
    fake_plugins.install("tuned", OPTIONS, info="config=__name__ + ':Options'")
    with pytest.raises(ConfigError) as caught:
        build_catalog(fake_plugins.only("tuned", options={"tuned": options}))
    assert says in str(caught.value)
    assert "--plugin-config tuned." in str(caught.value)


def test_options_of_a_plugin_without_any_are_refused(fake_plugins):
    fake_plugins.install("plain")
    with pytest.raises(ConfigError, match=r"plugins\.plain\.x is set, but .* has no options"):
        build_catalog(fake_plugins.only("plain", options={"plain": {"x": 1}}))


def test_options_of_an_unknown_plugin_are_refused(fake_plugins):
    fake_plugins.install("tuned")
    with pytest.raises(ConfigError, match=r"\[plugins\.tunde\].*did you mean tuned"):
        build_catalog(PluginsConfig(enabled=(), options={"tunde": {"x": 1}}))


def test_options_of_a_removed_plugin_do_not_matter(fake_plugins):
    fake_plugins.install("tuned")
    plugins = PluginsConfig(enabled=(), disabled=["tuned"], options={"tuned": {"x": 1}})
    assert "tuned" not in own_names(build_catalog(plugins))


@pytest.mark.parametrize(
    ("plugins", "says"),
    [
        (PluginsConfig(disabled=["builtin"]), "cannot be removed"),
        (PluginsConfig(enabled=("a",), disabled=["a"]), "both name a"),
        (PluginsConfig(enabled=("a",), only=["b"]), "plugins.only leaves out"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(plugins, says):
    with pytest.raises(ConfigError, match=says):
        build_catalog(plugins)


def test_a_file_loads_an_uninstalled_plugin_and_its_components(fake_plugins, tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    module = fake_plugins.module("")
    path = folder / f"{module}.py"
    source = (fake_plugins.folder / f"{module}.py").read_text()
    (fake_plugins.folder / f"{module}.py").unlink()
    path.write_text(
        source
        + "PLUGIN = PluginInfo(name='loose', version='1', api='1.0', summary='')\n"
        + executor("loose_fleet").replace("{module}", module)
    )
    catalog = build_catalog(PluginsConfig(enabled=(str(path),), only=[str(path)]))
    assert catalog.is_enabled("loose")
    (entry,) = [e for e in catalog.entries("executors") if e.name == "loose_fleet"]
    assert catalog.create(entry, 7).args == (7,)
    sys.path.remove(str(folder))


def test_a_file_whose_module_name_is_taken_is_refused(tmp_path):
    path = tmp_path / "msgspec.py"
    path.write_text("")
    with pytest.raises(PluginLoadError, match="'msgspec' is taken"):
        build_catalog(PluginsConfig(enabled=(str(path),), only=[]))
    sys.path.remove(str(tmp_path))


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    path = tmp_path / "nowhere.py"
    with pytest.raises(PluginLoadError, match="does not exist"):
        build_catalog(PluginsConfig(enabled=(str(path),), only=[]))


@pytest.mark.parametrize("form", ["class", "instance", "info"])
def test_module_and_attribute_load_an_uninstalled_plugin(fake_plugins, form):
    source = """
class Loose:
    PLUGIN = PluginInfo(name="loose", version="1", api="1.0", summary="")
    @hookimpl
    def executors(self):
        return [ExecutorSpec(name="loose_fleet", target="{module}:Loose")]
loose = Loose()
PLUGIN = PluginInfo(name="loose", version="1", api="1.0", summary="")
@hookimpl
def executors():
    return [ExecutorSpec(name="loose_fleet", target="{module}:Loose")]
"""
    module = fake_plugins.module(source)
    target = f"{module}:{ {'class': 'Loose', 'instance': 'loose', 'info': 'PLUGIN'}[form] }"
    catalog = build_catalog(PluginsConfig(enabled=(target,), only=[]))
    assert own_names(catalog) == ["builtin", "loose"]
    assert any(e.name == "loose_fleet" for e in catalog.entries("executors"))


def test_installed_and_uninstalled_plugin_of_one_name_conflict(fake_plugins):
    fake_plugins.install("double")
    module = fake_plugins.module(
        "PLUGIN = PluginInfo(name='double', version='1', api='1.0', summary='')"
    )
    target = f"{module}:PLUGIN"
    with pytest.raises(PluginConflictError) as caught:
        build_catalog(PluginsConfig(enabled=(target,), only=["double"]))
    assert "fake-double 1.0" in str(caught.value)
    assert target in str(caught.value)
