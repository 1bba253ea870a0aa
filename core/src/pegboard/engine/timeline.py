"""Each step's phases as a Chrome trace (chrome://tracing, Perfetto), where a path was given."""

import json
import time
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

__all__ = ["StepTimeline"]


class StepTimeline:
    """Writes one complete event a phase; does nothing without a path. One thread."""

    def __init__(self, path: str | None = None) -> None:
        """Open the file, if there is one."""
        self._file: IO[str] | None = None
        self._nothing: AbstractContextManager[None] = nullcontext()
        if path is not None:
            self._file = Path(path).open("w", encoding="utf-8")
            self._file.write("[\n")

    def phase(self, name: str, step_id: int | None = None) -> AbstractContextManager[None]:
        """Return a context that times its block."""
        return self._nothing if self._file is None else self._timed(name, step_id)

    @contextmanager
    def _timed(self, name: str, step_id: int | None) -> Generator[None]:
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            end = time.perf_counter_ns()
            event = {
                "name": name,
                "ph": "X",
                "ts": start / 1000,
                "dur": (end - start) / 1000,
                "pid": 0,
                "tid": 0,
                "args": {} if step_id is None else {"step": step_id},
            }
            assert self._file is not None
            self._file.write(json.dumps(event) + ",\n")

    def close(self) -> None:
        """Complete the file. May be called twice."""
        if self._file is not None:
            self._file.write("{}]\n")
            self._file.close()
            self._file = None
