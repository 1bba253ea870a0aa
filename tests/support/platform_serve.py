"""Starts `platform serve` as a user would, and finds its processes."""

import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

READY = re.compile(r"Ready on (\S+) after")


class ServeProcess:
    """A running `platform serve`: its address and what it printed."""

    def __init__(self, process):
        self.process = process
        self.lines = []
        self.url = ""
        self.ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line)
            if match := READY.search(line):
                self.url = match.group(1)
                self.ready.set()
        self.ready.set()

    @property
    def pid(self):
        return self.process.pid

    def children(self):
        found = []
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
        return found

    def wait(self, limit_s=30):
        status = self.process.wait(limit_s)
        self._reader.join(5)
        return status

    def output(self):
        return "".join(self.lines)


def is_alive(pid):
    """Whether a process runs (and is not just waiting to be reaped)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextmanager
def platform_serve(*flags, env=None, limit_s=90):
    """Yield a server that is ready; ends it, and all its children, at the end."""
    command = [sys.executable, "-m", "pegboard.cli.main", "serve", "--port", "0", *flags]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **(env or {})},
        start_new_session=True,
    )
    served = ServeProcess(process)
    try:
        assert served.ready.wait(limit_s), served.output()
        assert served.url, served.output()
        yield served
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)
        served._reader.join(5)
        process.stdout.close()
