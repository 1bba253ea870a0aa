"""Figures of a run: under the field's names, as rows of a table."""

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from pegboard.cli.bench_client import RequestTimes

__all__ = ["figure_rows", "percentile", "ratios", "summarise"]

_SHOWN = (
    ("completed", "requests completed", "{:.0f}"),
    ("failed", "requests failed", "{:.0f}"),
    ("duration", "wall time, s", "{:.2f}"),
    ("total_input_tokens", "prompt tokens", "{:.0f}"),
    ("total_output_tokens", "output tokens", "{:.0f}"),
    ("request_throughput", "requests/s", "{:.2f}"),
    ("output_throughput", "output tokens/s", "{:.1f}"),
    ("total_token_throughput", "all tokens/s", "{:.1f}"),
    ("decode_throughput", "decode tokens/s of a request, median", "{:.1f}"),
    ("median_ttft_ms", "time to first token, ms, median", "{:.1f}"),
    ("p99_ttft_ms", "time to first token, ms, p99", "{:.1f}"),
    ("median_tpot_ms", "time a token after the first, ms, median", "{:.2f}"),
    ("p99_itl_ms", "between two tokens, ms, p99", "{:.2f}"),
    ("median_e2el_ms", "request, ms, median", "{:.1f}"),
    ("total_cached_tokens", "prompt tokens from the cache", "{:.0f}"),
    ("first_token_s", "command to first token, s, median", "{:.2f}"),
    ("listening_s", "command to listening, s, median", "{:.2f}"),
    ("peak_rss_mib", "peak sum of RSS, MiB", "{:.0f}"),
    ("peak_pss_mib", "peak sum of PSS, MiB", "{:.0f}"),
    ("avg_latency", "batch, s, mean", "{:.3f}"),
    ("batch_decode_throughput", "decode tokens/s of the batch, median", "{:.1f}"),
    ("batch_ttft_ms", "time to the batch's last first token, ms, median", "{:.1f}"),
)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile of a non-empty sequence."""
    ordered = sorted(values)
    rank = math.ceil(len(ordered) * percent / 100)
    return ordered[min(len(ordered), max(1, rank)) - 1]


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    in_ms = [value * 1e3 for value in values]
    return {
        f"mean_{name}_ms": statistics.fmean(in_ms),
        f"median_{name}_ms": statistics.median(in_ms),
        f"std_{name}_ms": statistics.pstdev(in_ms),
        f"p99_{name}_ms": percentile(in_ms, 99),
    }


def summarise(results: Sequence[RequestTimes], wall_s: float) -> dict[str, Any]:
    """Return the figures of a run.

    Time to first token is from before the connection to the first text; time per output token is
    (last - first) / (tokens - 1); inter-token latency is between two events with text.
    """
    good = [one for one in results if one.error is None]
    prompt = sum(one.num_prompt_tokens for one in good)
    output = sum(one.num_output_tokens for one in good)
    per_token = [
        (one.last - one.first) / (one.num_output_tokens - 1)
        for one in good
        if one.num_output_tokens > 1 and one.last > one.first
    ]
    record: dict[str, Any] = {
        "completed": len(good),
        "failed": len(results) - len(good),
        "duration": wall_s,
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "request_throughput": len(good) / wall_s,
        "output_throughput": output / wall_s,
        "total_token_throughput": (prompt + output) / wall_s,
        **_spread("ttft", [one.first - one.start for one in good]),
        **_spread("tpot", per_token),
        **_spread("itl", [gap for one in good for gap in one.gaps]),
        **_spread("e2el", [one.last - one.start for one in good]),
    }
    if per_token:
        record["decode_throughput"] = 1 / statistics.median(per_token)
    cached = [one.num_cached_tokens for one in good if one.num_cached_tokens is not None]
    if cached:
        record["total_cached_tokens"] = sum(cached)
    if record["failed"]:
        record["first_error"] = next(one.error for one in results if one.error)
    return record


def ratios(first: Sequence[dict[str, Any]], second: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return, for each figure of both, the median of the first over that of the second."""
    result = {}
    for key, _, _ in _SHOWN:
        ours = [one[key] for one in first if one.get(key)]
        theirs = [one[key] for one in second if one.get(key)]
        if ours and theirs and key not in ("completed", "failed"):
            result[key] = statistics.median(ours) / statistics.median(theirs)
    return result


def _rows(record: dict[str, Any]) -> list[list[str]]:
    rows = [
        [label, form.format(record[key])]
        for key, label, form in _SHOWN
        if isinstance(record.get(key), int | float)
    ]
    if record.get("first_error"):
        rows.append(["first error", str(record["first_error"])[:200]])
    return rows


def figure_rows(record: dict[str, Any]) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield the tables of a record: a title and rows of label and figure."""
    words = [record.get("benchmark", ""), record.get("workload", ""), record.get("model", "")]
    title = " ".join(word for word in words if word)
    own = _rows(record)
    if own:
        yield title, own
    for name, turn in record.get("turns", {}).items():
        yield f"{title}, {name} run", _rows(turn)
    for number, one in enumerate(record.get("rounds", []), 1):
        yield f"{title}, round {number}, {one['url']}", _rows(one)
    if record.get("ratio"):
        rows = [
            [label, f"{record['ratio'][key]:.3f}"]
            for key, label, _ in _SHOWN
            if key in record["ratio"]
        ]
        yield f"{record['url']} over {record['alternate_url']}", rows
    machine = record.get("machine", {})
    rows = [[name, str(value)] for name, value in machine.items() if name != "ceilings"]
    rows += [[name, f"{value:.1f}"] for name, value in machine.get("ceilings", {}).items()]
    if rows:
        yield "machine", rows
