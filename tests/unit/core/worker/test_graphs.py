"""Captured decode steps on a platform whose graphs are plain calls: same tokens, nothing more."""

from itertools import pairwise

import pytest
import torch
from tests.support.models import Checkpoint
from tests.support.tiny_engine import HandScheduler, one_group, tiny_catalog, tiny_config

from pegboard.api.sampling_params import SamplingParams
from pegboard.worker.graphs import capture_sizes
from pegboard.worker.row_writes import RowWrites
from pegboard.worker.worker import Worker

GREEDY = SamplingParams(temperature=0.0, max_tokens=50)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return Checkpoint.make(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def catalog():
    return tiny_catalog()


def run(checkpoint, catalog, monkeypatch, params, *, captures, steps=9):
    """Run three rows that come and go; return their tokens, and how often a graph ran."""
    worker = Worker(tiny_config(checkpoint, catalog), catalog)
    worker.start()
    runner = worker.model_runner
    replays = []

    def capture(function, pool=None):
        function()
        cells = [cell.cell_contents for cell in function.__closure__]
        outputs = next(cell for cell in cells if isinstance(cell, dict))
        kept = dict(outputs)  # a graph writes the same memory each time

        def replay():
            replays.append(function.__name__)
            function()
            for name, tensor in kept.items():
                if outputs[name] is not tensor:
                    outputs[name] = tensor.copy_(outputs[name])

        return replay

    platform = worker._platform
    monkeypatch.setattr(platform, "capture_graph", capture, raising=False)
    monkeypatch.setattr(platform, "supports_graphs", lambda: True, raising=False)
    monkeypatch.setattr(runner, "_can_capture", lambda: captures)
    scheduler = HandScheduler()
    worker.initialize_kv(one_group(runner.kv_needs()), scheduler.num_blocks)
    replays.clear()
    output = {}
    for row, length in ((1, 5), (4, 9), (6, 2)):
        scheduler.add(row, [7 * row + i for i in range(length)], params)
    for turn in range(steps):
        step = scheduler.step()
        made = runner.sample(runner.execute(step))
        assert not made.faults
        for row, tokens in zip(step.rows, made.sampled_token_ids, strict=True):
            output.setdefault(row, []).extend(tokens)
        if turn == 4:
            scheduler.finish(4)
    worker.shutdown()
    return output, replays


def test_captured_steps_give_the_same_greedy_tokens(checkpoint, catalog, monkeypatch):
    expected, none = run(checkpoint, catalog, monkeypatch, GREEDY, captures=False)
    got, replays = run(checkpoint, catalog, monkeypatch, GREEDY, captures=True)
    assert not none
    assert got == expected
    assert replays == ["forward", "greedy"] * 8


def test_random_rows_are_sampled_behind_the_captured_step(checkpoint, catalog, monkeypatch):
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=50, logprobs=1)
    expected, _ = run(checkpoint, catalog, monkeypatch, params, captures=False)
    got, replays = run(checkpoint, catalog, monkeypatch, params, captures=True)
    assert got == expected
    assert replays == ["forward"] * 8


def test_sizes_reach_the_batch_and_waste_at_most_a_quarter():
    for largest in (1, 7, 64, 256):
        sizes = capture_sizes(largest)
        assert sizes == sorted(set(sizes))
        assert sizes[-1] == largest
        assert all(b - a <= max(1, b / 4) for a, b in pairwise(sizes))


def test_row_writes_are_sent_once_and_leave_the_rest_to_the_device():
    matrix = torch.zeros(4, 6, dtype=torch.int32)
    writes = RowWrites(matrix)
    writes.write(1, 2, [5, 6])
    writes.write(1, 4, 9)
    writes.write(3, 0, 7, count=2)
    writes.flush()
    assert matrix.tolist() == [[0] * 6, [0, 0, 5, 6, 9, 0], [0] * 6, [7, 7, 0, 0, 0, 0]]
    matrix[1, 3] = 1
    writes.write(2, 0, [8])
    writes.forget(2)
    writes.flush()
    assert matrix[1].tolist() == [0, 0, 5, 1, 9, 0]
    assert matrix[2].tolist() == [0] * 6
