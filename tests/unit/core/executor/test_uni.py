"""The in-process executor: order, futures and the end."""

import threading

import pytest
from tests.support.models import Checkpoint
from tests.support.tiny_engine import HandScheduler, one_group, tiny_catalog, tiny_config

from pegboard.api.errors import StepError, WorkerError
from pegboard.api.messages import SchedulerOutput
from pegboard.api.plugin import ComponentContext
from pegboard.api.sampling_params import SamplingParams
from pegboard.executor.uni import UniExecutor

GREEDY = SamplingParams(temperature=0.0, max_tokens=50)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    checkpoint = Checkpoint.make(tmp_path_factory.mktemp("llama"))
    return tiny_config(checkpoint, tiny_catalog())


@pytest.fixture
def executor(config):
    executor = UniExecutor(ComponentContext(plugin="builtin", config=config))
    executor.start()
    yield executor
    executor.shutdown()


def test_platform_brings_its_own_worker(tmp_path):
    config = tiny_config(Checkpoint.make(tmp_path), tiny_catalog(), platform="own_worker")
    executor = UniExecutor(ComponentContext(plugin="builtin", config=config))
    try:
        executor.start()
        assert executor.collective_rpc("name") == ["own worker"]
        assert executor.collective_rpc("ping") == [0]
    finally:
        executor.shutdown()


def prepare(executor):
    scheduler = HandScheduler()
    executor.initialize_kv(one_group(executor.kv_needs()), scheduler.num_blocks)
    return scheduler


def test_steps_queued_before_their_tokens_are_known_give_the_same_tokens(executor):
    scheduler = prepare(executor)
    scheduler.add(0, [5, 6, 7], GREEDY)
    ahead = [executor.sample(executor.execute(scheduler.step())) for _ in range(6)]
    tokens = [future.result(20).sampled_token_ids[0][0] for future in ahead]
    scheduler.finish(0)
    scheduler.add(1, [5, 6, 7], GREEDY)
    one_by_one = []
    for _ in range(6):
        future = executor.sample(executor.execute(scheduler.step()))
        one_by_one += future.result(20).sampled_token_ids[0]
    assert tokens == one_by_one


def test_a_failing_step_comes_out_of_its_future_and_the_next_one_runs(executor):
    scheduler = prepare(executor)
    bad = SchedulerOutput(step_id=1, rows=[4], num_scheduled_tokens=[1])
    failed = executor.sample(executor.execute(bad))
    scheduler.add(0, [5, 6, 7], GREEDY)
    good = executor.sample(executor.execute(scheduler.step()))
    with pytest.raises(StepError, match="holds no request"):
        failed.result(20)
    assert len(good.result(20).sampled_token_ids[0]) == 1


def test_a_start_that_fails_repeats_the_cause(config):
    import msgspec

    broken = msgspec.structs.replace(config, loader="nothing")
    executor = UniExecutor(ComponentContext(plugin="builtin", config=broken))
    with pytest.raises(Exception, match="nothing"):
        executor.start()
    executor.shutdown()


def test_everything_runs_on_one_thread_of_its_own(executor):
    names = {thread.name for thread in threading.enumerate()}
    assert "pegboard-step" in names
    assert executor.collective_rpc("ping", timeout_s=20) == [0]
    (choices,) = executor.collective_rpc("op_choices")
    implementations = {choice["op"]: choice["implementation"] for choice in choices}
    assert implementations["draw_tokens"] == "reference"
    with pytest.raises(WorkerError, match="no method 'nonsense'"):
        executor.collective_rpc("nonsense")


def test_after_shutdown_futures_fail_and_a_second_shutdown_does_nothing(executor):
    scheduler = prepare(executor)
    scheduler.add(0, [5, 6, 7], GREEDY)
    executor.shutdown()
    executor.shutdown()
    future = executor.sample(executor.execute(scheduler.step()))
    with pytest.raises(WorkerError, match="not running"):
        future.result(1)
    assert "pegboard-step" not in {thread.name for thread in threading.enumerate()}
