"""Writes to standard output: plain lines, aligned tables, JSON. Logs go to standard error."""

import json
import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["line", "show_json", "table"]


def line(text: str = "") -> None:
    """Write one line, and flush so that progress is seen through a pipe."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def show_json(value: Any) -> None:  # noqa: ANN401 -- JSON values
    """Write JSON values, indented."""
    line(json.dumps(value, indent=2, ensure_ascii=False))


def table(rows: Sequence[Sequence[str]], *, indent: int = 0) -> None:
    """Write rows in aligned columns; the last column is not padded."""
    if not rows:
        return
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        line((" " * indent + "  ".join([*cells, row[-1]])).rstrip())
