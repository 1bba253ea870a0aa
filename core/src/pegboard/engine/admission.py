"""How much may wait: past the bounds a request is refused at once, with when to come back."""

from pegboard.api.errors import Overloaded
from pegboard.api.messages import SchedulerStats
from pegboard.config.engine import ResolvedSchedulerConfig

__all__ = ["QueueLimits"]

_SHORTEST_RETRY_S = 1.0
_LONGEST_RETRY_S = 60.0


class QueueLimits:
    """Estimates the queue from the newest statistics and what was handed over since."""

    def __init__(self, config: ResolvedSchedulerConfig) -> None:
        """Take the bounds."""
        self._max_reqs = config.max_num_queued_reqs
        self._max_tokens = config.max_num_queued_tokens
        self._max_seqs = config.max_num_seqs
        self._reqs_since = 0
        self._tokens_since = 0
        self._stats = SchedulerStats()
        self._finished_a_second = 0.0
        self._last_time = 0.0

    def observe(self, stats: SchedulerStats, num_finished: int, now: float) -> None:
        """Take new statistics, which count all that was handed over before."""
        self._stats = stats
        self._reqs_since = 0
        self._tokens_since = 0
        elapsed = now - self._last_time
        if 0 < elapsed < _LONGEST_RETRY_S:
            weight = min(1.0, elapsed / 10.0)
            self._finished_a_second += weight * (num_finished / elapsed - self._finished_a_second)
        self._last_time = now

    def admit(self, num_reqs: int, num_tokens: int) -> None:
        """Count requests in, or refuse them.

        Raises:
            Overloaded: a bound would be passed; says when to come back.
        """
        room = max(0, self._max_seqs - self._stats.num_running)
        waiting = max(0, self._stats.num_waiting + self._reqs_since + num_reqs - room)
        tokens = self._stats.num_waiting_tokens + self._tokens_since + num_tokens
        if self._max_reqs is not None and waiting > self._max_reqs:
            raise Overloaded(
                f"{waiting} requests would wait; at most {self._max_reqs} may "
                "(--max-num-queued-reqs); come back later",
                retry_after_s=self._retry_after(waiting),
            )
        if self._max_tokens is not None and waiting and tokens > self._max_tokens:
            raise Overloaded(
                f"{tokens} prompt tokens would wait; at most {self._max_tokens} may "
                "(--max-num-queued-tokens); come back later",
                retry_after_s=self._retry_after(waiting),
            )
        self._reqs_since += num_reqs
        self._tokens_since += num_tokens

    def _retry_after(self, waiting: int) -> float:
        """Return in how many seconds half the queue will be gone, as far as one can tell."""
        if self._finished_a_second <= 0:
            return _SHORTEST_RETRY_S
        return min(_LONGEST_RETRY_S, max(_SHORTEST_RETRY_S, waiting / 2 / self._finished_a_second))
