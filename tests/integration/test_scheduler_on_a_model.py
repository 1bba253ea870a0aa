"""The real scheduler over the real runner and a tiny model: the same text however it is cut up."""

import random
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.support.models import Checkpoint
from tests.support.scheduling import make_kv, make_request, make_scheduler
from tests.support.tiny_engine import tiny_catalog, tiny_config

from pegboard.api.messages import EngineCoreRequest
from pegboard.catalog import Catalog
from pegboard.kv.planning import plan_groups
from pegboard.scheduler.scheduler import Scheduler
from pegboard.worker.worker import Worker

MAX_MODEL_LEN = 64
NUM_OUTPUT_TOKENS = 16


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return tiny_catalog()


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Checkpoint:
    folder: Path = tmp_path_factory.mktemp(request.param)
    overrides = {"sliding_window": 6} if request.param == "gemma3" else {}
    return Checkpoint.make(folder, request.param, **overrides)


class Loop:
    """One worker and one scheduler, up to `depth` steps ahead of what is known."""

    def __init__(
        self, checkpoint: Checkpoint, catalog: Catalog, *, depth: int, spare: int, **options: object
    ) -> None:
        caching = bool(options.pop("enable_prefix_caching", True))
        self.worker = Worker(tiny_config(checkpoint, catalog), catalog)
        self.worker.start()
        groups = plan_groups(self.worker.model_runner.kv_needs(), 4)
        # The longest sequence fits alone, beside the null block.
        blocks = 1 + len(groups) * MAX_MODEL_LEN // 4 + spare
        self.num_groups = len(groups)
        self.worker.initialize_kv(groups, blocks)
        kv = make_kv(blocks, groups, enable_prefix_caching=caching)
        self.scheduler: Scheduler = make_scheduler(
            kv, max_steps_in_flight=depth, max_model_len=MAX_MODEL_LEN, **options
        )
        self.depth = depth
        self.tokens: dict[str, list[int]] = {}

    def run(self, requests: list[EngineCoreRequest]) -> None:
        in_flight: deque = deque()
        runner = self.worker.model_runner
        pending = deque(requests)
        while pending or self.scheduler.has_unfinished() or in_flight:
            for _ in range(min(len(pending), random.randint(0, 2))):
                self.scheduler.add(pending.popleft())
            step = self.scheduler.schedule() if len(in_flight) < self.depth else None
            if step is not None:
                # The device is ahead; the scheduler hears of it later.
                in_flight.append((step, runner.sample(runner.execute(step))))
            if in_flight and (step is None or len(in_flight) == self.depth):
                for output in self.scheduler.update(*in_flight.popleft()):
                    assert output.error is None
                    self.tokens.setdefault(output.request_id, []).extend(output.new_token_ids)


def prompts_with_shared_prefixes() -> Iterator[list[int]]:
    # Two that fit side by side at first and not at last.
    yield from ([random.randrange(3, 199) for _ in range(24)] for _ in range(2))
    base = [random.randrange(3, 199) for _ in range(40)]
    for _ in range(5):
        shared = random.choice([0, 13, 24, 33])
        yield base[:shared] + [random.randrange(3, 199) for _ in range(random.randint(1, 9))]


@pytest.mark.parametrize(
    "options",
    [
        {"depth": 1, "spare": 400},
        {"depth": 2, "spare": 400, "enable_prefix_caching": False},
        {"depth": 1, "spare": 3, "max_num_batched_tokens": 6},
        {"depth": 2, "spare": 3, "max_num_batched_tokens": 9},
        {"depth": 2, "spare": 3, "enable_prefix_caching": False, "policy": "priority"},
    ],
    ids=["plenty", "ahead-uncached", "tight-chunked", "tight-ahead", "tight-priority"],
)
def test_greedy_text_is_transformers_own(
    checkpoint: Checkpoint, catalog: Catalog, options: dict[str, object]
) -> None:
    loop = Loop(checkpoint, catalog, **options)
    prompts = {f"r{index}": p for index, p in enumerate(prompts_with_shared_prefixes())}
    try:
        # Twice: the second time most prompts are in the cache.
        for again in ("", "-again"):
            loop.run(
                [
                    make_request(
                        name + again,
                        prompt,
                        max_tokens=NUM_OUTPUT_TOKENS,
                        priority=random.randint(0, 2),
                        arrival_time=float(index),
                    )
                    for index, (name, prompt) in enumerate(prompts.items())
                ]
            )
    finally:
        loop.worker.shutdown()

    for name, prompt in prompts.items():
        for output in (loop.tokens[name], loop.tokens[f"{name}-again"]):
            assert len(output) == NUM_OUTPUT_TOKENS
            # Each token is transformers' most likely one, or as good within rounding.
            logits = checkpoint.logits([*prompt, *output])[len(prompt) - 1 : -1]
            chosen = logits[torch.arange(len(output)), torch.tensor(output)]
            assert (logits.max(1).values - chosen).max() < 1e-3
    stats = loop.scheduler.stats()
    assert loop.scheduler.audit() == []
    assert stats.kv_usage == 0.0
    if options["spare"] == 400 and options.get("enable_prefix_caching", True):
        assert stats.prefix_hits_tokens > 0
    if options["spare"] == 3 and loop.num_groups == 1:
        assert stats.num_preemptions > 0
