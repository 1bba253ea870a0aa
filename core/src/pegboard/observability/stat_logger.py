"""The periodic log line: throughput, queue lengths, cache use."""

import logging
import time
from collections.abc import Callable

from pegboard.api.messages import IterationStats, SchedulerStats
from pegboard.api.observers import StatLogger
from pegboard.api.plugin import ComponentContext
from pegboard.config.runtime import ObservabilityConfig

__all__ = ["LogStatLogger"]

logger = logging.getLogger(__name__)


class LogStatLogger(StatLogger):
    """Logs a line every `log_stats_interval_s` seconds while tokens flow; nothing while idle."""

    def __init__(
        self, context: ComponentContext, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Read the interval from the engine's configuration."""
        super().__init__(context)
        config = getattr(context.config, "observability", None) or ObservabilityConfig()
        self._clock = clock
        self._enabled = not config.disable_log_stats
        self._interval_s = config.log_stats_interval_s
        self._last = clock()
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._finished = 0
        self._queries = 0
        self._hits = 0
        self._preemptions = 0

    def record(self, scheduler: SchedulerStats, iteration: IterationStats) -> None:
        """Add up, and log when the interval is over."""
        if not self._enabled:
            return
        self._prompt_tokens += iteration.num_prompt_tokens
        self._generation_tokens += iteration.num_generation_tokens
        self._finished += len(iteration.finished)
        elapsed = self._clock() - self._last
        if elapsed < self._interval_s:
            return
        if self._prompt_tokens or self._generation_tokens or self._finished:
            self._log(scheduler, elapsed)
        self._restart(scheduler)

    def _log(self, scheduler: SchedulerStats, elapsed_s: float) -> None:
        queries = scheduler.prefix_queries_tokens - self._queries
        hits = scheduler.prefix_hits_tokens - self._hits
        logger.info(
            "prompt %.1f tokens/s, generation %.1f tokens/s, finished %d; running %d, waiting %d; "
            "KV cache %.1f %% used, prefix hits %.1f %%, preemptions %d",
            self._prompt_tokens / elapsed_s,
            self._generation_tokens / elapsed_s,
            self._finished,
            scheduler.num_running,
            scheduler.num_waiting,
            scheduler.kv_usage * 100,
            hits / queries * 100 if queries > 0 else 0.0,
            scheduler.num_preemptions - self._preemptions,
        )

    def _restart(self, scheduler: SchedulerStats) -> None:
        self._last = self._clock()
        self._prompt_tokens = self._generation_tokens = self._finished = 0
        self._queries = scheduler.prefix_queries_tokens
        self._hits = scheduler.prefix_hits_tokens
        self._preemptions = scheduler.num_preemptions
