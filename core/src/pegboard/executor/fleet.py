"""The worker processes of one host: started, watched and ended by a thread that outlives them.

The thread that starts a process must live on, since the kernel tells children of their parent's
death when the thread that made them ends.
"""

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import IO

import msgspec

from pegboard.config.engine import EngineConfig
from pegboard.worker.protocol import Launch

__all__ = ["Fleet"]

logger = logging.getLogger(__name__)


class Fleet:
    """Processes of ranks 0 to `world_size` - 1, and the private folder they meet in.

    Attributes:
        folder: readable by this user alone.
    """

    def __init__(
        self, config: EngineConfig, world_size: int, environment: Mapping[str, str]
    ) -> None:
        """Make the folder; `launch` starts the processes.

        Args:
            config: the engine's.
            world_size: number of processes.
            environment: of the processes.
        """
        self._config = config
        self._world_size = world_size
        self._environment = dict(environment)
        if sys.platform == "linux":
            # All ranks are on this host, whatever its name resolves to.
            self._environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self.folder = tempfile.mkdtemp(prefix="pegboard-")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lifeline: int | None = None

    def launch(self) -> None:
        """Start every process."""
        reader, self._lifeline = os.pipe()
        try:
            for rank in range(self._world_size):
                self._processes.append(self._start(rank, reader))
        finally:
            os.close(reader)

    def _start(self, rank: int, lifeline: int) -> "subprocess.Popen[bytes]":
        launch = Launch(
            config=self._config, rank=rank, world_size=self._world_size, folder=self.folder
        )
        with tempfile.TemporaryFile() as stream:
            _write(stream, msgspec.msgpack.encode(launch))
            arguments = [str(n) for n in (stream.fileno(), lifeline, os.getpid())]
            return subprocess.Popen(
                [sys.executable, "-m", "pegboard.worker.process", *arguments],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                pass_fds=(stream.fileno(), lifeline),
            )

    def dead(self) -> list[tuple[int, str]]:
        """Return (rank, what became of it) of every process that has ended."""
        found: list[tuple[int, str]] = []
        for rank, process in enumerate(self._processes):
            code = process.poll()
            if code is not None:
                found.append((rank, f"worker {rank} (pid {process.pid}) {_how_it_ended(code)}"))
        return found

    def pids(self) -> list[int]:
        """Return process ids in rank order."""
        return [process.pid for process in self._processes]

    def end(self, grace_s: float) -> None:
        """Wait for the processes, end those that stay, and remove the folder. Repeatable."""
        deadline = time.monotonic() + grace_s
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                logger.debug("worker pid=%d is killed", process.pid)
                process.kill()
                process.wait()
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        shutil.rmtree(self.folder, ignore_errors=True)


def _write(stream: IO[bytes], blob: bytes) -> None:
    stream.write(blob)
    stream.flush()
    stream.seek(0)


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
