"""A worker's process: `python -m pegboard.worker.process LAUNCH PARENT PARENT_PID`.

The first two numbers are inherited descriptors: one to read a `Launch` from, and one whose
end-of-file means that the parent is gone. The main thread is the step thread.
"""

import ctypes
import logging
import os
import signal
import sys
import threading
from typing import Any

import msgspec
import zmq

from pegboard.api.engine import Worker
from pegboard.api.errors import PegboardError
from pegboard.catalog import rebuild_catalog
from pegboard.observability.logging import configure_logging
from pegboard.worker.protocol import (
    Answer,
    Call,
    Command,
    Execute,
    Launch,
    Reply,
    Sample,
    StepDone,
    StepFailed,
    Stop,
    command_address,
    reply_address,
)
from pegboard.worker.worker import make_worker

__all__ = ["main"]

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_LINGER_MS = 2000


def main(argv: list[str]) -> int:
    """Run a worker until it is told to stop, or its parent dies."""
    launch_fd, parent_fd, parent_pid = (int(a) for a in argv)
    _die_with_parent(parent_fd, parent_pid)
    # The executor decides when this process ends; Ctrl-C at a terminal reaches both.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with os.fdopen(launch_fd, "rb") as stream:
        launch = msgspec.msgpack.decode(stream.read(), type=Launch)
    config = launch.config
    packages = {plugin.target.partition(".")[0] for plugin in config.plugins}
    configure_logging(config.observability, process=f"worker {launch.rank}", packages=packages)
    return _Process(launch).run()


def _die_with_parent(parent_fd: int, parent_pid: int) -> None:
    """End this process when its parent ends, however that happens."""
    os.set_inheritable(parent_fd, False)
    if sys.platform == "linux":
        # The kernel's word, for when this process is too stuck to run the thread below.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:
            os._exit(1)

    def watch() -> None:
        os.read(parent_fd, 1)  # nobody writes: it returns at end-of-file
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


class _Process:
    """The sockets around one `Worker`."""

    def __init__(self, launch: Launch) -> None:
        self._rank = launch.rank
        self._context = zmq.Context(io_threads=1)
        self._commands = self._context.socket(zmq.PULL)
        self._replies = self._context.socket(zmq.PUSH)
        for socket in (self._commands, self._replies):
            socket.set(zmq.LINGER, _LINGER_MS)
            socket.set(zmq.SNDHWM, 0)
            socket.set(zmq.RCVHWM, 0)
        self._commands.connect(command_address(launch.folder, launch.rank))
        self._replies.connect(reply_address(launch.folder))
        self._launch = launch
        self._running: Any = None
        self._step_error: str | None = None
        self._worker: Worker

    def run(self) -> int:
        """Start the worker, say so, and obey until told to stop."""
        launch = self._launch
        try:
            catalog = rebuild_catalog(launch.config.plugins, process=f"worker {self._rank}")
            self._worker = make_worker(
                launch.config,
                catalog,
                rank=self._rank,
                world_size=launch.world_size,
                init_method=f"file://{launch.folder}/world",
            )
            self._worker.start()
        except Exception as error:
            logger.debug("the start failed", exc_info=True)
            self._send(Answer(rank=self._rank, call_id=0, error=_one_line(error)))
            return self._end(1)
        self._send(Answer(rank=self._rank, call_id=0))
        decoder = msgspec.msgpack.Decoder(Command)
        while True:
            command = decoder.decode(self._commands.recv())
            if isinstance(command, Stop):
                self._worker.shutdown()
                return self._end(0)
            self._obey(command)

    def _obey(self, command: Command) -> None:
        if isinstance(command, Execute):
            self._execute(command)
        elif isinstance(command, Sample):
            self._sample(command)
        elif isinstance(command, Call):
            self._call(command)

    def _execute(self, command: Execute) -> None:
        """Run the forward pass; what it raises is told when the step is to be sampled."""
        self._running, self._step_error = None, None
        try:
            self._running = self._worker.model_runner.execute(command.step)
        except Exception as error:
            self._step_error = _one_line(error)
            logger.debug("step %d raised", command.step.step_id, exc_info=True)

    def _sample(self, command: Sample) -> None:
        running, error = self._running, self._step_error
        self._running = None
        if error is None:
            try:
                output = self._worker.model_runner.sample(running, command.grammar_masks)
            except Exception as raised:
                error = _one_line(raised)
                logger.debug("step %d raised", command.step_id, exc_info=True)
            else:
                if self._rank == 0:
                    self._send(StepDone(output))
                return
        self._send(StepFailed(rank=self._rank, step_id=command.step_id, error=error))

    def _call(self, command: Call) -> None:
        answer: dict[str, Any] = {"rank": self._rank, "call_id": command.call_id}
        try:
            self._send(Answer(**answer, value=self._worker.call(command.method, command.args)))
        except Exception as error:
            logger.debug("call of %s raised", command.method, exc_info=True)
            self._send(Answer(**answer, error=_one_line(error)))

    def _send(self, reply: Reply) -> None:
        self._replies.send(msgspec.msgpack.encode(reply))

    def _end(self, code: int) -> int:
        self._commands.close()
        self._replies.close()
        self._context.term()  # waits until the replies are gone, or for the linger
        return code


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, PegboardError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


if __name__ == "__main__":
    _code = main(sys.argv[1:])
    logging.shutdown()
    sys.stderr.flush()
    os._exit(_code)  # all is closed; taking the interpreter down would cost a second
