"""The front end `http`: takes the address, builds the application, serves."""

import asyncio
import contextlib
import importlib
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pegboard.api.engine import EngineClient
from pegboard.api.errors import ConfigError
from pegboard.api.frontends import Frontend, MountedRoute
from pegboard.api.plugin import ComponentContext
from pegboard_server.config import ServerConfig

__all__ = ["HttpFrontend", "build_app"]


def build_app(
    client: EngineClient, config: ServerConfig, routes: list[MountedRoute]
) -> tuple[Any, Any]:
    """Return the ASGI application and the state its handlers share.

    Raises:
        ConfigError: a plugin's route shadows another.
    """
    from pegboard_server.app import Application
    from pegboard_server.auth import KeyRing
    from pegboard_server.engine_metrics import PrometheusStatLogger
    from pegboard_server.http_metrics import HttpMetrics
    from pegboard_server.state import ServerState

    state: ServerState
    loggers = [one for one in client.stat_loggers if isinstance(one, PrometheusStatLogger)]
    metrics = HttpMetrics(loggers, lambda: state.in_flight)
    state = ServerState(client, config, metrics)
    keys = KeyRing(config.api_key, config.admin_api_key)
    app: Any = Application(state, keys, routes)
    if config.allowed_origins:
        from starlette.middleware.cors import CORSMiddleware

        app = CORSMiddleware(
            app,
            allow_origins=config.allowed_origins,
            allow_methods=config.allowed_methods,
            allow_headers=config.allowed_headers,
            allow_credentials=config.allow_credentials,
        )
    return app, state


class HttpFrontend(Frontend):
    """OpenAI-compatible HTTP/1.1 server."""

    def __init__(self, context: ComponentContext) -> None:
        """Take the options; the defaults where the plugin has none."""
        super().__init__(context)
        self._config: ServerConfig = context.plugin_config or ServerConfig()
        self._socket: socket.socket | None = None
        self._tls: ssl.SSLContext | None = None
        self._server: Any = None

    def bind(self) -> str:
        """Take the address and return its URL."""
        from pegboard_server.sockets import address_of, bind_socket, tls_context

        _check_options(self._config)
        self._tls = tls_context(self._config)
        self._socket = bind_socket(self._config)
        return address_of(self._config, self._socket)

    def prepare(self) -> None:
        """Import what `run` needs, while the engine starts."""
        for name in ("pegboard_server.app", "pegboard_server.lifecycle"):
            importlib.import_module(name)

    def loop_factory(self) -> Callable[[], asyncio.AbstractEventLoop] | None:
        """Return uvloop's, where it is installed."""
        try:
            import uvloop
        except ImportError:
            return None
        return uvloop.new_event_loop

    async def run(
        self,
        client: EngineClient,
        routes: list[MountedRoute],
        on_ready: Callable[[], None] | None = None,
    ) -> None:
        """Serve until a signal, `stop`, or the engine's death; drain; return."""
        from pegboard_server.lifecycle import HttpServer

        if self._socket is None:
            self.bind()
        if self._socket is None:
            raise ConfigError("the server has no address; call bind first")
        try:
            app, state = build_app(client, self._config, routes)
            self._server = HttpServer(app, state, self._config)
            await self._server.serve(self._socket, self._tls, on_ready)
        finally:
            self._socket.close()
            if self._config.uds:
                with contextlib.suppress(OSError):
                    Path(self._config.uds).unlink()

    def stop(self) -> None:
        """Begin the drain, as SIGTERM does; from the event loop's thread."""
        if self._server is not None:
            self._server.stop()


def _check_options(config: ServerConfig) -> None:
    """Refuse what cannot work before anything is started.

    Raises:
        ConfigError: naming the flag.
    """
    for flag, keys in (("--api-key", config.api_key), ("--admin-api-key", config.admin_api_key)):
        if any(not key.strip() for key in keys):
            raise ConfigError(f"{flag} has an empty key; every caller would pass")
    if config.root_path and not config.root_path.startswith("/"):
        raise ConfigError(
            f"root_path is {config.root_path!r}; it must start with a slash (--root-path)"
        )
    if config.allow_credentials and "*" in config.allowed_origins:
        raise ConfigError(
            "credentials cannot be allowed to every origin; name the origins "
            "(--allowed-origins, --allow-credentials)"
        )
