"""What the handlers of one server share."""

import hashlib
import itertools
import time
from importlib import metadata

from pegboard.api.engine import EngineClient
from pegboard.api.errors import NotFound
from pegboard_server.config import ServerConfig
from pegboard_server.errors import HttpError
from pegboard_server.http_metrics import HttpMetrics

__all__ = ["ServerState"]


class ServerState:
    """The engine client, the options, and the load of one server.

    Attributes:
        draining: new work is refused; set once.
        in_flight: requests at work now.
        open_ids: the engine's ids of those.
    """

    __slots__ = (
        "_sequence",
        "client",
        "config",
        "created",
        "draining",
        "fingerprint",
        "in_flight",
        "metrics",
        "open_ids",
        "version",
    )

    def __init__(self, client: EngineClient, config: ServerConfig, metrics: HttpMetrics) -> None:
        """Take what is shared."""
        self.client = client
        self.config = config
        self.metrics = metrics
        self.created = int(time.time())
        self.version = metadata.version("pegboard-core")
        self.draining = False
        self.in_flight = 0
        self.open_ids: set[str] = set()
        self.fingerprint = _fingerprint(client, self.version)
        self._sequence = itertools.count()

    def engine_request_id(self, public_id: str) -> str:
        """Return an id that is unique in this server, whatever ids clients bring."""
        return f"{public_id}-{next(self._sequence)}"

    def served_name(self, name: str | None) -> str:
        """Return the model's name as the answer reports it.

        Raises:
            NotFound: another model was asked for.
        """
        served = self.client.config.model.served_model_name
        if name is None or name in served:
            return name or served[0]
        raise NotFound(
            f"model {name[:128]!r} is not served here; served: {', '.join(served)}", param="model"
        )

    def check_open(self) -> None:
        """Let new work in, or not.

        Raises:
            HttpError: 503 while draining or without an engine, 429 past the limit.
        """
        if self.draining:
            raise HttpError(
                503,
                "the server is shutting down",
                headers={"retry-after": "5"},
                close=True,
            )
        health = self.client.health()
        if not health.ready:
            reason = health.reason or "the engine is not ready"
            raise HttpError(503, reason, headers={"retry-after": "5"})
        limit = self.config.max_concurrent_requests
        if limit and self.in_flight >= limit:
            raise HttpError(
                429,
                f"{self.in_flight} requests are at work, the server's limit "
                "(--max-concurrent-requests)",
                headers={"retry-after": "1"},
            )


def _fingerprint(client: EngineClient, version: str) -> str:
    """Return the same word for the same version, model and numerics."""
    config = client.config
    parts = (
        config.model.model,
        config.model.dtype,
        config.cache.kv_cache_dtype,
        config.platform,
        config.parallel.tensor_parallel_size,
    )
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:8]
    return f"pegboard-{version}-{digest}"
