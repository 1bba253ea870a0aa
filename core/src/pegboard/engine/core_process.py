"""The engine core's process: `python -m pegboard.engine.core_process …`.

Started by `pegboard.engine.process_client`, which passes the numbers of three inherited
descriptors: one to read a `Bootstrap` from, one whose end-of-file means that the parent is gone,
and one that this process only holds open, whose end-of-file tells the parent the reverse.
"""

import ctypes
import logging
import os
import queue
import shutil
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import zmq

from pegboard.api.errors import PegboardError
from pegboard.api.messages import EngineCoreOutput, EngineCoreOutputs
from pegboard.config.engine import EngineConfig
from pegboard.engine.wire import (
    CoreFailure,
    CoreKind,
    Pong,
    Progress,
    WireError,
    Wish,
    decode_to_core,
    encode,
)

__all__ = ["Bootstrap", "main"]

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_LINGER_MS = 2000


class Bootstrap(msgspec.Struct, frozen=True, kw_only=True):
    """All that the process is told.

    Attributes:
        config: what to run.
        folder: private folder with the two sockets; removed if the parent dies.
        input_address: of the socket that this process binds before it is ready.
        output_address: of the socket that the parent has bound.
    """

    config: EngineConfig
    folder: str
    input_address: str
    output_address: str


def main(argv: list[str]) -> int:
    """Run an engine core until it is told to stop, or its parent dies."""
    bootstrap_fd, parent_fd, parent_pid, life_fd = (int(a) for a in argv)
    os.set_inheritable(life_fd, False)  # closed by this process's end alone: the parent's sign
    _ignore_signals()
    folder: list[str] = []
    _die_with_parent(parent_fd, parent_pid, folder)
    _import_worker()
    with os.fdopen(bootstrap_fd, "rb") as stream:
        blob = stream.read()
    if not blob:  # the parent gave up before it had a configuration
        return 0
    bootstrap = msgspec.msgpack.decode(blob, type=Bootstrap)
    folder.append(bootstrap.folder)
    return _Process(bootstrap).run()


def _ignore_signals() -> None:
    """Leave SIGTERM and SIGINT to the front end, which drains and then says stop.

    Handlers rather than SIG_IGN, which executed children would inherit.
    """

    def nothing(signum: int, frame: FrameType | None) -> None:
        del signum, frame

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, nothing)


def _die_with_parent(parent_fd: int, parent_pid: int, folder: list[str]) -> None:
    """End this process when its parent ends, however that happens."""
    os.set_inheritable(parent_fd, False)
    if sys.platform == "linux":
        # The kernel's word, for when this process is too stuck to run the thread below.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:
            os._exit(1)

    def watch() -> None:
        os.read(parent_fd, 1)  # nobody writes: it returns at end-of-file
        for path in folder:
            shutil.rmtree(path, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def _import_worker() -> None:
    """Import what takes longest while the parent still resolves the configuration.

    A failure here is not reported: the start will meet it again, with its context.
    """
    try:
        import pegboard.worker.worker  # noqa: F401 -- for its side effect: it is loaded
    except Exception:
        logger.debug("the worker does not import yet", exc_info=True)


class _Process:
    """Sockets, logging and threads around one `EngineCore`."""

    def __init__(self, bootstrap: Bootstrap) -> None:
        self._config = bootstrap.config
        self._context = zmq.Context(io_threads=1)
        self._output = self._connect(zmq.PUSH, bootstrap.output_address)
        self._input_address = bootstrap.input_address
        self._output_address = bootstrap.output_address
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._malformed = 0

    def _connect(self, kind: int, address: str) -> "zmq.Socket[bytes]":
        socket = self._socket(kind)
        socket.connect(address)
        return socket

    def _socket(self, kind: int) -> "zmq.Socket[bytes]":
        socket = self._context.socket(kind)
        socket.set(zmq.LINGER, _LINGER_MS)
        socket.set(zmq.SNDHWM, 0)
        socket.set(zmq.RCVHWM, 0)
        return socket

    def run(self) -> int:
        """Start, serve, and say why if something fails."""
        try:
            started = self._start()
        except Exception as error:
            self._report_failure(error)
            self._close()
            return 1
        source = self._socket(zmq.PULL)
        source.bind(self._input_address)
        threading.Thread(
            target=self._receive, args=(started.core, source), name="core-receive", daemon=True
        ).start()
        self._output.send_multipart(encode(CoreKind.READY, started.ready))
        try:
            started.core.run()
        except PegboardError as error:
            logger.error("the engine core stops: %s", error)
            return 1
        finally:
            started.executor.shutdown()
            self._close()
        return 0

    def _start(self) -> Any:  # noqa: ANN401 -- a StartedCore, imported late
        from pegboard.catalog.build import rebuild_catalog
        from pegboard.engine.core_start import Phases, start_core
        from pegboard.observability.logging import configure_logging

        configure_logging(
            self._config.observability, process="engine_core", packages=self._packages()
        )
        phases = Phases(self._report_progress)
        with phases.phase("load plugins"):
            catalog = rebuild_catalog(self._config.plugins, process="engine_core")
        return start_core(self._config, catalog, inbox=self._inbox, send=self._send, phases=phases)

    def _packages(self) -> set[str]:
        return {plugin.target.partition(".")[0] for plugin in self._config.plugins}

    def _send(self, client: int, outputs: EngineCoreOutputs) -> None:
        del client  # one front end a process
        self._output.send_multipart(encode(CoreKind.OUTPUTS, outputs))

    def _report_progress(self, progress: Progress) -> None:
        self._output.send_multipart(encode(CoreKind.PROGRESS, progress))

    def _report_failure(self, error: Exception) -> None:
        text = " ".join(str(error).split())
        expected = isinstance(error, PegboardError)
        if not expected:
            logger.error("the engine core could not start", exc_info=error)
            text = f"{type(error).__name__}: {text}"
        self._output.send_multipart(
            encode(
                CoreKind.FAILED,
                CoreFailure(error=type(error).__name__ if expected else "EngineDead", message=text),
            )
        )

    def _receive(self, core: Any, source: "zmq.Socket[bytes]") -> None:  # noqa: ANN401 -- an EngineCore, imported late
        """Take messages off the socket; pings are answered here, however long a step takes."""
        answer = self._connect(zmq.PUSH, self._output_address)
        try:
            while self._receive_one(core, source, answer):
                pass
        except zmq.ContextTerminated:
            logger.debug("the engine core has ended; no more messages are taken")
        finally:
            source.close()
            answer.close()

    def _receive_one(
        self,
        core: Any,  # noqa: ANN401 -- an EngineCore, imported late
        source: "zmq.Socket[bytes]",
        answer: "zmq.Socket[bytes]",
    ) -> bool:
        """Take one message; return whether more may follow."""
        frames = source.recv_multipart()
        try:
            wish, body = decode_to_core(frames)
        except WireError as error:
            self._malformed += 1
            logger.warning("ignored message %d that is none: %s", self._malformed, error)
            if error.request_id is not None:  # its client waits for an end
                failed = EngineCoreOutput(
                    request_id=error.request_id, finish_reason="error", error=str(error)
                )
                answer.send_multipart(encode(CoreKind.OUTPUTS, EngineCoreOutputs(outputs=[failed])))
            return True
        if wish is Wish.PING:
            pong = Pong(sent=body.sent, turns=core.turns, busy=core.busy)
            answer.send_multipart(encode(CoreKind.PONG, pong))
            return True
        self._inbox.put((wish, body))
        return wish is not Wish.STOP

    def _close(self) -> None:
        """Send what is still queued; the receiving thread, if it waits, is told to end."""
        self._output.close()
        self._context.term()


if __name__ == "__main__":
    # The module as imported by name, so that its classes exist once.
    from pegboard.engine.core_process import main as run_core

    status = run_core(sys.argv[1:])
    logging.shutdown()
    sys.stderr.flush()
    # Threads of libraries have nothing left to say, and joining them can hang.
    os._exit(status) if Path("/proc").exists() else sys.exit(status)
