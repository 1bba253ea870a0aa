"""Cores and memory this process may use, as the kernel and its control group say."""

import math
import os
from pathlib import Path

__all__ = ["memory_limits", "resident_bytes", "usable_cores"]

_CGROUP = Path("/sys/fs/cgroup")
_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def usable_cores() -> int:
    """Return physical cores this process may run on, at most its control group's share."""
    if hasattr(os, "sched_getaffinity"):
        cpus = os.sched_getaffinity(0)
    else:
        cpus = set(range(os.cpu_count() or 1))
    siblings = {_read(Path(_TOPOLOGY.format(cpu))) or str(cpu) for cpu in cpus}
    return max(1, min(len(siblings), _quota()))


def _quota() -> int:
    """Return the control group's CPU share in whole cores; many where there is no limit."""
    fields = _read(_CGROUP / "cpu.max").split()
    if len(fields) != 2 or fields[0] == "max":
        return 1 << 30
    return max(1, math.ceil(int(fields[0]) / int(fields[1])))


def memory_limits() -> tuple[int, int]:
    """Return (total, available) bytes of memory, within the control group's limit."""
    info: dict[str, int] = {}
    for line in _read(Path("/proc/meminfo")).splitlines():
        key, _, value = line.partition(":")
        if value.split():
            info[key] = int(value.split()[0]) * 1024
    total = info.get("MemTotal", 0) or _fallback_total()
    available = info.get("MemAvailable", total)
    limit = _read(_CGROUP / "memory.max")
    if limit.isdigit():
        used = _read(_CGROUP / "memory.current")
        total = min(total, int(limit))
        available = min(available, max(0, int(limit) - int(used or 0)))
    return total, available


def resident_bytes() -> int:
    """Return this process's resident memory; 0 where it cannot be read."""
    fields = _read(Path("/proc/self/statm")).split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0


def _fallback_total() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
