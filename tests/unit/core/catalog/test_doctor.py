import pytest

from pegboard.catalog import build_catalog
from pegboard.catalog.doctor import examine
from pegboard.catalog.explain import explain_kind, explain_ops, merge_reports
from pegboard.config.engine import EngineOptions
from pegboard.config.plugins import PluginsConfig
from pegboard.config.runtime import KernelConfig, ParallelConfig

HOLLOW = """
@hookimpl
def executors():
    return [ExecutorSpec(name="hollow_fleet", target="not_there_at_all:X")]
"""
DEVICE = """
@hookimpl
def platforms():
    return [PlatformSpec(name="board", target="a:b", detect="{module}:detect", device_type="cpu")]

@hookimpl
def op_implementations():
    return [
        OpImplementationSpec(name="board.norm", op="rms_norm", target="a:b", platforms=("board",)),
        OpImplementationSpec(name="gpu.norm", op="rms_norm", target="a:b", platforms=("gpu",)),
    ]

def detect():
    return Detection(available=True, reason="a board")
"""


def findings(plugins: PluginsConfig, **options) -> dict[tuple[str, str], tuple[str, str]]:
    return {(f.plugin, f.check): (f.status, f.detail) for f in examine(plugins, **options)}


@pytest.fixture
def child_path(fake_plugins, monkeypatch):
    """Let children of this process find the fake plugins too."""
    monkeypatch.setenv("PYTHONPATH", fake_plugins.environment["PYTHONPATH"])
    return fake_plugins


def test_each_plugin_is_examined_although_another_is_broken(child_path):
    child_path.install("a_broken", "raise OSError('on fire')")
    child_path.install("b_whole", DEVICE)
    found = findings(child_path.only("a_broken", "b_whole"))
    assert found["a_broken", "loads"][0] == "fail"
    assert "on fire" in found["a_broken", "loads"][1]
    assert found["b_whole", "loads"] == ("ok", "API 1.0, 3 components, 0 observers")
    assert found["b_whole", "device"] == ("ok", "board: a board")
    assert found["b_whole", "loads in a child"][0] == "ok"
    assert found["-", "all together"][0] == "fail"


def test_implementation_that_does_not_import_is_found_when_looking_deep(child_path):
    child_path.install("hollow", HOLLOW)
    plugins = child_path.only("hollow")
    assert findings(plugins)["hollow", "loads in a child"][0] == "ok"
    check = ("hollow", "loads in a child, with all implementations")
    status, detail = findings(plugins, deep=True)[check]
    assert status == "fail"
    assert "not_there_at_all" in detail


def test_missing_requirement_and_stale_version_are_found(child_path):
    child_path.install("old", info="")
    folder = next(child_path.folder.glob("fake_old-*.dist-info"))
    metadata = folder / "METADATA"
    text = metadata.read_text().replace("Version: 1.0", "Version: 1.5")
    metadata.write_text(text + "Requires-Dist: a-package-nobody-has>=2\n")
    found = findings(child_path.only("old"))
    assert "PLUGIN says 1.0, fake-old is 1.5" in found["old", "version"][1]
    assert found["old", "requirements"] == (
        "fail",
        "requires a-package-nobody-has>=2, which is not installed",
    )


def test_two_distributions_with_one_name_end_the_examination(child_path):
    child_path.install("twin", distribution="first-dist")
    child_path.install("twin", distribution="second-dist")
    assert findings(PluginsConfig())["-", "discovery"][0] == "fail"


def test_ops_are_explained_with_the_reference_last(fake_plugins):
    fake_plugins.install("device", DEVICE)
    catalog = build_catalog(fake_plugins.only("device"))
    told = {e.question: e for e in explain_ops(catalog, EngineOptions())}
    norm = {v.name: (v.chosen, v.reason) for v in told["rms_norm"].verdicts}
    assert norm["board.norm"][0]
    assert norm["gpu.norm"] == (False, "runs on gpu, not board")
    assert norm["reference"] == (False, "fits; the plain reference comes last")
    alone = {v.name: v.chosen for v in told["silu_and_mul"].verdicts}
    assert alone == {"reference": True}


def test_configured_order_shows_in_the_explanation_of_an_op(fake_plugins):
    fake_plugins.install("device", DEVICE)
    catalog = build_catalog(fake_plugins.only("device"))
    options = EngineOptions(ops=KernelConfig(priority={"rms_norm": ["reference", "board.norm"]}))
    (told,) = [e for e in explain_ops(catalog, options) if e.question == "rms_norm"]
    assert [v.name for v in told.verdicts if v.chosen] == ["reference"]


def test_fleet_size_decides_the_executor():
    catalog = build_catalog(PluginsConfig(enabled=(), only=[]))
    options = EngineOptions(parallel=ParallelConfig(tensor_parallel_size=2))
    told = {v.name: v.reason for v in explain_kind(catalog, "executors", options).verdicts}
    assert told["uni"] == "runs at most 1 worker(s), not 2"


def test_merged_reports_call_unused_only_what_no_process_used():
    frontend = build_catalog(PluginsConfig(enabled=(), only=[]))
    worker = build_catalog(PluginsConfig(enabled=(), only=[]), process="worker 0")
    (fcfs, _) = frontend.entries("scheduler_policies")
    frontend.load(frontend.entries("cli_commands")[1])
    worker.load(worker.entries("kv_group_types")[0])
    merged = merge_reports([frontend.report(), worker.report()])
    assert "cli_commands/plugins" not in merged["unused"]["builtin"]
    assert "kv_group_types/full" not in merged["unused"]["builtin"]
    assert f"scheduler_policies/{fcfs.name}" in merged["unused"]["builtin"]
    assert set(merged["hook_times"]) == {"frontend", "worker 0"}
