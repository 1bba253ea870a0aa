"""The runner on a tiny Llama: equal to transformers however a sequence is cut into steps."""

import random

import pytest
import torch
from tests.support.models import Checkpoint
from tests.support.tiny_engine import HandScheduler, one_group, tiny_catalog, tiny_config

from pegboard.api.errors import StepError
from pegboard.api.messages import SchedulerOutput
from pegboard.api.sampling_params import SamplingParams
from pegboard.kv.planning import plan_groups
from pegboard.worker.worker import Worker

GREEDY = SamplingParams(temperature=0.0, max_tokens=50)
HYBRID = ["sliding_attention", "full_attention"] * 2


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return Checkpoint.make(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def catalog():
    return tiny_catalog()


class Driver:
    """A worker and a hand-made scheduler; `output` collects what rows got."""

    def __init__(self, checkpoint, catalog, **changes):
        self.worker = Worker(tiny_config(checkpoint, catalog, **changes), catalog)
        self.worker.start()
        self.runner = self.worker.model_runner
        self.scheduler = HandScheduler()
        self.worker.initialize_kv(one_group(self.runner.kv_needs()), self.scheduler.num_blocks)
        self.output = {}
        self.last = None

    def step(self, limits=None):
        step = self.scheduler.step(limits)
        self.last = self.runner.sample(self.runner.execute(step))
        assert self.last.step_id == step.step_id
        for row, tokens in zip(step.rows, self.last.sampled_token_ids, strict=True):
            self.output.setdefault(row, []).extend(tokens)
        return step


@pytest.fixture
def driver(checkpoint, catalog):
    driver = Driver(checkpoint, catalog)
    yield driver
    driver.worker.shutdown()


def prompt_of(length):
    return [random.randrange(3, 199) for _ in range(length)]


def check_greedy(checkpoint, prompt, output):
    """Each token is transformers' most likely one, or as good as that within rounding."""
    assert output
    logits = checkpoint.logits([*prompt, *output])[len(prompt) - 1 : -1]
    chosen = logits[torch.arange(len(output)), torch.tensor(output)]
    assert (logits.max(1).values - chosen).max() < 1e-3


def test_greedy_tokens_are_transformers_own_in_a_mixed_batch(checkpoint, driver):
    prompts = {row: prompt_of(length) for row, length in enumerate((1, 3, 4, 5, 17, 40))}
    for row, prompt in prompts.items():
        driver.scheduler.add(row, prompt, GREEDY)
    for _ in range(12):
        driver.step()
    for row, prompt in prompts.items():
        assert len(driver.output[row]) == 12
        check_greedy(checkpoint, prompt, driver.output[row])


def test_chunks_of_any_size_give_the_same_tokens(checkpoint, driver):
    prompt, other = prompt_of(23), prompt_of(6)
    driver.scheduler.add(2, prompt, GREEDY)
    driver.scheduler.add(0, other, GREEDY)
    while not driver.output.get(2):
        driver.step({2: random.randrange(1, 6), 0: random.randrange(0, 4)})
    for _ in range(5):
        driver.step()
    check_greedy(checkpoint, prompt, driver.output[2])
    check_greedy(checkpoint, other, driver.output[0])


def test_a_preempted_row_goes_on_where_it_was_in_another_row(checkpoint, driver):
    prompt = prompt_of(9)
    driver.scheduler.add(1, prompt, GREEDY)
    for _ in range(4):
        driver.step()
    first = driver.output.pop(1)
    driver.scheduler.finish(1, preempted=True)
    driver.scheduler.add(1, prompt_of(30), GREEDY)
    driver.scheduler.add(5, prompt, GREEDY, output=first)
    for _ in range(4):
        driver.step()
    check_greedy(checkpoint, prompt, [*first, *driver.output[5]])


def test_a_seeded_row_survives_preemption(driver):
    params = SamplingParams(temperature=1.0, seed=9, max_tokens=50)
    prompt = prompt_of(7)
    driver.scheduler.add(0, prompt, params)
    for _ in range(8):
        driver.step()
    whole = driver.output.pop(0)
    driver.scheduler.finish(0)
    driver.scheduler.add(3, prompt, params)
    for _ in range(3):
        driver.step()
    half = driver.output.pop(3)
    driver.scheduler.finish(3, preempted=True)
    driver.scheduler.add(0, prompt, params, output=half)
    for _ in range(5):
        driver.step()
    assert [*half, *driver.output[0]] == whole


@pytest.mark.parametrize("chunk", [100, 1, 5])
def test_prompt_logprobs_are_whole_however_the_prompt_is_cut(checkpoint, driver, chunk):
    prompt = prompt_of(14)
    params = SamplingParams(temperature=0.0, max_tokens=5, prompt_logprobs=2)
    listed = SamplingParams(temperature=0.0, prompt_logprob_token_ids=[4, 90])
    later = SamplingParams(temperature=0.0, prompt_logprobs=0, prompt_logprob_start=6)
    for row, p in enumerate((params, listed, later)):
        driver.scheduler.add(row, prompt, p)
    entries = {0: [], 1: [], 2: []}
    while not driver.output.get(0):
        driver.step(dict.fromkeys(entries, chunk))
        for row, more in driver.last.prompt_logprobs.items():
            entries[row] += more
    expected = checkpoint.logits(prompt).log_softmax(-1)
    assert [len(entries[row]) for row in entries] == [13, 13, 8]
    for position, entry in enumerate(entries[0]):
        numbers = expected[position]
        assert entry.token_ids[0] == prompt[position + 1]
        assert entry.token_ids[1:] == numbers.topk(2).indices.tolist()
        assert torch.allclose(torch.tensor(entry.logprobs), numbers[entry.token_ids], atol=1e-4)
        assert entry.ranks[0] == 1 + (numbers > numbers[prompt[position + 1]]).sum()
    for position, entry in enumerate(entries[1]):
        assert sorted(entry.token_ids[1:]) == [4, 90]
        numbers = expected[position][entry.token_ids]
        assert torch.allclose(torch.tensor(entry.logprobs), numbers, atol=1e-4)
    assert [entry.token_ids for entry in entries[2]] == [[t] for t in prompt[6:]]


def test_logprobs_come_for_the_rows_that_ask(checkpoint, driver):
    prompt = prompt_of(5)
    driver.scheduler.add(0, prompt, GREEDY)
    driver.scheduler.add(1, prompt, SamplingParams(temperature=0.0, logprobs=4))
    driver.step()
    assert list(driver.last.logprobs) == [1]
    (entry,) = driver.last.logprobs[1]
    expected = checkpoint.logits(prompt)[-1].log_softmax(0)
    assert torch.allclose(torch.tensor(entry.logprobs), expected[entry.token_ids], atol=1e-4)


def test_a_row_past_its_tokens_or_without_a_request_is_refused(driver):
    driver.scheduler.add(0, prompt_of(5), GREEDY)
    step = driver.scheduler.step()
    driver.runner.sample(driver.runner.execute(step))
    for rows, count, message in (([0], 2, "up to token 7; it has 6"), ([3], 1, "holds no request")):
        bad = SchedulerOutput(step_id=2, rows=rows, num_scheduled_tokens=[count])
        with pytest.raises(StepError, match=message):
            driver.runner.execute(bad)


def test_a_forward_pass_that_raises_fails_its_step_and_no_later_one(checkpoint, driver):
    driver.scheduler.add(0, prompt_of(5), GREEDY)
    driver.step()
    broken = driver.scheduler.step()
    real = driver.runner.model
    driver.runner.model = None
    with pytest.raises(StepError, match="TypeError"):
        driver.runner.execute(broken)
    driver.runner.model = real
    driver.scheduler.finish(0)
    prompt = prompt_of(8)
    driver.output.clear()
    driver.scheduler.add(0, prompt, GREEDY)
    for _ in range(3):
        driver.step()
    check_greedy(checkpoint, prompt, driver.output[0])


def test_what_was_never_written_does_not_reach_a_token(checkpoint, driver):
    with torch.inference_mode():
        for layer in range(3):
            for tensor in driver.runner.attention.cache.layer(layer):
                tensor.fill_(torch.nan)
    prompt = prompt_of(6)
    driver.scheduler.add(0, prompt, GREEDY)
    driver.scheduler.add(1, prompt_of(30), GREEDY)
    for _ in range(4):
        driver.step()
    assert not driver.last.faults
    check_greedy(checkpoint, prompt, driver.output[0])


def test_memory_is_measured_and_exact_bytes_are_taken_as_they_are(checkpoint, catalog, driver):
    parameters = sum(p.nbytes for p in set(checkpoint.model.parameters()))
    ledger = driver.worker.memory()
    assert parameters <= ledger["weights_bytes"] < 1.5 * parameters
    assert ledger["kv_bytes"] == 3 * driver.scheduler.num_blocks * 4 * 2 * 2 * 8 * 4
    assert 0 < driver.worker.available_kv_bytes() < (1 << 29)
    assert driver.worker.memory()["activations_bytes"] > 0
    exact = Worker(tiny_config(checkpoint, catalog, kv_cache_memory_bytes=4096), catalog)
    assert exact.available_kv_bytes() == 4096


def test_a_sliding_window_model_runs_with_groups_over_one_memory(catalog, tmp_path):
    checkpoint = Checkpoint.make(tmp_path, "mistral")
    driver = Driver(checkpoint, catalog)
    prompt = prompt_of(25)
    driver.scheduler.add(0, prompt, GREEDY)
    for limit in (7, 7, 100, 1, 1, 1):
        driver.step({0: limit})
    check_greedy(checkpoint, prompt, driver.output[0])
    driver.worker.shutdown()


def test_layers_that_see_everything_and_layers_that_do_not_share_one_memory(catalog, tmp_path):
    checkpoint = Checkpoint.make(tmp_path, "gemma3", num_hidden_layers=4, layer_types=HYBRID)
    worker = Worker(tiny_config(checkpoint, catalog), catalog)
    worker.start()
    runner = worker.model_runner
    groups = plan_groups(runner.kv_needs(), 4)
    assert len(groups) == 2
    scheduler = HandScheduler(num_groups=2)
    worker.initialize_kv(groups, scheduler.num_blocks)
    prompts = {0: prompt_of(25), 4: prompt_of(3)}
    output = {row: [] for row in prompts}
    for row, prompt in prompts.items():
        scheduler.add(row, prompt, GREEDY)
    for limit in (7, 9, 100, 1, 1, 1):
        step = scheduler.step({0: limit})
        got = runner.sample(runner.execute(step)).sampled_token_ids
        for row, tokens in zip(step.rows, got, strict=True):
            output[row] += tokens
    for row, prompt in prompts.items():
        check_greedy(checkpoint, prompt, output[row])
    worker.shutdown()


def test_a_row_may_fill_the_model_and_run_one_token_ahead(checkpoint, driver):
    prompt = prompt_of(125)
    driver.scheduler.add(0, prompt, GREEDY)
    for _ in range(4):
        driver.step()
    assert len(prompt) + len(driver.output[0]) == 129
    check_greedy(checkpoint, prompt, driver.output[0])
