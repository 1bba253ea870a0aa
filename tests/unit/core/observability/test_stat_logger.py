import logging

import msgspec
import pytest

from pegboard.api.messages import IterationStats, SchedulerStats
from pegboard.api.plugin import ComponentContext
from pegboard.config.runtime import ObservabilityConfig
from pegboard.observability.stat_logger import LogStatLogger


class Config(msgspec.Struct):
    observability: ObservabilityConfig


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def stat_logger(clock: Clock, **values) -> LogStatLogger:
    config = Config(ObservabilityConfig(**values))
    return LogStatLogger(ComponentContext(plugin="builtin", config=config), clock)


def tokens(prompt: int, generation: int) -> IterationStats:
    return IterationStats(num_prompt_tokens=prompt, num_generation_tokens=generation)


def test_line_tells_rates_over_the_interval(clock, caplog):
    caplog.set_level(logging.INFO)
    log = stat_logger(clock, log_stats_interval_s=10)
    log.record(SchedulerStats(), tokens(100, 5))
    assert caplog.text == ""
    clock.now += 10
    log.record(
        SchedulerStats(
            num_running=3,
            num_waiting=2,
            kv_usage=0.125,
            prefix_queries_tokens=200,
            prefix_hits_tokens=50,
            num_preemptions=1,
        ),
        tokens(50, 15),
    )
    assert "prompt 15.0 tokens/s, generation 2.0 tokens/s" in caplog.text
    assert "running 3, waiting 2; KV cache 12.5 % used, prefix hits 25.0 %" in caplog.text
    assert "preemptions 1" in caplog.text


def test_second_line_counts_only_what_came_since_the_first(clock, caplog):
    caplog.set_level(logging.INFO)
    log = stat_logger(clock, log_stats_interval_s=10)
    totals = SchedulerStats(prefix_queries_tokens=100, prefix_hits_tokens=100, num_preemptions=4)
    clock.now += 10
    log.record(totals, tokens(1000, 1000))
    caplog.clear()
    clock.now += 10
    later = msgspec.structs.replace(totals, prefix_queries_tokens=200, prefix_hits_tokens=110)
    log.record(later, tokens(0, 20))
    assert "prompt 0.0 tokens/s, generation 2.0 tokens/s" in caplog.text
    assert "prefix hits 10.0 %, preemptions 0" in caplog.text


def test_idle_engine_logs_nothing(clock, caplog):
    caplog.set_level(logging.INFO)
    log = stat_logger(clock, log_stats_interval_s=10)
    clock.now += 60
    log.record(SchedulerStats(), IterationStats())
    assert caplog.text == ""


def test_disabled_by_the_configuration(clock, caplog):
    caplog.set_level(logging.INFO)
    log = stat_logger(clock, disable_log_stats=True)
    clock.now += 60
    log.record(SchedulerStats(), tokens(10, 10))
    assert caplog.text == ""


def test_works_without_an_engine_configuration(clock):
    LogStatLogger(ComponentContext(plugin="builtin"), clock).record(SchedulerStats(), tokens(1, 1))
