import msgspec
import pytest

from pegboard.api.attention import AttentionQuery
from pegboard.api.engine import ExecutorQuery
from pegboard.api.errors import PluginError, PluginLoadError, SelectionError
from pegboard.api.frontends import FrontendQuery
from pegboard.api.platforms import PlatformQuery
from pegboard.catalog import build_catalog

BACKENDS = """
@hookimpl
def attention_backends():
    return [
        AttentionBackendSpec(name="QUICK", target="{module}:Backend", priority=90,
                             dtypes=("bfloat16",), head_sizes=(128,), aliases=("FAST",)),
        AttentionBackendSpec(name="WIDE", target="{module}:Backend", priority=10,
                             dtypes=("bfloat16", "float32")),
        AttentionBackendSpec(name="PICKY", target="{module}:Backend", priority=99,
                             dtypes=("bfloat16", "float32"), supports="{module}:picky"),
        AttentionBackendSpec(name="TORN", target="{module}:Backend", priority=98,
                             dtypes=("bfloat16", "float32"), supports="{module}:torn"),
    ]

class Backend:
    def __init__(self, context, config):
        if config == "bad":
            raise ZeroDivisionError("by zero")
        self.context, self.config = context, config

def picky(query):
    return None if query.block_size == 48 else f"block size {query.block_size} is not 48"

def torn(query):
    raise RuntimeError("probe fell over")
"""
PLATFORMS = """
@hookimpl
def platforms():
    def spec(name, detect, **more):
        return PlatformSpec(name=name, target="a:b", detect="{module}:" + detect,
                            device_type="cpu", **more)
    return [spec("gpu", "no_gpu", priority=50), spec("board", "found", priority=10),
            spec("torn", "torn", priority=40), spec("odd", "odd", priority=30)]

calls = []
def no_gpu():
    return Detection(available=False, reason="no driver here")
def found():
    calls.append(1)
    return Detection(available=True, reason="a board", features=("triton",))
def torn():
    raise OSError("bus error")
def odd():
    return True
"""


def query(**values) -> AttentionQuery:
    fields = {
        "platform": "board",
        "dtype": "bfloat16",
        "kv_dtype": "bfloat16",
        "head_sizes": (64,),
        "block_size": 16,
    }
    return AttentionQuery(**(fields | values))


@pytest.fixture
def catalog(fake_plugins):
    fake_plugins.install("backends", BACKENDS)
    return build_catalog(fake_plugins.only("backends"))


def verdicts(selection) -> dict[str, tuple[bool, bool, str]]:
    return {v.name: (v.chosen, v.fits, v.reason) for v in selection.verdicts}


def test_highest_priority_that_fits_wins_and_every_loser_says_why(catalog):
    selection = catalog.select("attention_backends", query())
    assert selection.entry.name == "WIDE"
    told = verdicts(selection)
    assert told["PICKY"] == (False, False, "block size 16 is not 48")
    assert "head size 64 is not supported" in told["QUICK"][2]
    assert "probe fell over" in told["TORN"][2]
    assert told["WIDE"] == (True, True, "highest priority (10) that fits")
    assert told["REFERENCE"][1:] == (True, "fits; priority -100 is below WIDE's 10")
    assert [v.name for v in selection.verdicts] == ["PICKY", "TORN", "QUICK", "WIDE", "REFERENCE"]


def test_supports_is_asked_only_where_data_does_not_refuse(catalog):
    selection = catalog.select("attention_backends", query(dtype="float16", kv_dtype="float16"))
    assert selection.entry.name == "REFERENCE"
    assert "probe fell over" not in verdicts(selection)["TORN"][2]
    assert catalog.select("attention_backends", query(block_size=48)).entry.name == "PICKY"


def test_explicit_choice_wins_over_priority_by_name_and_by_alias(catalog):
    assert catalog.select("attention_backends", query(), name="REFERENCE").entry.name == "REFERENCE"
    wide = query(head_sizes=(128,))
    selection = catalog.select("attention_backends", wide, name="FAST")
    assert selection.entry.name == "QUICK"
    assert selection.reason == "asked for by name"
    assert verdicts(selection)["WIDE"] == (False, False, "FAST was asked for by name")


def test_reason_of_the_first_choice_is_kept_when_the_chosen_is_used_by_name(catalog):
    why = "the checkpoint's format"
    first = catalog.select("attention_backends", query(), name="REFERENCE", because=why)
    assert first.reason == why
    catalog.select("attention_backends", query(), name="REFERENCE")
    assert catalog.report()["chosen"]["attention_backends"]["reason"] == why


def test_explicit_choice_that_does_not_fit_is_an_error_with_its_reasons(catalog):
    with pytest.raises(SelectionError) as caught:
        catalog.select("attention_backends", query(dtype="float32"), name="QUICK")
    text = str(caught.value)
    assert text.startswith("attention backend 'QUICK' was asked for but does not fit: ")
    assert "dtype float32 is not of bfloat16" in text
    assert "head size 64 is not supported" in text
    assert caught.value.kind == "attention_backends"
    assert dict(caught.value.reasons)["QUICK"] in text


def test_explicit_choice_that_is_not_there_names_the_nearest(catalog):
    with pytest.raises(SelectionError, match=r"no attention backend 'QUIK'.*did you mean QUICK"):
        catalog.select("attention_backends", query(), name="QUIK")


def test_nobody_fits_lists_every_reason_on_one_line(catalog):
    with pytest.raises(SelectionError) as caught:
        catalog.select("attention_backends", query(dtype="int8", kv_dtype="int8"))
    text = str(caught.value)
    for name in ("QUICK", "WIDE", "PICKY", "TORN", "REFERENCE"):
        assert f"{name}: " in text
    assert "dtype=int8" in text
    assert "\n" not in text
    assert len(caught.value.reasons) == 5


def test_kind_without_candidates_says_so(catalog):
    with pytest.raises(SelectionError, match="no plugin offers any frontend"):
        catalog.select("frontends", FrontendQuery(name="http"))


def test_explain_tells_the_same_without_raising(catalog):
    told = catalog.explain("attention_backends", query(dtype="int8"))
    assert not any(v.chosen for v in told)
    assert len(told) == 5
    chosen = [v.name for v in catalog.explain("attention_backends", query()) if v.chosen]
    assert chosen == ["WIDE"]


def test_configured_order_beats_priority_and_skips_what_does_not_fit(catalog):
    selection = catalog.select("attention_backends", query(), order=["QUICK", "REFERENCE"])
    assert selection.entry.name == "REFERENCE"
    assert selection.reason == "first that fits in the configured order"
    assert "REFERENCE comes first in the configured order" in verdicts(selection)["WIDE"][2]


def test_equal_priority_goes_by_plugin_order_then_declaration(fake_plugins):
    source = """
@hookimpl
def executors():
    return [ExecutorSpec(name=PLUGIN.name + n, target="a:b", priority=70) for n in ("_2", "_1")]
"""
    fake_plugins.install("later", source)
    fake_plugins.install("early", source)
    catalog = build_catalog(fake_plugins.only("early", "later"))
    selection = catalog.select("executors", ExecutorQuery())
    assert selection.entry.name == "early_2"
    assert "same priority" in verdicts(selection)["early_1"][2]


def test_platform_is_chosen_by_its_probe_and_probed_once(fake_plugins):
    module = fake_plugins.install("boards", PLATFORMS)
    catalog = build_catalog(fake_plugins.only("boards"))
    selection = catalog.select("platforms", PlatformQuery())
    catalog.select("platforms", PlatformQuery())
    told = verdicts(selection)
    assert selection.entry.name == "board"
    assert told["gpu"][2] == "no driver here"
    assert "bus error" in told["torn"][2]
    assert "returned a bool" in told["odd"][2]
    assert catalog.detect(selection.entry).features == ("triton",)
    assert __import__(module).calls == [1]
    with pytest.raises(SelectionError, match=r"'gpu' was asked for.*no driver here"):
        catalog.select("platforms", PlatformQuery(), name="gpu")


def test_component_gets_its_plugins_context_and_arguments(catalog):
    (entry,) = [e for e in catalog.entries("attention_backends") if e.name == "WIDE"]
    backend = catalog.create(entry, "sizes", config="engine configuration")
    assert backend.config == "sizes"
    assert (backend.context.plugin, backend.context.config) == ("backends", "engine configuration")
    assert catalog.load(entry.spec) is type(backend)


def test_factory_that_raises_is_reported_with_plugin_and_cause(catalog):
    (entry,) = [e for e in catalog.entries("attention_backends") if e.name == "WIDE"]
    with pytest.raises(PluginError, match=r"'WIDE' of plugin 'backends'.*ZeroDivisionError"):
        catalog.create(entry, "bad")


@pytest.mark.parametrize(
    ("target", "cause"),
    [("{module}:Nothing", "AttributeError"), ("not_there_at_all:X", "ModuleNotFoundError")],
)
def test_component_that_does_not_load_names_plugin_process_and_cause(fake_plugins, target, cause):
    source = f"""
@hookimpl
def executors():
    return [ExecutorSpec(name="hollow", target="{target}", priority=99)]
"""
    fake_plugins.install("hollow", source)
    catalog = build_catalog(fake_plugins.only("hollow"), process="worker 2")
    entry = catalog.select("executors", ExecutorQuery()).entry
    with pytest.raises(PluginLoadError) as caught:
        catalog.load(entry)
    text = str(caught.value)
    assert "'hollow' of plugin 'hollow' (fake-hollow 1.0)" in text
    assert "process worker 2" in text
    assert cause in text


def test_what_acts_unselected_acts_only_if_enabled_by_name(fake_plugins):
    source = """
@hookimpl
def http_routes():
    return [HttpRouteSpec(name=PLUGIN.name, target="a:b", path="/" + PLUGIN.name)]
"""
    fake_plugins.install("open", source)
    fake_plugins.install("shut", source)
    plugins = msgspec.structs.replace(fake_plugins.only("open", "shut"), enabled=("open",))
    catalog = build_catalog(plugins)
    assert [e.name for e in catalog.acting("http_routes")] == ["open"]
    assert [e.name for e in catalog.entries("http_routes")] == ["open", "shut"]
    assert [e.name for e in catalog.acting("stat_loggers")] == ["log"]


def test_report_tells_chosen_unused_and_what_was_fallen_back_from(catalog):
    catalog.select("attention_backends", query())
    report = catalog.report()
    chosen = report["chosen"]["attention_backends"]
    assert (chosen["name"], chosen["plugin"]) == ("WIDE", "backends")
    assert {v["name"] for v in chosen["verdicts"]} >= {"QUICK", "REFERENCE"}
    assert "attention_backends/QUICK" in report["unused"]["backends"]
    assert "attention_backends/WIDE" not in report["unused"]["backends"]
    fallen = {line["wanted"]: line["reason"] for line in report["fell_back"]}
    assert fallen["PICKY"] == "block size 16 is not 48"
    assert "REFERENCE" not in fallen
    assert msgspec.json.encode(report)


def test_unknown_kind_is_a_key_error(catalog):
    with pytest.raises(KeyError):
        catalog.entries("attention_backend")
