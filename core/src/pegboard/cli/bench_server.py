"""Starts a server for a benchmark, waits for it, and ends all of its processes."""

import asyncio
import os
import shlex
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from pegboard.api.errors import ConfigError
from pegboard.cli.bench_client import Target, first_model

__all__ = ["ServerProcess"]

_POLL_S = 0.05
_PATIENCE = ((signal.SIGINT, 15.0), (signal.SIGKILL, 10.0))


class ServerProcess:
    """A server command in a process group of its own; a context manager that ends it.

    Attributes:
        started: `time.perf_counter` before it was started.
    """

    def __init__(self, command: str) -> None:
        """Split the command as a shell would.

        Raises:
            ConfigError: it is empty, or its quotes are open.
        """
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise ConfigError(f"--command cannot be read: {error}") from error
        if not self._words:
            raise ConfigError("--command is empty; write the server's command line")
        self._process: subprocess.Popen[bytes] | None = None
        self._log = Path(tempfile.mkdtemp(prefix="pegboard-bench-")) / "server.log"
        self.started = 0.0

    @property
    def pid(self) -> int:
        """Of the command itself."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        """Start it."""
        with self._log.open("wb") as log:
            self.started = time.perf_counter()
            try:
                self._process = subprocess.Popen(
                    self._words, stdout=log, stderr=log, start_new_session=True
                )
            except OSError as error:
                raise ConfigError(f"--command cannot be started: {error}") from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End its whole process group, however it takes the signal."""
        process = self._process
        if process is None:
            return
        for number, patience_s in _PATIENCE:
            try:
                os.killpg(process.pid, number)
                process.wait(patience_s)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue

    async def wait_until_listed(self, target: Target) -> float:
        """Wait for the model list; return the seconds since the start.

        Raises:
            ConfigError: the command ended first.
        """
        while True:
            self.check_alive()
            try:
                async with asyncio.timeout(5):
                    target.model = target.model or await first_model(target)
                return time.perf_counter() - self.started
            except (OSError, RuntimeError, ValueError, KeyError, IndexError, EOFError):
                await asyncio.sleep(_POLL_S)

    def check_alive(self) -> None:
        """Raise if the command has ended.

        Raises:
            ConfigError: with the last line of its output.
        """
        assert self._process is not None
        if (status := self._process.poll()) is not None:
            lines = self._log.read_text(errors="replace").strip().splitlines() or [""]
            raise ConfigError(f"the server ended with {status}: {lines[-1][:300]} ({self._log})")
