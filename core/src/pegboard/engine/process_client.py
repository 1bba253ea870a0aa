"""An engine core in a process of its own, over ZeroMQ sockets in a private folder.

The child is started with `subprocess`, so a user's script needs no `__main__` guard. It gets its
configuration on an inherited descriptor and ends when this process does. One thread owns the
child and the receiving socket: the kernel ends the child when the thread that made it ends.
"""

import contextlib
import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from pathlib import Path

import msgspec
import zmq

from pegboard.api import errors
from pegboard.api.errors import EngineDead, PegboardError
from pegboard.api.messages import EngineCoreOutputs
from pegboard.config.engine import EngineConfig
from pegboard.config.env import read_environment
from pegboard.engine.client import CoreClient, OnOutputs, OnProgress
from pegboard.engine.core_process import Bootstrap
from pegboard.engine.wire import (
    CoreFailure,
    CoreKind,
    CoreReady,
    WireError,
    Wish,
    decode_from_core,
    encode,
)

__all__ = ["ProcessClient"]

logger = logging.getLogger(__name__)

_MAX_SOCKET_PATH = 90
_FOLDER = "pegboard-engine-"
_SEND_TIMEOUT_MS = 2000
_KILL_WAIT_S = 5.0
#: What the child sent before its end may still be on its way.
_LAST_WORDS_MS = 50


class ProcessClient(CoreClient):
    """Spawns the child at once, so that it imports while the caller still resolves."""

    def __init__(self) -> None:
        """Make the folder and the sockets and start the child, which waits for `start`."""
        super().__init__()
        self._folder = _private_folder()
        self._finalizer = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._context = zmq.Context(io_threads=1)
        # Connected when the child, which binds it, is ready: from then on sending never waits.
        self._to_core = self._socket(zmq.PUSH)
        self._to_core.set(zmq.SNDTIMEO, _SEND_TIMEOUT_MS)
        self._send_lock = threading.Lock()
        self._from_core = self._socket(zmq.PULL)
        self._from_core.bind(self._address("out"))
        self._config_read, self._config_write = os.pipe()
        self._parent_read, self._parent_write = os.pipe()
        self._process: subprocess.Popen[bytes] | None = None
        self._spawned = threading.Event()
        self._answered = threading.Event()
        self._answer: CoreReady | CoreFailure | None = None
        self._on_outputs: OnOutputs | None = None
        self._on_progress: OnProgress | None = None
        self._stopping = False
        self._dead: str | None = None
        self._thread = threading.Thread(target=self._own_child, name="core-client", daemon=True)
        self._thread.start()
        self._spawned.wait()
        self._finalizer.detach()
        self._finalizer = weakref.finalize(self, _end, self._process, self._folder)

    @property
    def pid(self) -> int | None:
        """Process id of the child."""
        return self._process.pid if self._process else None

    def _socket(self, kind: int) -> "zmq.Socket[bytes]":
        socket = self._context.socket(kind)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.SNDHWM, 0)
        socket.set(zmq.RCVHWM, 0)
        return socket

    def _address(self, name: str) -> str:
        return f"ipc://{self._folder}/{name}"

    def start(
        self, config: EngineConfig, on_outputs: OnOutputs, on_progress: OnProgress
    ) -> CoreReady:
        """Give the child its configuration and wait until it is ready or has failed."""
        self._on_outputs = on_outputs
        self._on_progress = on_progress
        bootstrap = Bootstrap(
            config=config,
            folder=self._folder,
            input_address=self._address("in"),
            output_address=self._address("out"),
        )
        try:
            with os.fdopen(self._config_write, "wb") as stream:
                stream.write(msgspec.msgpack.encode(bootstrap))
        except BrokenPipeError:
            pass  # the child is dead, and says why or does not
        self._answered.wait()
        if isinstance(self._answer, CoreReady):
            with self._send_lock:
                self._to_core.connect(self._address("in"))
            return self._answer
        self.shutdown()
        if self._answer is None:
            raise EngineDead(self._dead or "the engine core ended during its start")
        raise _as_error(self._answer)

    def _send(self, wish: Wish, body: object) -> None:
        with self._send_lock:
            if self._dead is not None or self._stopping:
                raise EngineDead(self._dead or "the engine has been shut down")
            try:
                self._to_core.send_multipart(encode(wish, body))
            except zmq.Again as error:
                raise EngineDead("the engine core takes no messages") from error

    def _own_child(self) -> None:
        """Start the child, then carry what it sends until it ends. The client's thread."""
        try:
            self._process = self._spawn()
        finally:
            self._spawned.set()
        poller = zmq.Poller()
        poller.register(self._from_core, zmq.POLLIN)
        poller.register(self._life_read, zmq.POLLIN)
        alive = True
        while alive:
            events = dict(poller.poll())
            while self._from_core.poll(0):
                self._take(self._from_core.recv_multipart())
            alive = self._life_read not in events
        while self._from_core.poll(_LAST_WORDS_MS):
            self._take(self._from_core.recv_multipart())
        self._from_core.close()
        os.close(self._life_read)
        self._ended()

    def _spawn(self) -> "subprocess.Popen[bytes]":
        self._life_read, life_write = os.pipe()
        command = [
            sys.executable,
            "-P",  # not the working folder: what it holds is not ours to import
            "-m",
            "pegboard.engine.core_process",
            str(self._config_read),
            str(self._parent_read),
            str(os.getpid()),
            str(life_write),
        ]
        try:
            return subprocess.Popen(
                command,
                pass_fds=(self._config_read, self._parent_read, life_write),
                stdin=subprocess.DEVNULL,
                env=_child_environment(),
                start_new_session=True,  # Ctrl-C in the terminal is the front end's to handle
            )
        finally:
            for descriptor in (self._config_read, self._parent_read, life_write):
                os.close(descriptor)

    def _take(self, frames: list[bytes]) -> None:
        self.last_heard = time.monotonic()
        try:
            kind, body = decode_from_core(frames)
        except WireError as error:
            logger.warning("ignored a message of the engine core that is none: %s", error)
            return
        if kind is CoreKind.OUTPUTS:
            if body.engine_dead is not None:
                self._dead = body.engine_dead
            if self._on_outputs is not None:
                self._on_outputs(body)
        elif kind is CoreKind.PONG:
            self.turns = body.turns
        elif kind is CoreKind.PROGRESS:
            if self._on_progress is not None:
                self._on_progress(body)
        else:
            self._answer = body
            self._answered.set()

    def _ended(self) -> None:
        """The child has ended: say so once, unless it was asked to or said so itself."""
        assert self._process is not None
        status = self._process.wait()
        told = self._dead is not None
        if not told:
            self._dead = f"the engine core (pid {self._process.pid}) {_describe(status)}"
        self._answered.set()
        if not told and not self._stopping and self._on_outputs is not None:
            self._on_outputs(EngineCoreOutputs(engine_dead=self._dead))

    def shutdown(self, timeout_s: float = 10.0) -> None:
        """Say stop, wait, then end the child by force."""
        if self._stopping:
            return
        if isinstance(self._answer, CoreReady):
            with contextlib.suppress(EngineDead):
                self._send(Wish.STOP, None)
        else:
            timeout_s = 0.0  # it does not listen before it is ready, nor would a message leave
        self._stopping = True
        if self._process is not None:
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
            self._thread.join(_KILL_WAIT_S)
        self._finalizer()
        with self._send_lock:
            self._to_core.close()
        if not self._thread.is_alive():
            self._context.term()


def _end(process: "subprocess.Popen[bytes] | None", folder: str) -> None:
    """Leave nothing behind: also called when the interpreter ends."""
    if process is not None and process.poll() is None:
        process.kill()
        process.wait(_KILL_WAIT_S)
    shutil.rmtree(folder, ignore_errors=True)


def _private_folder() -> str:
    folder = tempfile.mkdtemp(prefix="pegboard-")
    if len(folder) > _MAX_SOCKET_PATH:  # a socket's path has little room
        Path(folder).rmdir()
        folder = tempfile.mkdtemp(prefix="pegboard-", dir="/tmp")
    assert stat.S_IMODE(Path(folder).stat().st_mode) == 0o700
    return folder


def _sweep(parent: Path) -> None:
    """Remove folders of processes that were killed before they could do it themselves."""
    for folder in parent.glob(f"{_FOLDER}*-*"):
        pid = folder.name.removeprefix(_FOLDER).partition("-")[0]
        if not pid.isdecimal():
            continue
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            shutil.rmtree(folder, ignore_errors=True)
        except (OSError, OverflowError):
            continue  # somebody else's


def _child_environment() -> dict[str, str]:
    """The parent's, with the parent's import path, so that the child finds the same packages."""
    inherited = dict(read_environment().inherited)
    inherited["PYTHONPATH"] = os.pathsep.join(p or str(Path.cwd()) for p in sys.path)
    return inherited


def _describe(status: int) -> str:
    if status < 0:
        return f"was ended by signal {-status}"
    return f"ended with status {status}; its log has the cause"


def _as_error(failure: CoreFailure) -> PegboardError:
    """Return the child's error as its own class, where that takes just a message."""
    known = getattr(errors, failure.error, EngineDead)
    return known(failure.message)
