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
