"""Counts and times of HTTP exchanges, and the text of /metrics."""

from collections.abc import Callable, Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from pegboard.api.messages import SchedulerStats
from pegboard_server.engine_metrics import PrometheusStatLogger

__all__ = ["HttpMetrics"]

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class HttpMetrics:
    """Owns one registry: the server's own numbers and those of the engine's stat loggers."""

    content_type = b"text/plain; version=0.0.4; charset=utf-8"

    def __init__(
        self, stat_loggers: Sequence[PrometheusStatLogger], in_flight: Callable[[], float]
    ) -> None:
        """Register everything that /metrics shows.

        Args:
            stat_loggers: the engine's.
            in_flight: called at each scrape.
        """
        registry = CollectorRegistry()
        self._registry = registry
        ProcessCollector(registry=registry)
        self._stat_loggers = stat_loggers
        for stat_logger in stat_loggers:
            registry.register(stat_logger)  # type: ignore[arg-type]  # it has the two methods
        self._requests = Counter(
            "http_requests",
            "HTTP requests by path, method and status.",
            ("handler", "method", "status"),
            registry=registry,
        )
        self._durations = Histogram(
            "http_request_duration_seconds",
            "Seconds from the head of a request to the end of its answer.",
            ("handler", "method"),
            buckets=_SECONDS,
            registry=registry,
        )
        Gauge("http_requests_in_progress", "Requests at work now.", registry=registry).set_function(
            in_flight
        )

    def observe(self, handler: str, method: str, status: int, seconds: float) -> None:
        """Count one finished exchange. `handler` is a known route, never a client's path."""
        self._requests.labels(handler, method, str(status)).inc()
        self._durations.labels(handler, method).observe(seconds)

    def render(self, newest: SchedulerStats) -> bytes:
        """Return the exposition text, with the engine core's newest state."""
        for stat_logger in self._stat_loggers:
            stat_logger.refresh(newest)
        return generate_latest(self._registry)
