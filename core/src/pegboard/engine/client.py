"""An engine core as a front end holds it, whether in this process or in its own.

Knows nothing of clients' requests: it carries messages one way and calls a function the other.
"""

import logging
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from pegboard.api.errors import EngineDead, EngineError, PegboardError
from pegboard.api.messages import EngineCoreOutputs, EngineCoreRequest, UtilityCall
from pegboard.catalog.catalog import Catalog
from pegboard.config.engine import EngineConfig
from pegboard.engine.wire import CoreReady, Ping, Progress, Wish

__all__ = ["CoreClient", "InProcessClient", "OnOutputs", "OnProgress"]

logger = logging.getLogger(__name__)

#: Called from the client's own thread, in order; must return quickly and not raise.
OnOutputs = Callable[[EngineCoreOutputs], None]
OnProgress = Callable[[Progress], None]

_JOIN_S = 10.0


class CoreClient(ABC):
    """One engine core. Methods may be called from any thread.

    Attributes:
        last_heard: monotonic time of the engine core's last sign of life.
        turns: of its loop, as last heard.
    """

    def __init__(self) -> None:
        """Nothing is started."""
        self.last_heard = time.monotonic()
        self.turns = 0

    @abstractmethod
    def start(
        self, config: EngineConfig, on_outputs: OnOutputs, on_progress: OnProgress
    ) -> CoreReady:
        """Start the engine core and wait until it can answer.

        Raises:
            PegboardError: it could not; the first cause.
        """

    @abstractmethod
    def _send(self, wish: Wish, body: object) -> None:
        """Carry a message.

        Raises:
            EngineDead: there is nobody to carry it to.
        """

    @abstractmethod
    def shutdown(self, timeout_s: float = _JOIN_S) -> None:
        """End the engine core, by force after `timeout_s`. May be called twice."""

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """Process id of the engine core, None while there is none."""

    def add(self, request: EngineCoreRequest) -> None:
        """Hand a request over."""
        self._send(Wish.ADD, request)

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests by their engine ids; unknown ones are ignored there."""
        if request_ids:
            self._send(Wish.ABORT, list(request_ids))

    def call(self, call: UtilityCall) -> None:
        """Call a utility; the answer comes as an output."""
        self._send(Wish.CALL, call)

    def ping(self) -> None:
        """Ask for a sign of life."""
        self._send(Wish.PING, Ping(sent=time.monotonic()))


class InProcessClient(CoreClient):
    """The loop on a thread of this process: for tests, and where one process is wanted."""

    def __init__(self, catalog: Catalog) -> None:
        """Use `catalog` for the engine core's components too."""
        super().__init__()
        self._catalog = catalog
        self._inbox: queue.SimpleQueue = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopped = False

    @property
    def pid(self) -> int | None:
        """None: it has no process of its own."""
        return None

    def start(
        self, config: EngineConfig, on_outputs: OnOutputs, on_progress: OnProgress
    ) -> CoreReady:
        """Start everything in the caller's thread, then run the loop on its own."""
        from pegboard.engine.core_start import Phases, start_core

        def send(client: int, outputs: EngineCoreOutputs) -> None:
            del client
            self.last_heard = time.monotonic()
            on_outputs(outputs)

        started = start_core(
            config, self._catalog, inbox=self._inbox, send=send, phases=Phases(on_progress)
        )
        self._core = started.core

        def run() -> None:
            try:
                started.core.run()
            except EngineError as error:
                logger.error("the engine core stops: %s", error)
            finally:
                started.executor.shutdown()

        self._thread = threading.Thread(target=run, name="engine-core", daemon=True)
        self._thread.start()
        return started.ready

    def _send(self, wish: Wish, body: object) -> None:
        if self._thread is None or not self._thread.is_alive():
            raise EngineDead("the engine core is not running")
        if wish is Wish.PING:
            self.last_heard = time.monotonic()
            self.turns = self._core.turns
            return
        self._inbox.put((wish, body))

    def shutdown(self, timeout_s: float = _JOIN_S) -> None:
        """Ask the loop to end and wait for it."""
        if self._thread is None or self._stopped:
            return
        self._stopped = True
        self._inbox.put((Wish.STOP, None))
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise PegboardError(f"the engine core's thread did not end within {timeout_s:g} s")
