"""Definitions of the figures, on numbers worked out by hand."""

import itertools
import random

import pytest

from pegboard.cli.bench_client import RequestTimes
from pegboard.cli.bench_figures import figure_rows, percentile, ratios, summarise
from pegboard.cli.bench_workloads import make_prompts, shared_prefix_prompts
from pegboard.cli.main import main


def times(start, events, tokens, cached=None, error=None):
    made = RequestTimes()
    made.start, made.first, made.last = start, events[0], events[-1]
    made.gaps = [b - a for a, b in itertools.pairwise(events)]
    made.num_prompt_tokens, made.num_output_tokens = 10, tokens
    made.num_cached_tokens, made.error = cached, error
    return made


@pytest.mark.parametrize(
    ("percent", "value"), [(1, 1), (50, 5), (90, 9), (91, 10), (99, 10), (100, 10)]
)
def test_percentile_is_the_nearest_rank(percent, value):
    values = list(range(1, 11))
    random.Random(3).shuffle(values)

    assert percentile(values, percent) == value


def test_summary_follows_the_definitions():
    record = summarise(
        [times(1.0, [1.5, 1.7, 2.0], 3, cached=4), times(0.0, [1.0, 1.1, 1.2, 1.3], 4, cached=0)],
        wall_s=2.0,
    )

    assert record["completed"] == 2
    assert record["output_throughput"] == pytest.approx(3.5)
    assert record["total_token_throughput"] == pytest.approx(13.5)
    assert record["mean_ttft_ms"] == pytest.approx(750)
    assert record["mean_tpot_ms"] == pytest.approx((250 + 100) / 2)
    assert record["decode_throughput"] == pytest.approx(1 / 0.175)
    assert record["p99_itl_ms"] == pytest.approx(300)
    assert record["median_e2el_ms"] == pytest.approx(1150)
    assert record["total_cached_tokens"] == 4


def test_failed_requests_are_counted_and_the_first_is_told():
    record = summarise([times(0, [1, 2], 2), times(0, [0], 0, error="OSError: gone")], wall_s=1.0)

    assert (record["completed"], record["failed"]) == (1, 1)
    assert record["first_error"] == "OSError: gone"
    assert record["total_output_tokens"] == 2


def test_nothing_completed_is_still_a_record():
    record = summarise([times(0, [0], 0, error="x")], wall_s=1.0)

    assert record["failed"] == 1
    assert list(figure_rows({"benchmark": "serve", **record}))


def test_ratio_is_of_medians():
    first = [{"output_throughput": x} for x in (10, 30, 20)]
    second = [{"output_throughput": x} for x in (5, 10, 100)]

    assert ratios(first, second) == {"output_throughput": 2.0}


def test_prompts_are_fresh_of_the_asked_length_and_repeatable():
    prompts = make_prompts(random.Random(1), 20, 50)

    assert len(set(prompts)) == 20
    assert {len(p.split()) for p in prompts} == {50}
    assert prompts == make_prompts(random.Random(1), 20, 50)


def test_shared_prefix_is_shared_and_the_rest_is_not():
    prompts = [p.split() for p in shared_prefix_prompts(random.Random(1), 5, 100, 10)]

    assert len({tuple(p[:100]) for p in prompts}) == 1
    assert len({tuple(p[100:]) for p in prompts}) == 5


@pytest.mark.parametrize(
    "flags",
    [
        ["--num-prompts", "5000"],
        ["--num-prompts", "0"],
        ["--time-limit", "100000"],
        ["--max-concurrency", "1000"],
        ["--output-len", "100000"],
    ],
)
def test_unbounded_run_is_refused(flags, capsys):
    assert main(["bench", "serve", *flags]) == 1
    assert flags[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        ["--base-url", "ftp://x"],
        ["--base-url", "http://127.0.0.1:1/v1"],
        ["--workload", "coldstart"],
        ["--command", "'"],
        ["--command", "/no/such/program"],
        ["--extra-body", "["],
        ["--extra-body", "[]"],
    ],
)
def test_what_cannot_work_is_one_line(flags, capsys):
    assert main(["bench", "serve", *flags]) == 1
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_server_that_ends_at_once_is_one_line(capsys):
    assert main(["bench", "serve", "--command", "false"]) == 1
    assert "ended with 1" in capsys.readouterr().err
