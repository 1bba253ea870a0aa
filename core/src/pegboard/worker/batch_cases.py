"""Fresh random arguments for the ops on the persistent batch; all exact."""

from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from pegboard.api.ops import OpCase

__all__ = ["append_tokens", "prepare_inputs", "slot_mapping"]

_ROWS, _WIDTH = 9, 50
_EXACT: dict[str, float] = dict.fromkeys(("float32", "bfloat16", "float16"), 0.0)
#: New tokens of each request: a prompt alone, decodes alone, both.
_STEPS = ((13,), (1, 1, 1, 1), (1, 1, 7, 20), (1,))


def _ints(random: Generator, low: int, high: int, *shape: int) -> Tensor:
    return torch.randint(low, high, shape, generator=random).int()


def _padded(rows: Tensor) -> Tensor:
    """Return rows with two lines of padding behind them."""
    return torch.cat((rows, torch.full((2,), -1)))


def append_tokens(random: Generator, dtype: torch.dtype) -> Iterator[OpCase]:
    """Rows in any order, one of them full."""
    del dtype
    for count in (1, 4):
        rows = torch.randperm(_ROWS, generator=random)[:count]
        num_tokens = _ints(random, 0, _WIDTH, _ROWS)
        num_tokens[rows[0]] = _WIDTH
        args = (
            _ints(random, 0, 1000, _ROWS, _WIDTH),
            num_tokens,
            rows,
            torch.randint(0, 1000, (count,), generator=random),
        )
        yield OpCase(what=f"{count} rows", args=args, tolerance=_EXACT)
        padded = (args[0], args[1], _padded(rows), torch.cat((args[3], args[3][:1], args[3][:1])))
        yield OpCase(what=f"{count} rows and padding", args=padded, tolerance=_EXACT)


def prepare_inputs(random: Generator, dtype: torch.dtype) -> Iterator[OpCase]:
    """Prompts, decodes, and steps of both."""
    del dtype
    for scheduled in _STEPS:
        num_reqs, num_tokens = len(scheduled), sum(scheduled)
        counts = torch.tensor(scheduled, dtype=torch.int32)
        starts = torch.zeros(num_reqs + 1, dtype=torch.int32)
        starts[1:] = counts.cumsum(0)
        args = (
            _ints(random, 0, 1000, _ROWS, _WIDTH),
            _ints(random, 0, _WIDTH - max(scheduled), _ROWS),
            torch.randperm(_ROWS, generator=random)[:num_reqs],
            counts,
            starts,
            torch.zeros(num_tokens, dtype=torch.int64),
            torch.zeros(num_tokens, dtype=torch.int64),
            torch.zeros(num_tokens, dtype=torch.int64),
            torch.zeros(num_reqs, dtype=torch.int32),
        )
        yield OpCase(what=f"new tokens {scheduled}", args=args, tolerance=_EXACT)
        if num_tokens == num_reqs:
            yield OpCase(what=f"{num_reqs} and padding", args=_with_padding(args), tolerance=_EXACT)


def _with_padding(args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return a step of decodes with two lines of padding."""
    token_ids, computed, rows, *_ = args
    size = len(rows) + 2
    numbers = [torch.zeros(size, dtype=torch.int64) for _ in range(3)]
    counts = (torch.ones(size, dtype=torch.int32), torch.arange(size + 1, dtype=torch.int32))
    return (token_ids, computed, _padded(rows), *counts, *numbers, numbers[0].int())


def slot_mapping(random: Generator, dtype: torch.dtype) -> Iterator[OpCase]:
    """Block sizes that are powers of two, and others."""
    del dtype
    for block_size in (1, 6, 16):
        table = _ints(random, 0, 10_000, 5, _WIDTH // block_size + 1)
        requests = torch.randint(0, 5, (21,), generator=random)
        positions = torch.randint(0, _WIDTH, (21,), generator=random)
        slots = torch.zeros(21, dtype=torch.int64)
        args = (table, requests, positions, block_size, slots)
        yield OpCase(what=f"block size {block_size}", args=args, tolerance=_EXACT)
        some = torch.where(torch.arange(21) < 18, requests, -1)
        padded = (table, some, positions * (some >= 0), block_size, slots)
        yield OpCase(what=f"block size {block_size}, padding", args=padded, tolerance=_EXACT)
