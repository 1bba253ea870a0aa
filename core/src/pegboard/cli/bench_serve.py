"""`platform bench serve`: named workloads against one server, or two in turn."""

import argparse
import asyncio
import contextlib
import json
import random
import secrets
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from pegboard.api.errors import ConfigError
from pegboard.cli.bench_client import Target, closed_loop, first_model, stream_once
from pegboard.cli.bench_figures import ratios, summarise
from pegboard.cli.bench_memory import MemorySampler
from pegboard.cli.bench_server import ServerProcess
from pegboard.cli.bench_workloads import WORKLOADS, make_prompts, shared_prefix_prompts

__all__ = ["run_serve"]

_WARMUP = (32, 8)


def run_serve(args: argparse.Namespace) -> dict[str, Any]:
    """Run the workload within the time limit and return its record.

    Raises:
        ConfigError: the server does not answer, or options contradict each other.
    """
    try:
        return asyncio.run(_bounded(args))
    except TimeoutError:
        raise ConfigError(f"stopped at the time limit of {args.time_limit:g} s") from None


async def _bounded(args: argparse.Namespace) -> dict[str, Any]:
    async with asyncio.timeout(args.time_limit):
        if args.workload == "coldstart":
            return await _coldstart(args)
        with _server(args) as server:
            return await _Run(args, server).run()


@contextlib.contextmanager
def _server(args: argparse.Namespace) -> Iterator[ServerProcess | None]:
    if args.command is None:
        yield None
        return
    with ServerProcess(args.command) as server:
        yield server


def _target(args: argparse.Namespace, url: str) -> Target:
    try:
        extra = json.loads(args.extra_body)
    except ValueError as error:
        raise ConfigError(f"--extra-body is not JSON: {error}") from error
    if not isinstance(extra, dict):
        raise ConfigError("--extra-body must be a JSON object")
    return Target(
        url,
        model=args.model or "",
        endpoint=args.endpoint,
        api_key=args.api_key,
        extra_body=extra,
        ignore_eos=args.ignore_eos,
        timeout_s=args.request_timeout,
    )


class _Run:
    """One workload against one server, or against two in turn."""

    def __init__(self, args: argparse.Namespace, server: ServerProcess | None) -> None:
        workload = WORKLOADS[args.workload]
        self._args = args
        self._server = server
        self._requests = args.num_prompts or workload.requests
        self._input_len = args.input_len or workload.input_len
        self._output_len = args.output_len or workload.output_len
        self._concurrency = args.max_concurrency or workload.concurrency or self._requests
        self._seed = secrets.randbits(32) if args.prompt_seed is None else args.prompt_seed
        self._rng = random.Random(self._seed)  # noqa: S311 -- prompts, not secrets

    async def run(self) -> dict[str, Any]:
        """Return the record."""
        args = self._args
        target = _target(args, args.base_url)
        await self._reach(target, self._server)
        record: dict[str, Any] = {
            "benchmark": "serve",
            "workload": args.workload,
            "label": args.label,
            "url": args.base_url,
            "endpoint_type": args.endpoint,
            "model": target.model,
            "seed": self._seed,
            "num_prompts": self._requests,
            "max_concurrency": self._concurrency,
        }
        await self._warm(target)
        sampler = self._sampler()
        if args.alternate_url is not None:
            record |= await self._alternate(target)
        elif args.workload == "prefix":
            record["turns"] = await self._twice(target)
        elif args.rounds > 1:
            record["rounds"] = [await self._round(target) for _ in range(args.rounds)]
        else:
            record |= await self._round(target)
        if sampler is not None:
            record |= sampler.finish()
        return record

    async def _reach(self, target: Target, server: ServerProcess | None) -> None:
        if server is not None:
            await server.wait_until_listed(target)
            return
        try:
            target.model = target.model or await first_model(target)
        except (OSError, RuntimeError, ValueError, KeyError, IndexError, EOFError) as error:
            raise ConfigError(f"no server answers at {target.url}: {error}") from error

    def _sampler(self) -> MemorySampler | None:
        pid = self._server.pid if self._server is not None else self._args.server_pid
        if pid is None:
            if self._args.workload == "memory":
                raise ConfigError("the memory workload needs --server-pid or --command")
            return None
        sampler = MemorySampler(pid)
        sampler.start()
        return sampler

    async def _warm(self, target: Target) -> None:
        count = self._args.num_warmups
        words, tokens = _WARMUP
        if count:
            await closed_loop(target, make_prompts(self._rng, count, words), tokens, count)

    def _prompts(self) -> Sequence[str]:
        if self._args.workload == "prefix":
            return shared_prefix_prompts(
                self._rng, self._requests, self._args.prefix_len, self._input_len
            )
        return make_prompts(self._rng, self._requests, self._input_len)

    async def _measure(self, target: Target, prompts: Sequence[str]) -> dict[str, Any]:
        results, wall_s = await closed_loop(target, prompts, self._output_len, self._concurrency)
        return summarise(results, wall_s)

    async def _round(self, target: Target) -> dict[str, Any]:
        return {"url": target.url, **await self._measure(target, self._prompts())}

    async def _twice(self, target: Target) -> dict[str, Any]:
        prompts = self._prompts()
        return {turn: await self._measure(target, prompts) for turn in ("first", "second")}

    async def _alternate(self, target: Target) -> dict[str, Any]:
        """Send each round's prompts to both servers, the first one changing with the round."""
        other = _target(self._args, self._args.alternate_url)
        other.model = ""
        await self._reach(other, None)
        await self._warm(other)
        rounds: list[dict[str, Any]] = []
        for number in range(self._args.rounds):
            prompts = self._prompts()
            pair = [target, other] if number % 2 == 0 else [other, target]
            for one in pair:
                rounds.append({"url": one.url, **await self._measure(one, prompts)})
        ours = [one for one in rounds if one["url"] == target.url]
        theirs = [one for one in rounds if one["url"] == other.url]
        return {
            "alternate_url": other.url,
            "alternate_model": other.model,
            "rounds": rounds,
            "ratio": ratios(ours, theirs),
        }


async def _coldstart(args: argparse.Namespace) -> dict[str, Any]:
    """Start the command several times; time it to listening and to the first streamed text."""
    if args.command is None:
        raise ConfigError("the coldstart workload needs --command 'platform serve …'")
    output_len = args.output_len or WORKLOADS["coldstart"].output_len
    starts: list[dict[str, float]] = []
    model = ""
    for _ in range(args.repeats):
        target = _target(args, args.base_url)
        with ServerProcess(args.command) as server:
            sampler = MemorySampler(server.pid, interval_s=60)
            listening_s = await server.wait_until_listed(target)
            times = await stream_once(target, "Hello", output_len)
            while times.error is not None:
                server.check_alive()
                await asyncio.sleep(0.1)
                times = await stream_once(target, "Hello", output_len)
            first_s = times.first - server.started
            starts.append(
                {"listening_s": listening_s, "first_token_s": first_s, **sampler.finish()}
            )
            model = target.model
    return {
        "benchmark": "serve",
        "workload": "coldstart",
        "label": args.label,
        "url": args.base_url,
        "model": model,
        "command": args.command,
        "starts": starts,
        **{key: statistics.median(one[key] for one in starts) for key in starts[0]},
    }
