"""The sampler against a plain reference that takes one row at a time."""

import math
import random
from collections import Counter

import numpy as np
import pytest
import torch
from tests.support.models import reference_ops
from tests.unit.core.sampling.test_draw import plain_draw
from tests.unit.core.sampling.test_filters import plain_keep

from pegboard.api.messages import NewRequest
from pegboard.api.sampling import LogitsProcessor
from pegboard.api.sampling_params import SamplingParams
from pegboard.sampling.philox import STREAM_SAMPLE, philox_uniform
from pegboard.sampling.processors import NamedProcessor, ProcessorChain
from pegboard.sampling.sampler import Sampler

VOCAB = 300
ROWS = 8
WIDTH = 64


class Batch:
    """What the sampler reads of the persistent batch."""

    def __init__(self):
        self.token_ids = torch.zeros((ROWS, WIDTH), dtype=torch.int32)
        self.num_tokens = torch.zeros(ROWS, dtype=torch.int32)
        self.num_prompt_tokens = torch.zeros(ROWS, dtype=torch.int32)


class Bench:
    """A sampler, its batch, and what a plain reference knows of each row."""

    def __init__(self, **options):
        self.sampler = Sampler(
            max_num_rows=ROWS,
            vocab_size=VOCAB,
            device=torch.device("cpu"),
            ops=reference_ops(),
            **options,
        )
        self.batch = Batch()
        self.requests = {}
        self.output = {}

    def add(self, row, params, prompt=(5, 6, 7), output=(), eos=()):
        request = NewRequest(
            request_id=f"r{row}",
            row=row,
            token_ids=[*prompt, *output],
            num_prompt_tokens=len(prompt),
            num_computed_tokens=0,
            sampling=params,
            eos_token_ids=list(eos),
            block_ids=[],
        )
        self.requests[row], self.output[row] = request, list(output)
        count = len(request.token_ids)
        self.batch.token_ids[row, :count] = torch.tensor(request.token_ids)
        self.batch.num_tokens[row] = count
        self.batch.num_prompt_tokens[row] = len(prompt)
        self.sampler.add_row(request)

    def step(self, logits, rows):
        outputs = [len(self.output[row]) for row in rows]
        sampled = self.sampler.sample(logits.clone(), np.array(rows, np.int64), outputs, self.batch)
        for row, token in zip(rows, sampled.token_ids.tolist(), strict=True):
            self.output[row].append(token)
            self.batch.token_ids[row, self.batch.num_tokens[row]] = token
            self.batch.num_tokens[row] += 1
        return sampled


def plain_process(logits, request, output):
    """Masks, bias, bad words and penalties of one row, in python."""
    p, values = request.sampling, logits.double().tolist()
    if p.allowed_token_ids is not None:
        allowed = set(p.allowed_token_ids)
        values = [v if i in allowed else -math.inf for i, v in enumerate(values)]
    if len(output) < p.min_tokens:
        for end in {*request.eos_token_ids, *p.stop_token_ids}:
            values[end] = -math.inf
    for token, bias in (p.logit_bias or {}).items():
        values[token] += bias
    for word in p.bad_words_token_ids:
        head = word[:-1]
        if len(output) >= len(head) and output[len(output) - len(head) :] == head:
            values[word[-1]] = -math.inf
    counts = Counter(output)
    seen = {*counts, *request.token_ids[: request.num_prompt_tokens]}
    for token in seen:
        value = values[token]
        factor = p.repetition_penalty
        values[token] = value / factor if value > 0 else value * factor
    for token, count in counts.items():
        values[token] -= p.frequency_penalty * count + p.presence_penalty
    return torch.tensor(values, dtype=torch.float64).float()


def plain_token(logits, request, output):
    """The token of one row, its processed logits, and how near to a boundary it was drawn."""
    p = request.sampling
    processed = plain_process(logits, request, output)
    if p.is_greedy:
        top = processed.topk(2).values
        return int(processed.argmax()), processed, (top[0] - top[1]).item()
    processed = processed / p.temperature
    kept = plain_keep(processed, p.top_k, p.top_p, p.min_p)
    mask = torch.ones(VOCAB, dtype=torch.bool)
    mask[list(kept)] = False
    processed = processed.masked_fill(mask, -torch.inf)
    uniform = philox_uniform(
        torch.tensor([p.seed]), torch.tensor([len(output)]), STREAM_SAMPLE
    ).item()
    edges = processed.double().softmax(0).cumsum(0)
    return plain_draw(processed, uniform), processed, (edges - uniform).abs().min().item()


def random_params(rng):
    def maybe(value, default):
        return value if rng.random() < 0.4 else default

    tokens = [rng.randrange(VOCAB) for _ in range(6)]
    return SamplingParams(
        temperature=rng.choice([0.0, 0.0, 0.5, 1.0, 1.7]),
        seed=rng.randrange(-(2**63), 2**63),
        top_k=maybe(rng.randrange(1, 40), 0),
        top_p=maybe(rng.uniform(0.2, 1.0), 1.0),
        min_p=maybe(rng.uniform(0.0, 0.3), 0.0),
        repetition_penalty=maybe(rng.uniform(0.6, 1.8), 1.0),
        presence_penalty=maybe(rng.uniform(-2, 2), 0.0),
        frequency_penalty=maybe(rng.uniform(-2, 2), 0.0),
        logit_bias=maybe({t: rng.uniform(-5, 5) for t in tokens}, None),
        allowed_token_ids=maybe([rng.randrange(VOCAB) for _ in range(40)], None),
        bad_words_token_ids=maybe([[t] for t in tokens[:2]] + [tokens[2:4], tokens[2:5]], []),
        min_tokens=maybe(4, 0),
        stop_token_ids=tokens[4:],
        max_tokens=30,
    )


@pytest.mark.parametrize("attempt", range(6))
def test_equals_a_plain_reference_row_by_row_while_rows_come_and_go(attempt):
    rng = random.Random()
    bench = Bench()
    compared = 0
    for _ in range(25):
        for row in range(ROWS):
            if row not in bench.output or rng.random() < 0.15:
                prompt = [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 20))]
                output = [rng.randrange(VOCAB) for _ in range(rng.choice([0, 0, 5]))]
                bench.add(row, random_params(rng), prompt, output, eos=[rng.randrange(VOCAB)])
        rows = rng.sample(range(ROWS), rng.randrange(1, ROWS + 1))
        # Few distinct tokens are likely, so that penalties and words matter.
        logits = torch.randn(len(rows), VOCAB)
        logits[:, torch.randint(0, VOCAB, (10,))] += 4
        before = {row: list(bench.output[row]) for row in rows}
        sampled = bench.step(logits, rows)
        for line, row in enumerate(rows):
            token, _, margin = plain_token(logits[line], bench.requests[row], before[row])
            if margin > 1e-4:
                compared += 1
                assert sampled.token_ids[line] == token, bench.requests[row].sampling
    assert compared > 60


def test_greedy_rows_take_the_greatest_and_logits_stay_as_they_were():
    bench = Bench()
    for row in range(4):
        bench.add(row, SamplingParams(temperature=0.0))
    logits = torch.randn(4, VOCAB)
    kept = logits.clone()
    sampled = bench.sampler.sample(logits, np.arange(4), [0] * 4, bench.batch)
    assert torch.equal(sampled.token_ids, kept.argmax(1))
    assert torch.equal(logits, kept)


def test_a_row_draws_the_same_in_any_row_batch_and_after_preemption():
    params = SamplingParams(temperature=1.0, seed=77, max_tokens=30)
    logits = torch.randn(6, VOCAB)
    alone, crowded = Bench(), Bench()
    alone.add(0, params)
    for step in range(6):
        alone.step(logits[step : step + 1], [0])
    crowded.add(3, params)
    crowded.add(1, SamplingParams(temperature=0.7, seed=1))
    for step in range(3):
        crowded.step(torch.stack((torch.randn(VOCAB), logits[step])), [1, 3])
    crowded.sampler.remove_row(3)
    crowded.add(6, params, output=crowded.output[3])
    for step in range(3, 6):
        crowded.step(torch.stack((logits[step], torch.randn(VOCAB))), [6, 1])
    assert crowded.output[6] == alone.output[0]


def test_a_reused_row_keeps_nothing_of_the_one_before():
    bench = Bench()
    bench.add(
        2,
        SamplingParams(
            temperature=0.0,
            repetition_penalty=2.0,
            presence_penalty=2.0,
            logit_bias={9: 100.0},
            allowed_token_ids=[9, 10],
            bad_words_token_ids=[[9]],
            min_tokens=5,
            max_tokens=9,
            logprobs=2,
        ),
        eos=[11],
    )
    bench.step(torch.zeros(1, VOCAB), [2])
    bench.add(2, SamplingParams(temperature=0.0), prompt=(9, 10, 11))
    for favourite in (5, 9, 10, 11, 200):
        logits = torch.zeros(1, VOCAB)
        logits[0, favourite] = 0.5
        sampled = bench.step(logits, [2])
        assert sampled.token_ids.tolist() == [favourite]
        assert sampled.logprobs is None


def test_rows_without_finite_logits_fail_alone():
    bench = Bench()
    bench.add(0, SamplingParams(temperature=0.0))
    bench.add(1, SamplingParams(temperature=1.0, seed=1))
    bench.add(2, SamplingParams(temperature=0.0, allowed_token_ids=[4], bad_words_token_ids=[[4]]))
    bench.add(3, SamplingParams(temperature=1.0, seed=1))
    logits = torch.randn(4, VOCAB)
    logits[0, 7] = torch.nan
    logits[1, 7] = torch.inf
    sampled = bench.step(logits, [0, 1, 2, 3])
    assert sampled.faulty.tolist() == [True, True, True, False]


MODES = ["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"]


@pytest.mark.parametrize("mode", MODES)
def test_logprobs_say_what_the_mode_says(mode):
    bench = Bench(logprobs_mode=mode)
    bias = {3: 4.0}
    cases = {
        0: SamplingParams(temperature=0.0, logprobs=3, logit_bias=bias),
        1: SamplingParams(temperature=0.0),
        2: SamplingParams(temperature=0.8, seed=3, top_k=5, logprobs=0),
        5: SamplingParams(temperature=0.0, logprob_token_ids=[8, 3, 250]),
        6: SamplingParams(temperature=0.0, logprobs=-1),
    }
    for row, params in cases.items():
        bench.add(row, params)
    rows = list(cases)
    logits = torch.randn(len(rows), VOCAB)
    sampled = bench.step(logits, rows)
    assert sampled.logprob_rows == [0, 2, 5, 6]
    for row, entry in zip(sampled.logprob_rows, sampled.logprobs.to_host(), strict=True):
        line = rows.index(row)
        numbers = logits[line]
        if mode.startswith("processed"):
            numbers = plain_token(logits[line], bench.requests[row], [])[1]
        ranked = numbers.argsort(descending=True).tolist()
        reported = numbers.log_softmax(0) if mode.endswith("logprobs") else numbers
        token = sampled.token_ids[line].item()
        p = cases[row]
        if p.logprob_token_ids:
            others = sorted(p.logprob_token_ids, key=ranked.index)
        else:
            others = ranked[: VOCAB if p.logprobs == -1 else p.logprobs]
        assert entry.token_ids == [token, *others]
        assert torch.allclose(torch.tensor(entry.logprobs), reported[entry.token_ids], atol=1e-5)
        assert entry.ranks == [ranked.index(t) + 1 for t in entry.token_ids]


def test_equal_numbers_share_a_rank():
    bench = Bench()
    bench.add(0, SamplingParams(temperature=0.0, logprobs=4))
    logits = torch.zeros(1, VOCAB)
    logits[0, [10, 20]] = 2.0
    logits[0, 30] = 3.0
    (entry,) = bench.step(logits, [0]).logprobs.to_host()
    assert entry.token_ids[:2] == [30, 30]
    assert set(entry.token_ids[2:4]) == {10, 20}
    assert entry.ranks == [1, 1, 2, 2, 4]


class Shift(LogitsProcessor):
    """Adds to one token's logit, as `extra_args` asks."""

    def __init__(self):
        self.rows = {}
        self.calls = 0

    def add_row(self, row, params, token_ids, num_prompt_tokens):
        wish = (params.extra_args or {}).get("shift")
        if wish is not None:
            self.rows[row] = wish
        return wish is not None

    def remove_row(self, row):
        self.rows.pop(row, None)

    def apply(self, logits, rows, batch):
        self.calls += 1
        for line, row in enumerate(rows.tolist()):
            if row in self.rows:
                if self.rows[row] == "fail":
                    raise RuntimeError("as asked")
                logits[line, self.rows[row]] += 50


@pytest.mark.parametrize("argmax_invariant", [True, False])
def test_logits_processors_are_called_for_rows_that_ask(argmax_invariant):
    shift = Shift()
    named = NamedProcessor("shift", "test", shift, argmax_invariant)
    bench = Bench(processors=ProcessorChain([named]))
    bench.add(0, SamplingParams(temperature=1.0, seed=1))
    bench.add(1, SamplingParams(temperature=1.0, seed=1, extra_args={"shift": 33}))
    bench.step(torch.zeros(1, VOCAB), [0])
    assert shift.calls == 0
    assert bench.step(torch.zeros(2, VOCAB), [0, 1]).token_ids[1] == 33
    bench.add(1, SamplingParams(temperature=0.0, extra_args={"shift": 33}))
    bench.step(torch.zeros(1, VOCAB), [1])
    assert shift.calls == (1 if argmax_invariant else 2)


def test_a_raising_logits_processor_fails_only_rows_that_use_it():
    bench = Bench(processors=ProcessorChain([NamedProcessor("shift", "test", Shift(), False)]))
    bench.add(0, SamplingParams(temperature=0.0))
    bench.add(4, SamplingParams(temperature=0.0, extra_args={"shift": "fail"}))
    sampled = bench.step(torch.randn(2, VOCAB), [0, 4])
    assert list(sampled.faults) == [4]
    assert "shift of plugin test raised: as asked" in sampled.faults[4]


def test_a_grammar_mask_leaves_only_what_it_allows():
    bench = Bench()
    bench.add(0, SamplingParams(temperature=0.0))
    bench.add(1, SamplingParams(temperature=0.0))
    logits = torch.randn(2, VOCAB)
    masks = np.zeros((1, -(-VOCAB // 32)), np.int32)
    masks[0, 77 // 32] = 1 << (77 % 32)
    sampled = bench.sampler.sample(
        logits.clone(), np.array([0, 1]), [0, 0], bench.batch, ([1], masks)
    )
    assert sampled.token_ids.tolist() == [logits[0].argmax().item(), 77]
