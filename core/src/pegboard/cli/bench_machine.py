"""The machine under a benchmark: what it is, whether it is quiet, what it could do at best."""

import os
import platform as host
import statistics
import threading
import time
from pathlib import Path
from typing import Any

__all__ = ["describe_machine", "measure_ceilings"]

_QUIET_S = 0.5
_READ_BYTES = 512 * 1024 * 1024
_MATMUL = 2048
_REPEATS = 5


def describe_machine() -> dict[str, Any]:
    """Return the processor, its cores, and how busy others keep them."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
        "python": host.python_version(),
        "busy_before_percent": _busy_percent(),
    }


def _cpu_name() -> str:
    try:
        for text in Path("/proc/cpuinfo").read_text().splitlines():
            if text.startswith("model name"):
                return text.partition(":")[2].strip()
    except OSError:
        pass
    return host.processor() or host.machine()


def _cpu_ticks() -> tuple[int, int]:
    """Return (all, idle) ticks since boot, steal counted as busy."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    ticks = [int(field) for field in fields]
    return sum(ticks), ticks[3] + ticks[4]


def _busy_percent() -> float | None:
    """Return the share of all cores that was busy while we only waited."""
    try:
        all_before, idle_before = _cpu_ticks()
        threading.Event().wait(_QUIET_S)
        all_after, idle_after = _cpu_ticks()
    except (OSError, ValueError, IndexError):
        return None
    total = all_after - all_before
    return round(100 * (1 - (idle_after - idle_before) / total), 1) if total else None


def measure_ceilings() -> dict[str, float]:
    """Return the read bandwidth in GB/s and the bf16 product rate in GFLOP/s, best and median.

    They bound a decode step (bytes over bandwidth) and a prompt (FLOPs over rate).
    """
    import torch

    data = torch.ones(_READ_BYTES // 4)
    reads = [_READ_BYTES / _timed(data.sum) / 1e9 for _ in range(_REPEATS)]
    del data
    left = torch.randn(_MATMUL, _MATMUL).bfloat16()
    right = torch.randn(_MATMUL, _MATMUL).bfloat16()
    product = torch.empty_like(left)

    def multiply() -> None:
        torch.mm(left, right, out=product)

    multiply()
    products = [2 * _MATMUL**3 / _timed(multiply) / 1e9 for _ in range(_REPEATS)]
    return {
        "read GB/s, best": max(reads),
        "read GB/s, median": statistics.median(reads),
        "bf16 product GFLOP/s, best": max(products),
        "bf16 product GFLOP/s, median": statistics.median(products),
        "threads": float(torch.get_num_threads()),
    }


def _timed(work: Any) -> float:  # noqa: ANN401 -- any callable
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
