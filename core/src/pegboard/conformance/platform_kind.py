"""Checks of platforms: a cheap probe, sane numbers, a device that opens."""

import subprocess
import sys

import torch

from pegboard.api.platforms import Detection, MemoryInfo, Platform
from pegboard.api.plugin import ComponentContext
from pegboard.conformance.attention_rig import torch_dtype
from pegboard.conformance.kit import NotApplicable, Subject, check, load_target

__all__: list[str] = []

_KIND = "platforms"


def _detect(subject: Subject) -> Detection:
    return load_target(subject.spec.detect)()


def _open(subject: Subject) -> Platform:
    found = _detect(subject)
    if not found.available:
        raise NotApplicable(f"not available here: {found.reason}")
    cls = subject.catalog.load(subject.entry)
    return cls(ComponentContext(plugin=subject.entry.plugin), subject.spec)


@check(_KIND)
def probe_imports_no_torch(subject: Subject) -> None:
    """The probe runs in the front end, which holds no torch."""
    module, _, name = subject.spec.detect.partition(":")
    code = (
        f"import sys, importlib; f = getattr(importlib.import_module({module!r}), {name!r}); "
        "f(); sys.exit('torch was imported' if 'torch' in sys.modules else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, (done.stderr.strip().splitlines() or ["the probe failed"])[-1]


@check(_KIND)
def probe_gives_a_reason(subject: Subject) -> None:
    """The probe says why, in one line, whatever it found."""
    found = _detect(subject)
    assert isinstance(found, Detection), f"detect returned {type(found).__name__}"
    assert found.reason.strip(), "no reason"
    assert "\n" not in found.reason, "the reason has several lines"
    if found.available:
        assert found.num_devices >= 1, "available, but without a device"


@check(_KIND)
def dtypes_are_real(subject: Subject) -> None:
    """Every dtype it supports is torch's, and at least one is there."""
    names = _open(subject).supported_dtypes()
    assert names, "no dtype"
    for name in names:
        torch_dtype(name)


@check(_KIND)
def device_opens_and_computes(subject: Subject) -> None:
    """The device is of the declared type, holds tensors and multiplies them rightly."""
    platform = _open(subject)
    threads = torch.get_num_threads()
    try:
        device = platform.open_device(0, 1)
        assert device.type == subject.spec.device_type, f"opened {device}"
        a = torch.randn(33, 17, generator=torch.Generator().manual_seed(subject.seed))
        product = (a.to(device) @ a.to(device).T).cpu()
        platform.synchronize()
        assert torch.allclose(product, a @ a.T, atol=1e-4), "a small product is wrong"
        assert platform.num_threads() >= 0
    finally:
        torch.set_num_threads(threads)


@check(_KIND)
def memory_adds_up(subject: Subject) -> None:
    """Totals, free and used bytes are plausible, and the KV default stays within them."""
    platform = _open(subject)
    platform.open_device(0, 1)
    memory = platform.memory_info()
    assert isinstance(memory, MemoryInfo)
    assert 0 < memory.free_bytes <= memory.total_bytes, memory
    assert 0 <= memory.used_bytes <= memory.total_bytes, memory
    kv = platform.default_kv_bytes(memory.free_bytes, 0.5, memory.free_bytes // 4)
    assert 0 <= kv <= memory.free_bytes, f"{kv} bytes for KV of {memory.free_bytes} free"
    none = platform.default_kv_bytes(memory.free_bytes, 0.5, memory.free_bytes)
    assert none >= 0, "a negative KV size"


@check(_KIND)
def graphs_are_honest(subject: Subject) -> None:
    """Where it says it captures graphs, a replay computes; where not, capture raises."""
    platform = _open(subject)
    device = platform.open_device(0, 1)
    x = torch.ones(4, device=device)
    if not platform.supports_graphs():
        try:
            platform.capture_graph(lambda: x.add_(1))
        except NotImplementedError:
            return
        raise AssertionError("supports_graphs is False, but capture_graph did not raise")
    replay = platform.capture_graph(lambda: x.add_(1))
    platform.synchronize()
    before = x.clone()
    replay()
    platform.synchronize()
    assert torch.equal(x, before + 1), "a replayed graph did not do its work again"
