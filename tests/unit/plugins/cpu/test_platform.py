"""The CPU platform: what it finds, what it says without kernels, and its threads."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pegboard.api.attention import AttentionQuery
from pegboard.api.errors import ConfigError
from pegboard.api.ops import OpQuery
from pegboard.api.plugin import ComponentContext
from pegboard_cpu import cores, cpu_platform, detection, plugin
from pegboard_cpu.config import CpuConfig
from pegboard_cpu.cpu_platform import CpuPlatform
from pegboard_kernels import KernelsUnavailableError, load

SPEC = plugin.platforms()[0]


def _platform(**options: object) -> CpuPlatform:
    context = ComponentContext(plugin="cpu", plugin_config=CpuConfig(**options))
    return CpuPlatform(context, SPEC)


@pytest.fixture(autouse=True)
def _restore_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    try:
        library = load()
    except KernelsUnavailableError:
        library = None
    before = (library.isa, library.num_threads) if library else None
    yield
    torch.set_num_threads(threads)
    if library and before:
        library.set_isa(before[0])
        library.set_num_threads(before[1])


def _no_library() -> None:
    raise KernelsUnavailableError("the kernel library is not installed; install a compiler")


def test_detection_names_the_kernels_instruction_set() -> None:
    found = detection.detect()
    assert found.available
    assert found.device_name
    assert found.features == ("kernels", load().isa.name.lower())
    assert found.features[1] in found.reason


def test_without_the_library_the_platform_runs_and_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(detection, "load", _no_library)
    monkeypatch.setattr(cpu_platform, "load", _no_library)
    found = detection.detect()
    assert found.available
    assert found.features == ()
    assert "not installed; install a compiler" in found.reason
    with caplog.at_level(logging.WARNING):
        assert _platform(threads=2).open_device(0, 1) == torch.device("cpu")
    assert len(caplog.records) == 1
    assert "references serve instead" in caplog.text


def test_without_kernels_nothing_of_the_plugin_fits_and_the_reason_says_so() -> None:
    attention = AttentionQuery(
        platform="cpu", dtype="bfloat16", kv_dtype="bfloat16", head_sizes=(64,), block_size=32
    )
    for spec in plugin.attention_backends():
        assert spec.reasons_against(attention) == ["platform cpu has no kernels"]
    for spec in plugin.op_implementations():
        query = OpQuery(op=spec.op, platform="cpu", dtype="float32", kv_layout="cpu_paged")
        assert spec.reasons_against(query) == ["platform cpu has no kernels"]


def test_kernels_fit_where_the_platform_has_them() -> None:
    query = AttentionQuery(
        platform="cpu",
        platform_features=("kernels",),
        dtype="float32",
        kv_dtype="float32",
        head_sizes=(80, 256),
        block_size=16,
        features=("sliding_window", "soft_cap"),
    )
    (spec,) = plugin.attention_backends()
    assert spec.reasons_against(query) == []


def test_the_fused_write_needs_the_backends_own_layout() -> None:
    (spec,) = [s for s in plugin.op_implementations() if s.op == "rope_and_write_kv"]
    query = OpQuery(
        op=spec.op,
        platform="cpu",
        platform_features=("kernels",),
        dtype="bfloat16",
        kv_layout="reference",
    )
    assert "reference" in spec.reasons_against(query)[0]


def test_ranks_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_platform, "usable_cores", lambda: 8)
    for ranks, threads in ((1, 8), (3, 2), (4, 2), (16, 1)):
        platform = _platform()
        platform.open_device(0, ranks)
        assert platform.num_threads() == threads == load().num_threads
    assert torch.get_num_threads() == 1


def test_options_are_followed() -> None:
    platform = _platform(threads=3, isa="portable", spin_us=0)
    platform.open_device(0, 1)
    assert platform.num_threads() == load().num_threads == 3
    assert load().isa.name == "PORTABLE"


def test_instruction_set_the_machine_lacks_stops_the_start() -> None:
    names = {isa.name.lower() for isa in load().available_isas()}
    if "amx_bf16" in names:
        pytest.skip("this machine has every instruction set")
    with pytest.raises(ConfigError, match=r"plugins\.cpu: amx_bf16 cannot run"):
        _platform(isa="amx_bf16").open_device(0, 1)


def test_default_kv_cache_is_bounded() -> None:
    gib = 1 << 30
    platform = _platform(max_kv_gib=2)
    assert platform.default_kv_bytes(100 * gib, 0.9, 10 * gib) == 2 * gib
    assert platform.default_kv_bytes(4 * gib, 0.5, gib) == gib
    assert platform.default_kv_bytes(gib, 0.5, gib) == 0


def test_memory_is_within_the_control_group(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "memory.max").write_text("2000000\n")
    (tmp_path / "memory.current").write_text("500000\n")
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    monkeypatch.setattr(cores, "_CGROUP", tmp_path)
    assert cores.memory_limits() == (2_000_000, 1_500_000)
    assert cores.usable_cores() <= 2
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    total, available = cores.memory_limits()
    assert total >= available > 2_000_000


def test_entry_module_and_probe_import_no_torch() -> None:
    code = (
        "import sys, pegboard_cpu.plugin as p, pegboard_cpu.detection as d;"
        "p.platforms(); p.attention_backends(); p.op_implementations(); d.detect();"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
