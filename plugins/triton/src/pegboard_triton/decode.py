"""Decode: one new token a request against its whole cache, split over the sequence.

A program takes one request, one KV head with all its query heads, and one part of the sequence.
Parts are joined by their log-sum-exp in a second kernel. The number of parts follows from the
batch alone, a program finds its part from the sequence's length on the device, so a captured
graph serves any lengths.

Source: Dao et al., Flash-Decoding for long-context inference, 2023.
"""

# Launches take options, and constants are numbers, that triton's annotations do not show.
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportReturnType=false

import triton
import triton.language as tl
from torch import Tensor

__all__ = ["MAX_PARTS", "decode", "num_parts", "workspace_floats"]

#: Programs that fill a device a few times over.
_TARGET_PROGRAMS = 528
MAX_PARTS = 64
_LOG2_E = 1.4426950408889634


@triton.jit
def _capped(scores, SOFT_CAP: tl.constexpr):
    """Return cap * tanh(score / cap)."""
    return SOFT_CAP * (1.0 - 2.0 / (tl.exp(scores * (2.0 / SOFT_CAP)) + 1.0))


@triton.jit(do_not_specialize=["table_stride", "parts"])
def _decode(
    query, keys, values, table, seq_lens, out, part_out, part_lse, scale, q_stride, out_stride,
    table_stride, parts,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, LINES: tl.constexpr, SIZE: tl.constexpr,
    PADDED: tl.constexpr, BLOCK_SIZE: tl.constexpr, TOKENS: tl.constexpr, WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr, IS_SPLIT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    kv_head = tl.program_id(0)
    request = tl.program_id(1).to(tl.int64)
    part = tl.program_id(2)
    length = tl.load(seq_lens + request)
    low = tl.maximum(length - WINDOW, 0) if WINDOW else 0
    first_tile = low // TOKENS
    num_tiles = tl.cdiv(length, TOKENS) - first_tile
    per_part = tl.cdiv(num_tiles, parts)
    start = (first_tile + part * per_part) * TOKENS
    end = tl.minimum(start + per_part * TOKENS, length)

    line = tl.arange(0, LINES)
    element = tl.arange(0, PADDED)
    in_head = element < SIZE
    head = kv_head * GROUP + line
    q_at = query + request * q_stride + head[:, None] * SIZE + element[None, :]
    q = tl.load(q_at, mask=(line < GROUP)[:, None] & in_head[None, :], other=0.0)
    peak = tl.full([LINES], float("-inf"), tl.float32)
    total = tl.zeros([LINES], tl.float32)
    acc = tl.zeros([LINES, PADDED], tl.float32)
    lane = tl.arange(0, TOKENS)
    for n in range(start, end, TOKENS):
        token = n + lane
        seen = token < end
        if WINDOW:
            seen = seen & (token >= low)
        if BLOCK_SIZE % TOKENS == 0:
            block = tl.load(table + request * table_stride + n // BLOCK_SIZE).to(tl.int64)
            row = (block * KV_HEADS + kv_head) * BLOCK_SIZE + n % BLOCK_SIZE + lane
        else:
            block = tl.load(
                table + request * table_stride + token // BLOCK_SIZE, mask=seen, other=0
            ).to(tl.int64)
            row = (block * KV_HEADS + kv_head) * BLOCK_SIZE + token % BLOCK_SIZE
        at = row[:, None] * SIZE + element[None, :]
        held = seen[:, None] & in_head[None, :]
        k = tl.load(keys + at, mask=held, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        if SOFT_CAP > 0:
            scores = _capped(scores, SOFT_CAP)
        scores = tl.where(seen[None, :], scores * 1.4426950408889634, float("-inf"))
        v = tl.load(values + at, mask=held, other=0.0)
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        weights = tl.exp2(scores - new_peak[:, None])
        fade = tl.exp2(peak - new_peak)
        total = total * fade + tl.sum(weights, 1)
        acc = acc * fade[:, None]
        acc = tl.dot(weights.to(v.dtype), v, acc, input_precision=PRECISION)
        peak = new_peak
    acc = acc / tl.where(total > 0, total, 1.0)[:, None]
    stored = (line < GROUP)[:, None] & in_head[None, :]
    if IS_SPLIT:
        lse = tl.where(total > 0, peak + tl.log2(total), float("-inf"))
        spot = (request * KV_HEADS * GROUP + head) * parts + part
        tl.store(part_lse + spot, lse, mask=line < GROUP)
        tl.store(part_out + spot[:, None] * SIZE + element[None, :], acc, mask=stored)
    else:
        o_at = out + request * out_stride + head[:, None] * SIZE + element[None, :]
        tl.store(o_at, acc.to(out.dtype.element_ty), mask=stored)


@triton.jit(do_not_specialize=["parts"])
def _join(
    part_out, part_lse, out, out_stride, parts,
    HEADS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    request = tl.program_id(1).to(tl.int64)
    part = tl.arange(0, PARTS)
    element = tl.arange(0, PADDED)
    spot = (request * HEADS + head) * parts + part
    lse = tl.load(part_lse + spot, mask=part < parts, other=float("-inf"))
    peak = tl.max(lse, 0)
    weights = tl.where(lse > float("-inf"), tl.exp2(lse - peak), 0.0)
    held = (weights > 0)[:, None] & (element < SIZE)[None, :]
    partial = tl.load(part_out + spot[:, None] * SIZE + element[None, :], mask=held, other=0.0)
    total = tl.sum(weights, 0)
    joined = tl.sum(partial * weights[:, None], 0) / tl.where(total > 0, total, 1.0)
    at = out + request * out_stride + head * SIZE + element
    tl.store(at, joined.to(out.dtype.element_ty), mask=element < SIZE)


def num_parts(num_reqs: int, num_kv_heads: int) -> int:
    """Return into how many parts each sequence is split: fewer the more requests there are."""
    return max(1, min(MAX_PARTS, _TARGET_PROGRAMS // (num_reqs * num_kv_heads)))


def workspace_floats(num_heads: int, num_kv_heads: int, head_size: int) -> int:
    """Return float32 numbers that the parts of any batch need."""
    group = num_heads // num_kv_heads
    return _TARGET_PROGRAMS * group * (head_size + 1)


def decode(
    query: Tensor,
    kv_cache: tuple[Tensor, ...],
    block_table: Tensor,
    seq_lens: Tensor,
    output: Tensor,
    workspace: Tensor,
    *,
    scale: float,
    window: int,
    soft_cap: float,
) -> None:
    """Attend with one token a request; writes `output`, zeros where a sequence is empty.

    Args:
        query: [num_reqs, num_heads, head_size], heads contiguous.
        kv_cache: keys and values, [num_blocks, num_kv_heads, block_size, head_size].
        block_table: [num_reqs, max_blocks] int32.
        seq_lens: [num_reqs] int32, the new token included.
        output: as `query`.
        workspace: float32, `workspace_floats` of them.
        scale: of the scores.
        window: last tokens seen; 0 for all.
        soft_cap: of the scores; 0 for none.
    """
    keys, values = kv_cache
    num_reqs, num_heads, size = query.shape
    _, kv_heads, block_size, _ = keys.shape
    group = num_heads // kv_heads
    parts = num_parts(num_reqs, kv_heads)
    padded = max(16, triton.next_power_of_2(size))
    is_wide = query.element_size() == 4
    tokens = 32 if is_wide or padded > 128 else 64
    num_lse = num_reqs * num_heads * parts
    part_lse, part_out = workspace[:num_lse], workspace[num_lse:]
    _decode[(kv_heads, num_reqs, parts)](
        query, keys, values, block_table, seq_lens, output, part_out, part_lse, scale,
        query.stride(0), output.stride(0), block_table.stride(0), parts,
        kv_heads, group, max(16, triton.next_power_of_2(group)), size, padded, block_size, tokens,
        window, soft_cap, parts > 1, "ieee" if is_wide else "tf32", num_warps=4, num_stages=3,
    )  # fmt: skip
    if parts > 1:
        _join[(num_heads, num_reqs)](
            part_out, part_lse, output, output.stride(0), parts, num_heads, size, padded,
            MAX_PARTS, num_warps=4,
        )  # fmt: skip
