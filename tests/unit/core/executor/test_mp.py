"""The multi-process executor: two ranks equal one, and every kind of end is told."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
from tests.support.models import Checkpoint
from tests.support.tiny_engine import HandScheduler, one_group, tiny_catalog, tiny_config

from pegboard.api.errors import StepError, WorkerError
from pegboard.api.messages import SchedulerOutput
from pegboard.api.plugin import ComponentContext
from pegboard.api.sampling_params import SamplingParams
from pegboard.executor.mp import MpExecutor
from pegboard.executor.uni import UniExecutor

GREEDY = SamplingParams(temperature=0.0, max_tokens=50)
ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return Checkpoint.make(tmp_path_factory.mktemp("llama"))


def make(kind, checkpoint, **changes):
    config = tiny_config(checkpoint, tiny_catalog(), **changes)
    return kind(ComponentContext(plugin="builtin", config=config))


def prepare(executor):
    scheduler = HandScheduler()
    executor.initialize_kv(one_group(executor.kv_needs()), scheduler.num_blocks)
    return scheduler


def run(executor, scheduler, num_steps):
    futures = [executor.sample(executor.execute(scheduler.step())) for _ in range(num_steps)]
    return [future.result(30) for future in futures]


def pids_of(executor):
    return executor.collective_rpc("pid", timeout_s=20)


def wait_until_gone(pids, seconds=10.0):
    """Poll: processes that are not ours cannot be waited for."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline, f"still running: {pids}"
        pause.wait(0.05)


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_two_ranks_equal_one_then_fail_together_and_are_missed_when_killed(checkpoint):
    """One fleet lives through all of it, as starting one takes seconds."""
    alone = make(UniExecutor, checkpoint)
    alone.start()
    fleet = make(MpExecutor, checkpoint, tensor_parallel_size=2)
    fleet.start()
    causes = []
    told = threading.Event()
    fleet.on_failure(lambda cause: (causes.append(cause), told.set()))
    try:
        schedulers = prepare(alone), prepare(fleet)
        for scheduler in schedulers:
            scheduler.add(0, range(5, 18), GREEDY)
            scheduler.add(1, [7, 8], SamplingParams(seed=4, max_tokens=50))
        expected, got = (
            run(executor, scheduler, 8)
            for executor, scheduler in zip((alone, fleet), schedulers, strict=True)
        )
        assert [o.sampled_token_ids for o in got] == [o.sampled_token_ids for o in expected]

        wrong = SchedulerOutput(step_id=99, rows=[6], num_scheduled_tokens=[1])
        with pytest.raises(StepError, match="row 6, which holds no request"):
            fleet.sample(fleet.execute(wrong)).result(20)
        assert run(fleet, schedulers[1], 1)[0].sampled_token_ids
        with pytest.raises(WorkerError, match="worker 0: workers have no method 'nonsense'"):
            fleet.collective_rpc("nonsense")
        assert not causes

        pids = pids_of(fleet)
        os.kill(pids[1], signal.SIGKILL)
        lost = fleet.sample(fleet.execute(schedulers[1].step()))
        with pytest.raises(WorkerError, match=rf"worker 1 \(pid {pids[1]}\) was killed by SIGKILL"):
            lost.result(5)
        assert told.wait(5)
        assert len(causes) == 1
        with pytest.raises(WorkerError, match="SIGKILL"):
            fleet.collective_rpc("ping")
        wait_until_gone(pids)
    finally:
        alone.shutdown()
        fleet.shutdown()
        fleet.shutdown()


@pytest.mark.slow
def test_key_value_heads_are_repeated_where_ranks_are_more(tmp_path):
    checkpoint = Checkpoint.make(tmp_path, num_key_value_heads=1)
    outputs = []
    for kind, size in ((UniExecutor, 1), (MpExecutor, 2)):
        executor = make(kind, checkpoint, tensor_parallel_size=size)
        executor.start()
        scheduler = prepare(executor)
        scheduler.add(0, range(5, 18), GREEDY)
        outputs.append([o.sampled_token_ids for o in run(executor, scheduler, 6)])
        pids = pids_of(executor) if kind is MpExecutor else []
        executor.shutdown()
        wait_until_gone(pids)
    assert outputs[0] == outputs[1]


@pytest.mark.slow
def test_a_step_that_fails_on_one_rank_alone_ends_the_fleet(checkpoint, monkeypatch):
    monkeypatch.setattr("pegboard.executor.mp._AGREE_S", 1.0)
    fleet = make(MpExecutor, checkpoint, tensor_parallel_size=2, platform="lopsided")
    fleet.start()
    told = threading.Event()
    fleet.on_failure(lambda cause: told.set())
    try:
        scheduler = prepare(fleet)
        scheduler.add(0, [5, 6, 7], GREEDY, request_id="lopsided")
        future = fleet.sample(fleet.execute(scheduler.step()))
        with pytest.raises(WorkerError, match="failed on worker 1 alone: rank 1 has had enough"):
            future.result(20)
        assert told.wait(5)
    finally:
        fleet.shutdown()


def test_a_start_that_fails_repeats_the_first_cause(checkpoint):
    fleet = make(MpExecutor, checkpoint, tensor_parallel_size=1, loader="nothing")
    with pytest.raises(WorkerError, match=r"worker 0: .*nothing"):
        fleet.start()
    fleet.shutdown()


PARENT = """
import os, signal, sys, msgspec
from pegboard.api.plugin import ComponentContext
from pegboard.config.engine import EngineConfig
from pegboard.executor.mp import MpExecutor
config = msgspec.msgpack.decode(open(sys.argv[1], "rb").read(), type=EngineConfig)
executor = MpExecutor(ComponentContext(plugin="builtin", config=config))
executor.start()
print(*executor.collective_rpc("pid"), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_end_when_their_parent_is_killed(checkpoint, tmp_path):
    config = tiny_config(checkpoint, tiny_catalog())
    (tmp_path / "config").write_bytes(msgspec.msgpack.encode(config))
    parent = subprocess.run(
        [sys.executable, "-c", PARENT, str(tmp_path / "config")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert parent.returncode == -signal.SIGKILL, parent.stderr
    wait_until_gone([int(pid) for pid in parent.stdout.split()])
