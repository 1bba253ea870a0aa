"""Outcomes as a Markdown table that a plugin author can paste in a README."""

from collections.abc import Sequence

from pegboard.conformance.kit import Outcome

__all__ = ["markdown_table"]


def markdown_table(outcomes: Sequence[Outcome]) -> str:
    """Return one row a check; failures and skips carry their detail."""
    lines = ["| component | check | result | detail |", "|---|---|---|---|"]
    for o in outcomes:
        detail = " ".join(o.detail.split()).replace("|", "\\|")
        lines.append(f"| {o.component} | {o.check.name} | {o.status} | {detail[:300]} |")
    counts = {s: sum(o.status == s for o in outcomes) for s in ("pass", "fail", "skip")}
    total = ", ".join(f"{n} {s}" for s, n in counts.items())
    return "\n".join([*lines, "", f"{len(outcomes)} checks: {total}"])
