"""The memory of a process and all its descendants, sampled while it works."""

import threading
from pathlib import Path

__all__ = ["MemorySampler"]

_PROC = Path("/proc")


class MemorySampler(threading.Thread):
    """Samples the sums of RSS and of PSS (which counts a shared page once) over a process tree.

    PSS walks page tables, so it is read at a slow pace, and once more at the end.
    """

    def __init__(self, pid: int, interval_s: float = 1.0) -> None:
        """Watch `pid` and its children; `start` begins."""
        super().__init__(daemon=True, name="memory")
        self._pid = pid
        self._interval_s = interval_s
        self._done = threading.Event()
        self._peak_rss_kib = 0
        self._peak_pss_kib = 0

    def run(self) -> None:
        """Sample until `finish`."""
        while not self._done.wait(self._interval_s):
            self._sample()

    def finish(self) -> dict[str, float]:
        """Sample once more and return the peaks in MiB. While the process still runs."""
        self._done.set()
        if self.is_alive():
            self.join()
        self._sample()
        return {
            "peak_rss_mib": round(self._peak_rss_kib / 1024, 1),
            "peak_pss_mib": round(self._peak_pss_kib / 1024, 1),
        }

    def _sample(self) -> None:
        pids = self._tree()
        rss = sum(_kib(pid, "status", "VmRSS:") for pid in pids)
        pss = sum(_kib(pid, "smaps_rollup", "Pss:") for pid in pids)
        self._peak_rss_kib = max(self._peak_rss_kib, rss)
        self._peak_pss_kib = max(self._peak_pss_kib, pss)

    def _tree(self) -> list[int]:
        seen: list[int] = []
        left = [self._pid]
        while left:
            pid = left.pop()
            seen.append(pid)
            try:
                for thread in (_PROC / str(pid) / "task").iterdir():
                    left += map(int, (thread / "children").read_text().split())
            except OSError:
                continue  # it ended meanwhile
        return seen


def _kib(pid: int, name: str, key: str) -> int:
    try:
        text = (_PROC / str(pid) / name).read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(key))
