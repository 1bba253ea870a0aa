"""The life of the listening server: connections, the engine's health, drain, end."""

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from email.utils import formatdate
from typing import Any

import uvicorn
from uvicorn.server import ServerState as UvicornState

from pegboard.api.errors import EngineDead, EngineError
from pegboard_server.config import ServerConfig
from pegboard_server.connections import make_protocol
from pegboard_server.state import ServerState

__all__ = ["HttpServer"]

logger = logging.getLogger(__name__)

_HEALTH_INTERVAL_S = 0.5
_POLL_S = 0.02
#: What open requests get to tell their clients that the engine is gone.
_FAILURE_GRACE_S = 2.0
#: What aborted requests get to send their last words.
_ABORT_GRACE_S = 2.0


class HttpServer:
    """Accepts connections for one application until it is told to stop or the engine dies."""

    def __init__(self, app: Any, state: ServerState, config: ServerConfig) -> None:  # noqa: ANN401
        """Prepare; opens nothing.

        Args:
            app: the ASGI application.
            state: what its handlers share.
            config: limits and timeouts.
        """
        self._state = state
        self._config = config
        self._uvicorn = uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            loop="none",
            server_header=False,
            root_path=config.root_path,
            timeout_keep_alive=max(1, round(config.timeout_keep_alive_s)),
        )
        self._connections = UvicornState()
        self._stop = asyncio.Event()
        self._force = asyncio.Event()

    def stop(self) -> None:
        """Begin the drain; a second call ends it at once. From the event loop's thread."""
        if self._stop.is_set():
            logger.warning("second signal: ending open requests now")
            self._force.set()
            return
        open_now = len(self._connections.tasks)
        logger.info("stopping: refusing new requests, open=%d", open_now)
        self._state.draining = True
        self._stop.set()

    async def serve(
        self,
        listening: socket.socket,
        tls: ssl.SSLContext | None,
        on_ready: Callable[[], None] | None,
    ) -> None:
        """Serve on a bound socket until stopped.

        Raises:
            EngineDead: the engine died; open requests were told.
        """
        loop = asyncio.get_running_loop()
        self._uvicorn.load()
        protocol = make_protocol(self._config)
        self._set_date_header()

        def connect() -> asyncio.Protocol:
            return protocol(
                config=self._uvicorn,
                server_state=self._connections,
                app_state={},
                _loop=loop,
            )

        # Connections inherit this, so that those that linger do not block the next server.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server = await loop.create_server(connect, sock=listening, ssl=tls, backlog=2048)
        try:
            with self._signals(loop):
                if on_ready is not None:
                    on_ready()
                await self._supervise()
        finally:
            server.close()
            await self._close_connections()

    @contextlib.contextmanager
    def _signals(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        installed = []
        for number in (signal.SIGTERM, signal.SIGINT):
            # Outside the main thread nobody can handle signals; `stop` is called there.
            with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
                loop.add_signal_handler(number, self.stop)
                installed.append(number)
        try:
            yield
        finally:
            for number in installed:
                loop.remove_signal_handler(number)

    def _set_date_header(self) -> None:
        self._connections.default_headers = [(b"date", formatdate(usegmt=True).encode())]

    async def _supervise(self) -> None:
        """Watch the engine until the stop, then drain."""
        while not self._stop.is_set():
            self._set_date_header()
            health = self._state.client.health()
            if not health.live:
                await self._fail_open_requests(health.reason)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), _HEALTH_INTERVAL_S)
        await self._drain()

    async def _fail_open_requests(self, reason: str) -> None:
        """Give open requests time to report their failure, then end the server."""
        self._state.draining = True
        logger.error("the engine is dead: %s", reason)
        await self._wait_until_idle(_FAILURE_GRACE_S)
        raise EngineDead(reason or "the engine died")

    async def _drain(self) -> None:
        await self._wait_until_idle(self._config.shutdown_timeout)
        left = list(self._state.open_ids)
        if left:
            logger.warning("shutdown timeout: aborting requests count=%d", len(left))
            with contextlib.suppress(EngineError):  # dead or dying: nothing is left to abort
                await self._state.client.abort(left)
            # Also after a second signal: their clients are told how they ended.
            await self._wait_until_idle(_ABORT_GRACE_S, even_if_forced=True)

    async def _wait_until_idle(self, timeout_s: float, *, even_if_forced: bool = False) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while self._connections.tasks and (even_if_forced or not self._force.is_set()):
            left_s = deadline - loop.time()
            if left_s <= 0:
                return
            await asyncio.sleep(min(_POLL_S, left_s))

    async def _close_connections(self) -> None:
        for connection in list(self._connections.connections):
            connection.shutdown()
        tasks = list(self._connections.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_ABORT_GRACE_S)
        for connection in list(self._connections.connections):
            transport = getattr(connection, "transport", None)
            if transport is not None:
                transport.close()
        await asyncio.sleep(0)
