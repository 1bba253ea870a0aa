"""Runs `platform serve` as a user would: a process of its own, on a free port."""

import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def platform_serve(
    model: Path | None,
    *options: str,
    env: Mapping[str, str] | None = None,
    ready_s: float = 100.0,
) -> Iterator[str]:
    """Start a server, wait until it is ready, yield its address; stop it at the end.

    Raises:
        AssertionError: it did not become ready, or did not stop; with what it printed.
    """
    port = free_port()
    command = [sys.executable, "-m", "pegboard.cli.main", "serve"]
    command += [str(model)] if model is not None else []
    command += [f"--port={port}", *options]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=env)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(process, url, ready_s, log)
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                raise AssertionError("the server did not stop on SIGTERM") from None


def _wait_until_ready(
    process: "subprocess.Popen[bytes]", url: str, ready_s: float, log: "object"
) -> None:
    for _ in range(int(ready_s / 0.1)):
        if process.poll() is None:
            try:
                if httpx.get(f"{url}/health", timeout=2).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            try:
                process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
        log.seek(0)  # type: ignore[attr-defined]
        raise AssertionError(f"the server ended with {process.returncode}: {log.read()}")  # type: ignore[attr-defined]
    log.seek(0)  # type: ignore[attr-defined]
    raise AssertionError(f"not ready after {ready_s} s: {log.read()}")  # type: ignore[attr-defined]
