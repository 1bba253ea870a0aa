"""Choosing tokens: the greatest logit of a row, and counter-based random numbers."""

# Launches take options, and constants are numbers, that triton's annotations do not show.
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportReturnType=false

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["most_likely", "philox_uniform"]

#: Logits a program looks at.
_CHUNK = 4096
_NONE = tl.constexpr(2147483647)


@triton.jit
def _pick(values, indices):
    """The greatest value and its first index; a NaN counts as the greatest."""
    is_nan = values != values
    any_nan = tl.max(is_nan.to(tl.int32), 0)
    best = tl.max(tl.where(is_nan, float("-inf"), values), 0)
    wanted = tl.where(any_nan > 0, is_nan, values == best)
    index = tl.min(tl.where(wanted, indices, _NONE), 0)
    return tl.where(any_nan > 0, float("nan"), best), index


@triton.jit(do_not_specialize=["vocab", "stride", "num_chunks"])
def _greatest_of_chunk(logits, values, indices, vocab, stride, num_chunks, CHUNK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    column = chunk * CHUNK + tl.arange(0, CHUNK)
    part = tl.load(logits + row * stride + column, mask=column < vocab, other=float("-inf"))
    value, index = _pick(part, column)
    tl.store(values + row * num_chunks + chunk, value)
    tl.store(indices + row * num_chunks + chunk, index)


@triton.jit(do_not_specialize=["num_chunks"])
def _greatest_of_row(values, indices, value_out, index_out, num_chunks, CHUNKS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.arange(0, CHUNKS)
    held = chunk < num_chunks
    part = tl.load(values + row * num_chunks + chunk, mask=held, other=float("-inf"))
    index = tl.load(indices + row * num_chunks + chunk, mask=held, other=_NONE)
    value, best = _pick(part, index)
    tl.store(value_out + row, value)
    tl.store(index_out + row, best.to(tl.int64))


def most_likely(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's greatest logit and its first index; a NaN counts as the greatest.

    Args:
        logits: [n, vocab] float32.

    Returns:
        values [n] float32, and indices [n] int64.
    """
    num_rows, vocab = logits.shape
    device = logits.device
    num_chunks = triton.cdiv(vocab, _CHUNK)
    parts = torch.empty((num_rows, num_chunks), dtype=torch.float32, device=device)
    where = torch.empty((num_rows, num_chunks), dtype=torch.int32, device=device)
    values = torch.empty(num_rows, dtype=torch.float32, device=device)
    indices = torch.empty(num_rows, dtype=torch.int64, device=device)
    if num_rows:
        _greatest_of_chunk[(num_rows, num_chunks)](
            logits, parts, where, vocab, logits.stride(0), num_chunks, _CHUNK, num_warps=4
        )
        _greatest_of_row[(num_rows,)](
            parts, where, values, indices, num_chunks, triton.next_power_of_2(num_chunks),
            num_warps=1,
        )  # fmt: skip
    return values, indices


@triton.jit
def _round(c0, c1, c2, c3, k0, k1):
    high_p = tl.umulhi(c0, 0xD2511F53)
    low_p = c0 * 0xD2511F53
    high_q = tl.umulhi(c2, 0xCD9E8D57)
    low_q = c2 * 0xCD9E8D57
    return high_q ^ c1 ^ k0, low_q, high_p ^ c3 ^ k1, low_p


@triton.jit(do_not_specialize=["num_rows"])
def _philox(seeds, positions, out, num_rows, STREAM: tl.constexpr, BLOCK: tl.constexpr):
    line = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    held = line < num_rows
    seed = tl.load(seeds + line, mask=held, other=0)
    k0 = (seed & 0xFFFFFFFF).to(tl.uint32)
    k1 = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    c0 = tl.load(positions + line, mask=held, other=0).to(tl.uint32)
    c1 = tl.zeros_like(c0)
    c2 = tl.zeros_like(c0) + STREAM
    c3 = tl.zeros_like(c0)
    for _ in tl.static_range(10):
        c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1)
        k0 += 0x9E3779B9
        k1 += 0xBB67AE85
    bits = (c0.to(tl.int64) << 21) | (c1.to(tl.int64) >> 11)
    tl.store(out + line, bits.to(tl.float64) * 1.1102230246251565e-16, mask=held)


def philox_uniform(seeds: Tensor, positions: Tensor, stream: int) -> Tensor:
    """Draw one uniform number for each row, bit for bit the reference's.

    Args:
        seeds: [n] int64, any value.
        positions: [n] int64, in [0, 2**32).
        stream: which use of random numbers this is.

    Returns:
        [n] float64 in [0, 1).
    """
    num_rows = seeds.shape[0]
    out = torch.empty(num_rows, dtype=torch.float64, device=seeds.device)
    if num_rows:
        _philox[(triton.cdiv(num_rows, 128),)](
            seeds, positions, out, num_rows, stream, 128, num_warps=4
        )
    return out
