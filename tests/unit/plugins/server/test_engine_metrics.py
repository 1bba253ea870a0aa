"""Histograms count as the Prometheus library's own do, and every name has a line in the docs."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.parser import text_string_to_metric_families
from tests.support.fake_engine import make_config

from pegboard.api.messages import FinishedRequestStats, IterationStats, SchedulerStats
from pegboard.api.plugin import ComponentContext
from pegboard_server.engine_metrics import PrometheusStatLogger, _Histogram, _one_two_five
from pegboard_server.http_metrics import HttpMetrics

BOUNDS = (0.1, 0.5, 1.0, 2.5)


def make_logger():
    return PrometheusStatLogger(ComponentContext(plugin="server", config=make_config()))


@given(st.lists(st.sampled_from([0.0, 0.05, 0.1, 0.11, 0.5, 1.0, 2.4, 2.5, 2.6, 100.0])))
def test_buckets_are_those_of_the_library(values):
    registry = CollectorRegistry()
    theirs = Histogram("h", "h", buckets=BOUNDS, registry=registry)
    ours = _Histogram("h", "h", BOUNDS)
    for value in values:
        theirs.observe(value)
        ours.add(value)

    for bound, count in ours.buckets():
        assert registry.get_sample_value("h_bucket", {"le": bound}) == count
    assert registry.get_sample_value("h_sum") == ours.total


def test_lengths_go_by_one_two_five_to_the_longest():
    assert _one_two_five(1200) == [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]


def test_counters_add_up_and_gauges_follow_the_newest_state():
    stat_logger = make_logger()
    for number in (1, 2):
        stat_logger.record(
            SchedulerStats(num_steps=number, step_tokens=10, prefix_hits_tokens=number * 4),
            IterationStats(
                num_prompt_tokens=5,
                finished=[FinishedRequestStats(finish_reason="length", num_generation_tokens=3)],
            ),
        )
    metrics = HttpMetrics([stat_logger], lambda: 0)
    text = metrics.render(SchedulerStats(num_steps=2, num_running=7, prefix_hits_tokens=8))
    found = {
        (sample.name, sample.labels.get("finished_reason")): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }

    assert found["vllm:prompt_tokens_total", None] == 10
    assert found["vllm:prefix_cache_hits_total", None] == 8
    assert found["vllm:num_requests_running", None] == 7
    assert found["vllm:request_success_total", "length"] == 2
    assert found["vllm:request_success_total", "stop"] == 0
    assert found["vllm:request_generation_tokens_sum", None] == 6
    assert found["vllm:iteration_tokens_total_count", None] == 2


def test_scrape_between_two_steps_hides_neither():
    stat_logger = make_logger()
    metrics = HttpMetrics([stat_logger], lambda: 0)
    for number in (1, 2):
        newest = SchedulerStats(num_steps=number, step_tokens=10)
        metrics.render(newest)
        stat_logger.record(newest, IterationStats())

    assert b'vllm:iteration_tokens_total_count{engine="0",model_name=' in metrics.render(newest)
    assert sum(stat_logger._step_tokens.counts) == 2


def test_two_engines_can_register_together():
    metrics = HttpMetrics([make_logger(), make_logger()], lambda: 0)

    assert metrics.render(SchedulerStats())


def test_every_metric_has_a_line_in_the_docs():
    page = (Path(__file__).parents[4] / "sdk_docs/http.md").read_text()

    for metric in make_logger().collect():
        name = metric.name.partition(":")[2]
        assert f"`{name}`" in page or f"`{name}_total`" in page, name
