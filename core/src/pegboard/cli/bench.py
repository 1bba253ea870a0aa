"""`platform bench`: throughput and latency in this process, or a server under load.

Every run is bounded in requests, tokens and time. Figures come as a table, and as JSON with
--json; the machine's own limits can be measured beside them with --ceilings.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pegboard.api.errors import ConfigError
from pegboard.api.frontends import CliCommand
from pegboard.cli.bench_figures import figure_rows
from pegboard.cli.bench_workloads import LIMITS, WORKLOADS
from pegboard.cli.output import line, show_json, table
from pegboard.cli.parser import CommandParser

__all__ = ["Bench"]

#: Others' share of the cores above which times say little.
_NOISY_PERCENT = 10.0

_DESCRIPTION = """\
ACTION
  throughput   many prompts at once through LLM, in this process
  latency      one batch after another through LLM, in this process
  serve        any OpenAI-compatible server, over HTTP

`platform bench ACTION --help` tells more of each."""

_SERVE_DESCRIPTION = """\
Workloads (requests, prompt words, output tokens):
{workloads}

Prompts are fresh in every run, so that a prefix cache does not answer for an earlier one;
--prompt-seed repeats a run's. Token counts are the server's own. With --command the server is
started first and stopped at the end (coldstart needs it). With --alternate-url the same prompts
go to a second server in turn, round by round, and the ratio of the medians is shown: the only
comparison that holds on a shared machine."""


class Bench(CliCommand):
    """Measures, and says on what machine."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the actions."""
        parser.description = f"{parser.description}\n\n{_DESCRIPTION}"
        actions = parser.add_subparsers(
            dest="action", metavar="ACTION", required=True, parser_class=CommandParser
        )
        for name, add, summary in (
            ("throughput", _add_throughput, "many prompts at once through LLM"),
            ("latency", _add_latency, "one batch after another through LLM"),
            ("serve", _add_serve, "load on an OpenAI-compatible server"),
        ):
            action = actions.add_parser(name, prog=f"{parser.prog} {name}", description=summary)
            if isinstance(action, CommandParser):
                action.refuses_unknown = True
            add(action)
            _add_output(action)

    def run(self, args: argparse.Namespace) -> int:
        """Run the benchmark, print its figures; 1 if a request failed."""
        _check_limits(args)
        runner = _runner(args.action)
        machine = _machine_before(args)
        record = runner(args)
        record["date"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        record["machine"] = machine
        _show(record, args)
        return 1 if _failures(record) else 0


def _runner(action: str) -> Callable[[argparse.Namespace], dict[str, Any]]:
    if action == "serve":
        from pegboard.cli.bench_serve import run_serve

        return run_serve
    from pegboard.cli import bench_offline

    return bench_offline.run_throughput if action == "throughput" else bench_offline.run_latency


def _machine_before(args: argparse.Namespace) -> dict[str, Any]:
    from pegboard.cli.bench_machine import describe_machine, measure_ceilings

    machine = describe_machine()
    if args.ceilings:
        machine["ceilings"] = measure_ceilings()
    return machine


def _add_output(parser: argparse.ArgumentParser) -> None:
    section = parser.add_argument_group("Output and bounds")
    section.add_argument("--json", metavar="FILE", help="write the figures as JSON; - for stdout")
    section.add_argument("--label", default="", metavar="TEXT", help="kept in the JSON")
    section.add_argument(
        "--prompt-seed",
        dest="prompt_seed",
        type=int,
        metavar="N",
        help="of the prompts; default: fresh",
    )
    section.add_argument(
        "--time-limit",
        dest="time_limit",
        type=float,
        default=600.0,
        metavar="S",
        help=f"end the run after so many seconds (default 600, at most {LIMITS['time_limit']})",
    )
    section.add_argument(
        "--ceilings",
        action="store_true",
        help="measure read bandwidth and bf16 product rate first (about 5 s, imports torch)",
    )


def _add_lengths(parser: argparse.ArgumentParser, **defaults: int | None) -> None:
    for name, default in defaults.items():
        flag = f"--{name.replace('_', '-')}"
        told = "" if default is None else f" (default {default})"
        parser.add_argument(
            flag, dest=name, type=int, default=default, metavar="N", help=_LENGTHS[name] + told
        )


_LENGTHS = {
    "num_prompts": "requests",
    "input_len": "prompt tokens (serve: words)",
    "output_len": "output tokens",
    "prefix_len": "words of the shared prefix",
    "batch_size": "requests a batch",
    "num_iters": "measured batches",
    "num_iters_warmup": "batches before, not counted",
    "max_concurrency": "clients at once",
    "num_warmups": "short requests before, not counted",
    "rounds": "rounds, alternating between the servers",
    "repeats": "starts to take the median of (coldstart)",
}


def _add_throughput(parser: argparse.ArgumentParser) -> None:
    from pegboard.cli.flags import add_engine_flags

    _add_lengths(parser, num_prompts=64, input_len=128, output_len=128)
    add_engine_flags(parser)


def _add_latency(parser: argparse.ArgumentParser) -> None:
    from pegboard.cli.flags import add_engine_flags

    _add_lengths(
        parser, batch_size=8, input_len=32, output_len=128, num_iters_warmup=1, num_iters=5
    )
    add_engine_flags(parser)


def _add_serve(parser: argparse.ArgumentParser) -> None:
    rows = "\n".join(f"  {name:11s}{one.describe()}" for name, one in WORKLOADS.items())
    parser.description = f"{parser.description}\n\n{_SERVE_DESCRIPTION.format(workloads=rows)}"
    parser.add_argument("--workload", choices=tuple(WORKLOADS), default="throughput")
    parser.add_argument(
        "--base-url",
        dest="base_url",
        default="http://127.0.0.1:8000/v1",
        metavar="URL",
        help="the server (default http://127.0.0.1:8000/v1)",
    )
    parser.add_argument(
        "--alternate-url", dest="alternate_url", metavar="URL", help="a second one, in turn"
    )
    parser.add_argument("--model", metavar="NAME", help="default: the first that is listed")
    parser.add_argument(
        "--endpoint", choices=("completions", "chat"), default="completions", help="which one"
    )
    parser.add_argument("--api-key", dest="api_key", metavar="KEY", help="sent as a bearer token")
    parser.add_argument(
        "--command", metavar="'CMD ARG…'", help="start this server first, and stop it at the end"
    )
    parser.add_argument(
        "--server-pid",
        dest="server_pid",
        type=int,
        metavar="PID",
        help="report the memory of this process and its children",
    )
    parser.add_argument(
        "--no-ignore-eos",
        dest="ignore_eos",
        action="store_false",
        help="for servers that refuse ignore_eos",
    )
    parser.add_argument(
        "--extra-body", dest="extra_body", default="{}", metavar="JSON", help="merged into requests"
    )
    parser.add_argument(
        "--request-timeout",
        dest="request_timeout",
        type=float,
        default=300.0,
        metavar="S",
        help="of one request (default 300)",
    )
    _add_lengths(
        parser,
        num_prompts=None,
        input_len=None,
        output_len=None,
        prefix_len=1024,
        max_concurrency=None,
        num_warmups=2,
        rounds=1,
        repeats=5,
    )


def _check_limits(args: argparse.Namespace) -> None:
    """Refuse what would run too long.

    Raises:
        ConfigError: a value is out of its bounds.
    """
    for name, most in LIMITS.items():
        value = getattr(args, name, None)
        least = 0 if name in ("num_warmups", "num_iters_warmup") else 1
        if value is not None and not least <= value <= most:
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{flag} is {value:g}; it must be {least} to {most}")


def _show(record: dict[str, Any], args: argparse.Namespace) -> None:
    if args.json == "-":
        show_json(record)
        return
    for title, rows in figure_rows(record):
        line(title)
        table(rows, indent=2)
    busy = record["machine"].get("busy_before_percent")
    if busy is not None and busy > _NOISY_PERCENT:
        line(f"the cores were {busy:g} % busy before the run: only ratios in alternation hold")
    if args.json:
        try:
            Path(args.json).write_text(json.dumps(record, indent=2) + "\n")
        except OSError as error:
            raise ConfigError(f"--json {args.json} cannot be written: {error}") from error


def _failures(record: dict[str, Any]) -> int:
    parts = [record, *record.get("rounds", []), *record.get("turns", {}).values()]
    return sum(int(part.get("failed", 0)) for part in parts)
