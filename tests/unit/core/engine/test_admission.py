"""Past the bounds a request is refused at once, and not before."""

from pathlib import Path
from typing import Any

import pytest
from tests.support.arithmetic import fake_config

from pegboard.api.errors import Overloaded
from pegboard.api.messages import SchedulerStats
from pegboard.engine.admission import QueueLimits


def _limits(folder: Path, **settings: Any) -> QueueLimits:
    config, _ = fake_config(folder, max_num_seqs=4, **settings)
    return QueueLimits(config.scheduler)


def test_burst_is_cut_where_batch_and_queue_are_full(tmp_path: Path) -> None:
    limits = _limits(tmp_path, max_num_queued_reqs=3)
    for _ in range(4 + 3):
        limits.admit(1, 10)
    with pytest.raises(Overloaded, match="at most 3") as caught:
        limits.admit(1, 10)
    assert caught.value.retry_after_s >= 1
    assert caught.value.status == 429


def test_statistics_replace_the_estimate(tmp_path: Path) -> None:
    limits = _limits(tmp_path, max_num_queued_reqs=3)
    for _ in range(7):
        limits.admit(1, 10)
    limits.observe(SchedulerStats(num_running=4, num_waiting=1), 0, 1.0)
    limits.admit(1, 10)
    limits.admit(1, 10)
    with pytest.raises(Overloaded):
        limits.admit(1, 10)
    limits.observe(SchedulerStats(num_running=2, num_waiting=0), 3, 2.0)
    limits.admit(1, 10)


def test_waiting_tokens_are_bounded_too(tmp_path: Path) -> None:
    limits = _limits(tmp_path, max_num_queued_tokens=100)
    limits.observe(SchedulerStats(num_running=4, num_waiting=1, num_waiting_tokens=60), 0, 1.0)
    limits.admit(1, 40)
    with pytest.raises(Overloaded, match="max-num-queued-tokens"):
        limits.admit(1, 1)


def test_prompt_that_can_run_at_once_is_not_held_to_the_token_bound(tmp_path: Path) -> None:
    limits = _limits(tmp_path, max_num_queued_tokens=100)
    limits.admit(1, 5000)
