"""`platform bench throughput` and `platform bench latency`: through LLM, in this process."""

import argparse
import contextlib
import random
import secrets
import signal
import statistics
import time
from collections.abc import Iterator
from typing import Any

from pegboard.api.engine import TokensPrompt
from pegboard.api.errors import ConfigError
from pegboard.api.outputs import RequestOutput
from pegboard.api.sampling_params import SamplingParams
from pegboard.cli.bench_figures import percentile
from pegboard.cli.flags import engine_options
from pegboard.engine.llm import LLM

__all__ = ["run_latency", "run_throughput"]

_PERCENTS = (10, 25, 50, 75, 90, 99)


def run_throughput(args: argparse.Namespace) -> dict[str, Any]:
    """Complete all prompts at once.

    Raises:
        ConfigError: lengths do not fit the model, or the time limit came first.
    """
    seed, rng = _rng(args)
    with (
        LLM(options=engine_options(args, args.invocation.environment)) as llm,
        _within(args.time_limit),
    ):
        prompts = _prompts(rng, llm, args.num_prompts, args.input_len, args.output_len)
        llm.generate(_prompts(rng, llm, 1, args.input_len, args.output_len), _sampling(2))
        start = time.perf_counter()
        outputs = llm.generate(prompts, _sampling(args.output_len))
        elapsed_s = time.perf_counter() - start
        model = _model_name(llm)
    num_output = sum(len(output.outputs[0].token_ids) for output in outputs)
    num_all = num_output + args.num_prompts * args.input_len
    return {
        "benchmark": "throughput",
        "label": args.label,
        "model": model,
        "seed": seed,
        "elapsed_time": elapsed_s,
        "duration": elapsed_s,
        "num_requests": args.num_prompts,
        "completed": len(outputs),
        "total_num_tokens": num_all,
        "total_output_tokens": num_output,
        "requests_per_second": args.num_prompts / elapsed_s,
        "request_throughput": args.num_prompts / elapsed_s,
        "tokens_per_second": num_all / elapsed_s,
        "total_token_throughput": num_all / elapsed_s,
        "output_throughput": num_output / elapsed_s,
    }


def run_latency(args: argparse.Namespace) -> dict[str, Any]:
    """Complete one batch after another.

    Raises:
        ConfigError: lengths do not fit the model, or the time limit came first.
    """
    seed, rng = _rng(args)
    latencies: list[float] = []
    decode: list[float] = []
    first_s: list[float] = []
    with (
        LLM(options=engine_options(args, args.invocation.environment)) as llm,
        _within(args.time_limit),
    ):
        for number in range(args.num_iters_warmup + args.num_iters):
            prompts = _prompts(rng, llm, args.batch_size, args.input_len, args.output_len)
            began = time.time()
            start = time.perf_counter()
            outputs = llm.generate(prompts, _sampling(args.output_len))
            elapsed_s = time.perf_counter() - start
            if number >= args.num_iters_warmup:
                latencies.append(elapsed_s)
                _add_phases(outputs, began, decode, first_s)
        model = _model_name(llm)
    record = {
        "benchmark": "latency",
        "label": args.label,
        "model": model,
        "seed": seed,
        "batch_size": args.batch_size,
        "avg_latency": statistics.fmean(latencies),
        "latencies": latencies,
        "percentiles": {str(p): percentile(latencies, p) for p in _PERCENTS},
    }
    if decode:
        record["batch_decode_throughput"] = statistics.median(decode)
        record["batch_ttft_ms"] = statistics.median(first_s) * 1e3
    return record


def _add_phases(
    outputs: list[RequestOutput], began: float, decode: list[float], first_s: list[float]
) -> None:
    """Add a batch's decode rate, over the time from its first token, and its last first token.

    With prompts that fit one step the first tokens come together, and the rate is that of
    decoding with the whole batch.
    """
    metrics = [output.metrics for output in outputs if output.metrics is not None]
    if not metrics:
        return
    last_first = max(one.first_token_ts for one in metrics)
    last = max(one.last_token_ts for one in metrics)
    tokens = sum(len(output.outputs[0].token_ids) - 1 for output in outputs)
    first_s.append(last_first - began)
    if last > last_first:
        decode.append(tokens / (last - min(one.first_token_ts for one in metrics)))


@contextlib.contextmanager
def _within(limit_s: float) -> Iterator[None]:
    """End what is inside after `limit_s`, wherever it waits.

    Raises:
        ConfigError: the limit came.
    """

    def expired(number: int, frame: object) -> None:
        raise ConfigError(f"stopped at the time limit of {limit_s:g} s (--time-limit)")

    previous = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _rng(args: argparse.Namespace) -> tuple[int, random.Random]:
    seed = secrets.randbits(32) if args.prompt_seed is None else args.prompt_seed
    return seed, random.Random(seed)  # noqa: S311 -- prompts, not secrets


def _sampling(max_tokens: int) -> SamplingParams:
    return SamplingParams(
        temperature=0.0, max_tokens=max_tokens, ignore_eos=True, output_kind="final"
    )


def _prompts(
    rng: random.Random, llm: LLM, count: int, input_len: int, output_len: int
) -> list[TokensPrompt]:
    """Return prompts of random ids from the middle of the vocabulary."""
    model = llm.engine.frontend.config.model
    if input_len + output_len > model.max_model_len:
        raise ConfigError(
            f"--input-len {input_len} and --output-len {output_len} exceed the context of "
            f"{model.max_model_len} tokens"
        )
    vocab = model.description.vocab_size
    return [
        TokensPrompt(
            prompt_token_ids=[rng.randrange(vocab // 4, vocab // 2) for _ in range(input_len)]
        )
        for _ in range(count)
    ]


def _model_name(llm: LLM) -> str:
    return llm.engine.frontend.config.model.served_model_name[0]
