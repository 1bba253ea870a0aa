"""The engine's numbers for Prometheus, under the field's names where the meaning is the same.

Every metric appears under each of `PREFIXES`: dashboards made for other engines find theirs, and
Pegboard's own find theirs. Recording only adds to plain numbers; text is made at a scrape.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from pegboard.api.messages import FinishedRequestStats, IterationStats, SchedulerStats
from pegboard.api.observers import StatLogger
from pegboard.api.plugin import ComponentContext

__all__ = ["PREFIXES", "PrometheusStatLogger"]

PREFIXES = ("vllm", "pegboard")

_TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_ITL = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
_LATENCY = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_FEW = (1, 2, 5, 10, 20)
_PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)


class _Histogram:
    """Counts of values in buckets; one bisection a value."""

    __slots__ = ("bounds", "counts", "help", "name", "total")

    def __init__(self, name: str, help_: str, bounds: Sequence[float]) -> None:
        self.name = name
        self.help = help_
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        running = 0
        result = []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            running += count
            result.append(("+Inf" if bound == float("inf") else str(float(bound)), running))
        return result


class PrometheusStatLogger(StatLogger):
    """Keeps the engine's numbers; `collect` gives them to a Prometheus registry."""

    def __init__(self, context: ComponentContext) -> None:
        """Start at zero."""
        super().__init__(context)
        config = context.config
        self._model = config.model.served_model_name[0] if config is not None else ""
        self._engine = "0"
        self._scheduler = SchedulerStats()
        self._num_steps = 0  # of the last record, which a refresh in between may have overtaken
        self._prompt = self._cached = self._generated = 0
        self._finished: dict[str, int] = dict.fromkeys(
            ("stop", "length", "abort", "error", "repetition"), 0
        )
        self._cache_info = _cache_info(config)
        longest = config.model.max_model_len if config is not None else 8192
        self._make_histograms(_one_two_five(longest))

    def _make_histograms(self, lengths: Sequence[float]) -> None:
        def histogram(name: str, help_: str, bounds: Sequence[float]) -> _Histogram:
            made = _Histogram(name, help_, bounds)
            self._histograms.append(made)
            return made

        self._histograms: list[_Histogram] = []
        self._ttft = histogram(
            "time_to_first_token_seconds", "Arrival to first token, in the front end.", _TTFT
        )
        self._itl = histogram(
            "inter_token_latency_seconds", "Between two tokens of a request.", _ITL
        )
        self._tpot = histogram(
            "request_time_per_output_token_seconds", "Mean time a token after the first.", _ITL
        )
        self._e2e = histogram("e2e_request_latency_seconds", "Arrival to last token.", _LATENCY)
        self._queue = histogram(
            "request_queue_time_seconds", "Queued to first scheduled.", _LATENCY
        )
        self._prefill = histogram(
            "request_prefill_time_seconds", "First scheduled to first token.", _LATENCY
        )
        self._decode = histogram("request_decode_time_seconds", "First to last token.", _LATENCY)
        self._inference = histogram(
            "request_inference_time_seconds", "First scheduled to last token.", _LATENCY
        )
        self._prompt_lengths = histogram(
            "request_prompt_tokens", "Prompt tokens of finished requests.", lengths
        )
        self._output_lengths = histogram(
            "request_generation_tokens", "Output tokens of finished requests.", lengths
        )
        self._max_tokens = histogram(
            "request_params_max_tokens", "max_tokens of finished requests.", lengths
        )
        self._n = histogram("request_params_n", "n of finished requests.", _FEW)
        self._preempted = histogram(
            "request_num_preemptions", "Preemptions of finished requests.", _PREEMPTIONS
        )
        self._step_tokens = histogram("iteration_tokens_total", "Tokens of a step.", _STEP_TOKENS)

    def record(self, scheduler: SchedulerStats, iteration: IterationStats) -> None:
        """Add one batch of numbers."""
        if scheduler.num_steps != self._num_steps and scheduler.step_tokens:
            self._step_tokens.add(scheduler.step_tokens)
        self._num_steps = scheduler.num_steps
        self._scheduler = scheduler
        self._prompt += iteration.num_prompt_tokens
        self._cached += iteration.num_cached_tokens
        self._generated += iteration.num_generation_tokens
        for seconds in iteration.time_to_first_token_s:
            self._ttft.add(seconds)
        for seconds in iteration.inter_token_latency_s:
            self._itl.add(seconds)
        for request in iteration.finished:
            self._add_finished(request)

    def refresh(self, scheduler: SchedulerStats) -> None:
        """Take the engine core's newest state, which outputs may not have brought yet."""
        self._scheduler = scheduler

    def _add_finished(self, request: FinishedRequestStats) -> None:
        reason = request.finish_reason
        self._finished[reason] = self._finished.get(reason, 0) + 1
        self._e2e.add(request.e2e_latency_s)
        self._queue.add(request.queued_s)
        self._prefill.add(request.prefill_s)
        self._decode.add(request.decode_s)
        self._inference.add(request.inference_s)
        self._prompt_lengths.add(request.num_prompt_tokens)
        self._output_lengths.add(request.num_generation_tokens)
        self._n.add(request.n)
        self._preempted.add(request.num_preemptions)
        if request.max_tokens is not None:
            self._max_tokens.add(request.max_tokens)
        if request.num_generation_tokens > 1:
            self._tpot.add(request.decode_s / (request.num_generation_tokens - 1))

    def describe(self) -> Iterable[Metric]:
        """Nothing: names need no check, and several engines may register."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield every metric under every prefix."""
        for prefix in PREFIXES:
            yield from self._gauges(prefix)
            yield from self._counters(prefix)
            for histogram in self._histograms:
                family = HistogramMetricFamily(
                    f"{prefix}:{histogram.name}", histogram.help, labels=_LABELS
                )
                family.add_metric(
                    (self._model, self._engine), histogram.buckets(), sum_value=histogram.total
                )
                yield family

    def _gauges(self, prefix: str) -> Iterator[Metric]:
        stats = self._scheduler
        for name, help_, value in (
            ("num_requests_running", "Requests in the running set.", stats.num_running),
            ("num_requests_waiting", "Requests in the queue.", stats.num_waiting),
            ("num_tokens_waiting", "Prompt tokens in the queue.", stats.num_waiting_tokens),
            ("kv_cache_usage_perc", "Used fraction of the KV cache, 0 to 1.", stats.kv_usage),
            ("kv_cache_free_blocks", "Free KV blocks.", stats.num_free_blocks),
        ):
            family = GaugeMetricFamily(f"{prefix}:{name}", help_, labels=_LABELS)
            family.add_metric((self._model, self._engine), value)
            yield family
        info = GaugeMetricFamily(
            f"{prefix}:cache_config_info", "The KV cache.", labels=("engine", *self._cache_info)
        )
        info.add_metric((self._engine, *self._cache_info.values()), 1)
        yield info

    def _counters(self, prefix: str) -> Iterator[Metric]:
        stats = self._scheduler
        for name, help_, value in (
            ("prefix_cache_queries", "Tokens looked up.", stats.prefix_queries_tokens),
            ("prefix_cache_hits", "Tokens found.", stats.prefix_hits_tokens),
            ("num_preemptions", "Preempted requests.", stats.num_preemptions),
            ("prompt_tokens", "Prompt tokens, cached ones too.", self._prompt),
            ("prompt_tokens_cached", "Prompt tokens that were cached.", self._cached),
            ("generation_tokens", "Output tokens.", self._generated),
            ("engine_steps", "Steps.", stats.num_steps),
        ):
            family = CounterMetricFamily(f"{prefix}:{name}", help_, labels=_LABELS)
            family.add_metric((self._model, self._engine), value)
            yield family
        done = CounterMetricFamily(
            f"{prefix}:request_success",
            "Finished requests by reason.",
            labels=(*_LABELS, "finished_reason"),
        )
        for reason, count in self._finished.items():
            done.add_metric((self._model, self._engine, reason), count)
        yield done
        faults = CounterMetricFamily(
            f"{prefix}:faults", "Confined failures by scope.", labels=(*_LABELS, "scope")
        )
        for scope, count in stats.faults.items():
            faults.add_metric((self._model, self._engine, scope), count)
        yield faults


_LABELS = ("model_name", "engine")


def _one_two_five(longest: int) -> list[float]:
    bounds: list[float] = []
    power = 1
    while power <= longest:
        bounds += [power * factor for factor in (1, 2, 5) if power * factor <= longest]
        power *= 10
    return bounds


def _cache_info(config: object) -> dict[str, str]:
    cache = getattr(config, "cache", None)
    names = ("block_size", "kv_cache_dtype", "enable_prefix_caching")
    return {name: str(getattr(cache, name, "")) for name in names}
