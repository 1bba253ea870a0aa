"""Spans of the step loop as a Chrome trace (chrome://tracing, Perfetto); off unless asked for.

Each process writes a file of its own beside the path that was given: out.json becomes
out.engine_core.json. Times are of the monotonic clock, so that the files of one host line up.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from pegboard.api.errors import ConfigError

__all__ = ["Timeline", "open_timeline"]

#: Bytes kept before they are written to the file.
_BUFFER_BYTES = 1 << 16


class Timeline:
    """Writes complete ("X") events. Thread-safe; does nothing at all when `path` is None."""

    def __init__(self, path: Path | None, process: str) -> None:
        """Open the file.

        Raises:
            ConfigError: it cannot be written.
        """
        self.enabled = path is not None
        self._process = process
        self._lock = threading.Lock()
        self._buffer = bytearray()
        self._encoder = msgspec.json.Encoder()
        self._file = None
        if path is None:
            return
        try:
            self._file = path.open("wb")
        except OSError as error:
            raise ConfigError(
                f"timeline {path} cannot be written: {error.strerror or error} (--timeline-path)"
            ) from error
        name = {"name": "process_name", "ph": "M", "pid": os.getpid(), "args": {"name": process}}
        self._buffer += b"[\n" + self._encoder.encode(name)

    @contextmanager
    def span(self, name: str, **args: Any) -> Iterator[None]:  # noqa: ANN401 -- JSON values
        """Record what runs inside, with JSON values that describe it."""
        if not self.enabled:
            yield
            return
        started = time.perf_counter_ns()
        try:
            yield
        finally:
            self.record(name, started, time.perf_counter_ns(), args)

    def record(self, name: str, begin_ns: int, end_ns: int, args: dict[str, Any]) -> None:
        """Record a span that was timed elsewhere, on the clock of `time.perf_counter_ns`."""
        event = {
            "name": name,
            "ph": "X",
            "ts": begin_ns / 1000,
            "dur": (end_ns - begin_ns) / 1000,
            "pid": os.getpid(),
            "tid": threading.get_native_id(),
        }
        if args:
            event["args"] = args
        self._write(self._encoder.encode(event))

    def close(self) -> None:
        """Write what is left and close the file. May be called twice."""
        with self._lock:
            if self._file is None:
                return
            self._buffer += b"\n]\n"
            self._file.write(self._buffer)
            self._file.close()
            self._file = None
            self.enabled = False

    def _write(self, event: bytes) -> None:
        with self._lock:
            if self._file is None:
                return
            self._buffer += b",\n" + event
            if len(self._buffer) >= _BUFFER_BYTES:
                self._file.write(self._buffer)
                self._file.flush()
                self._buffer.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def open_timeline(path: str | None, process: str) -> Timeline:
    """Return a process's timeline: out.json becomes out.<process>.json; None records nothing.

    Raises:
        ConfigError: the file cannot be written.
    """
    if path is None:
        return Timeline(None, process)
    given = Path(path)
    word = process.replace(" ", "_")
    return Timeline(given.with_name(f"{given.stem}.{word}{given.suffix or '.json'}"), process)
