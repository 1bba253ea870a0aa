"""Counts and times of HTTP exchanges, and the text of /metrics."""

from collections.abc import Callable, Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.registry import Collector

__all__ = ["HttpMetrics"]

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class HttpMetrics:
    """Owns one registry: the server's own numbers and those of the engine's stat loggers."""

    content_type = b"text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, collectors: Iterable[Collector], in_flight: Callable[[], float]) -> None:
        """Register everything that /metrics shows.

        Args:
            collectors: of the engine's numbers.
            in_flight: called at each scrape.
        """
        registry = CollectorRegistry()
        self._registry = registry
        ProcessCollector(registry=registry)
        for collector in collectors:
            registry.register(collector)
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

    def render(self) -> bytes:
        """Return the exposition text."""
        return generate_latest(self._registry)
