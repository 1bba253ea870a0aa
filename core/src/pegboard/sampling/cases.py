"""Fresh random arguments for the sampling ops; logits are float32 whatever the dtype."""

from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from pegboard.api.ops import OpCase

__all__ = ["apply_penalties", "draw_tokens", "keep_likely", "most_likely", "philox_uniform"]

_VOCABULARIES = (1, 17, 256, 1000, 2050)
_EXACT: dict[str, float] = dict.fromkeys(("float32", "bfloat16", "float16"), 0.0)


def _logits(random: Generator, rows: int, vocab: int) -> Tensor:
    logits = torch.randn(rows, vocab, generator=random) * 3
    if vocab > 2:
        logits[:, 1::7] = -torch.inf
    return logits


def most_likely(random: Generator, dtype: torch.dtype) -> Iterator[OpCase]:
    """Ties, masked tokens and a NaN."""
    del dtype
    for vocab in _VOCABULARIES:
        logits = _logits(random, 5, vocab)
        logits[1] = 1.5
        logits[2, vocab // 2] = torch.nan
        logits[3] = -torch.inf
        yield OpCase(what=f"vocabulary of {vocab}", args=(logits,), tolerance=_EXACT)


def philox_uniform(random: Generator, dtype: torch.dtype) -> Iterator[OpCase]:
    """Seeds of any sign and size."""
    del dtype
    least, most = -(2**63), 2**63 - 1
    seeds = torch.randint(least, most, (9,), generator=random)
    seeds[:4] = torch.tensor([0, -1, least, most])
    positions = torch.randint(0, 100_000, (9,), generator=random)
    for stream in (0, 3):
        args = (seeds, positions, stream)
        yield OpCase(what=f"stream {stream}", args=args, tolerance=_EXACT)


def draw_tokens(random: Generator, dtype: torch.dtype) -> Iterator[OpCase]:
    """Numbers in the middle of a token's share, away from what rounding decides."""
    del dtype
    for vocab in _VOCABULARIES:
        logits = _logits(random, 6, vocab)
        shares = logits.double().softmax(1)
        token = torch.multinomial(shares, 1, generator=random)
        uniforms = (shares.cumsum(1) - shares / 2).gather(1, token).squeeze(1)
        args = (logits, uniforms)
        yield OpCase(what=f"vocabulary of {vocab}", args=args, tolerance=_EXACT)


def keep_likely(random: Generator, dtype: torch.dtype) -> Iterator[OpCase]:
    """Each filter alone, all together, none, and a flat row where many tokens tie."""
    del dtype
    for vocab in _VOCABULARIES:
        logits = _logits(random, 6, vocab)
        logits[5] = 0.25
        top_k = torch.tensor([0, 5, 0, 40, 0, 3], dtype=torch.int32)
        top_p = torch.tensor([1.0, 1.0, 0.83, 0.61, 1.0, 1.0])
        min_p = torch.tensor([0.0, 0.0, 0.0, 0.02, 0.1, 0.0])
        args = (logits, top_k, top_p, min_p)
        yield OpCase(what=f"vocabulary of {vocab}", args=args, tolerance=_EXACT)


def apply_penalties(random: Generator, dtype: torch.dtype) -> Iterator[OpCase]:
    """Tokens listed once and several times, in the output and not."""
    del dtype
    for vocab in _VOCABULARIES:
        logits = _logits(random, 4, vocab)
        token_ids = torch.randint(0, vocab, (4, 23), generator=random)
        table = torch.randint(0, 4, (4, vocab), generator=random).int()
        repetition = torch.tensor([1.0, 1.7, 0.6, 1.2])
        presence = torch.tensor([0.5, 0.0, -1.0, 2.0])
        frequency = torch.tensor([0.0, 1.5, -0.3, 2.0])
        counts = table.gather(1, token_ids)
        args = (logits, token_ids, counts, repetition, presence, frequency)
        yield OpCase(what=f"vocabulary of {vocab}", args=args)
