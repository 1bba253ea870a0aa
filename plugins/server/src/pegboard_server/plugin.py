"""Declares the front end `http` and the stat logger `prometheus`."""

from pegboard.api.frontends import FrontendSpec
from pegboard.api.observers import StatLoggerSpec
from pegboard.api.plugin import PluginInfo, hookimpl

PLUGIN = PluginInfo(
    name="server",
    version="0.1.0",
    api="1.0",
    summary="OpenAI-compatible HTTP server with probes and Prometheus metrics.",
    config="pegboard_server.config:ServerConfig",
)


@hookimpl
def frontends() -> list[FrontendSpec]:
    """The HTTP server."""
    return [
        FrontendSpec(
            name="http",
            target="pegboard_server.frontend:HttpFrontend",
            summary="OpenAI protocol over HTTP/1.1, TCP or a unix socket, with TLS and keys.",
        )
    ]


@hookimpl
def stat_loggers() -> list[StatLoggerSpec]:
    """Counters and histograms of the engine, served at /metrics."""
    return [
        StatLoggerSpec(
            name="prometheus",
            target="pegboard_server.engine_metrics:PrometheusStatLogger",
            summary="The engine's counters and histograms at /metrics.",
        )
    ]
