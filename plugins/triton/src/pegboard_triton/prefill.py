"""Prefill and chunks: causal attention of many new tokens a request over the paged cache.

A program takes a tile of one request's new tokens and one query head. Which request its tile
belongs to it finds by bisection over the query starts, so the grid follows from host bounds.
Whole tiles of the cache come through tensor descriptors where blocks and heads allow.

Source: Dao, FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning, 2023.
"""

# Launches take options, and constants are numbers, that triton's annotations do not show.
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportReturnType=false

from typing import Any

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from pegboard_triton.decode import _capped

__all__ = ["prefill"]


@triton.jit
def _tile_of(row, first, starts, origin, ROWS: tl.constexpr):
    """The first tile of a request: one more a request than whole tiles before it."""
    return (tl.load(starts + row) - origin) // ROWS + row - first


@triton.jit
def _load_tile(
    source, block, kv_head, n, row, element, held,
    KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, SIZE: tl.constexpr,
    BY_DESCRIPTOR: tl.constexpr,
):  # fmt: skip
    if BY_DESCRIPTOR:
        top = (block * KV_HEADS + kv_head) * BLOCK_SIZE + n % BLOCK_SIZE
        tile = source.load([top, 0])
    else:
        tile = tl.load(source + row[:, None] * SIZE + element[None, :], mask=held, other=0.0)
    return tile


@triton.jit
def _attend(
    acc, total, peak, q, keys, values, table, position, n, length, kv_head, scale, element,
    KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr,
    TOKENS: tl.constexpr, WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, PRECISION: tl.constexpr,
    BY_DESCRIPTOR: tl.constexpr, MASKED: tl.constexpr, IS_LAST: tl.constexpr,
):  # fmt: skip
    """Take one tile of keys and values in; `scale` includes log2(e) unless there is a cap.

    A tile that is not `MASKED` is seen whole by every line. Only the last tile of a sequence
    (`IS_LAST`) has slots past its end, which may hold NaN.
    """
    lane = tl.arange(0, TOKENS)
    token = n + lane
    if BLOCK_SIZE % TOKENS == 0:
        block = tl.load(table + n // BLOCK_SIZE)
        row = (block.to(tl.int64) * KV_HEADS + kv_head) * BLOCK_SIZE + n % BLOCK_SIZE + lane
    else:
        block = tl.load(table + token // BLOCK_SIZE, mask=token < length, other=0)
        row = (block.to(tl.int64) * KV_HEADS + kv_head) * BLOCK_SIZE + token % BLOCK_SIZE
    held = (element < SIZE)[None, :]
    if IS_LAST:
        held = held & (token < length)[:, None]
    k = _load_tile(
        keys, block, kv_head, n, row, element, held, KV_HEADS, BLOCK_SIZE, SIZE, BY_DESCRIPTOR
    )
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if SOFT_CAP > 0:
        scores = _capped(scores * scale, SOFT_CAP) * 1.4426950408889634
    if MASKED:
        seen = token[None, :] <= position[:, None]
        if IS_LAST:
            seen = seen & (token < length)[None, :]
        if WINDOW:
            seen = seen & (token[None, :] > position[:, None] - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
    factor = 1.0 if SOFT_CAP > 0 else scale
    new_peak = tl.maximum(peak, tl.max(scores, 1) * factor)
    level = tl.where(new_peak > float("-inf"), new_peak, 0.0) if MASKED else new_peak
    weights = tl.exp2(scores * factor - level[:, None])
    fade = tl.exp2(peak - level)
    total = total * fade + tl.sum(weights, 1)
    acc = acc * fade[:, None]
    v = _load_tile(
        values, block, kv_head, n, row, element, held, KV_HEADS, BLOCK_SIZE, SIZE, BY_DESCRIPTOR
    )
    if IS_LAST and BY_DESCRIPTOR:
        v = tl.where((token < length)[:, None], v, 0.0)
    acc = tl.dot(weights.to(v.dtype), v, acc, input_precision=PRECISION)
    return acc, total, new_peak


@triton.jit(do_not_specialize=["first", "num_reqs", "table_stride"])
def _prefill(
    query, keys, values, table, starts, seq_lens, out, first, num_reqs, scale, q_stride,
    out_stride, table_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr, WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr, PRECISION: tl.constexpr, BY_DESCRIPTOR: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    tile = tl.num_programs(1) - 1 - tl.program_id(1)  # the last tiles have most to do
    origin = tl.load(starts + first)
    low, high = first, num_reqs
    while high - low > 1:
        middle = (low + high) // 2
        is_after = _tile_of(middle, first, starts, origin, ROWS) <= tile
        low = tl.where(is_after, middle, low)
        high = tl.where(is_after, high, middle)
    request = low
    start = tl.load(starts + request)
    count = tl.load(starts + request + 1) - start
    offset = (tile - _tile_of(request, first, starts, origin, ROWS)) * ROWS
    if offset >= count:
        return
    length = tl.load(seq_lens + request)
    context = length - count
    line = offset + tl.arange(0, ROWS)
    element = tl.arange(0, PADDED)
    stored = (line < count)[:, None] & (element < SIZE)[None, :]
    token = (start + line).to(tl.int64)
    if BY_DESCRIPTOR:
        q = query.load([start + offset, head * SIZE])  # lines past the request's are not kept
    else:
        q = tl.load(
            query + token[:, None] * q_stride + head * SIZE + element[None, :],
            mask=stored, other=0.0,
        )  # fmt: skip
    position = context + line
    kv_head = head // (HEADS // KV_HEADS)
    blocks = table + request.to(tl.int64) * table_stride
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, PADDED], tl.float32)
    end = tl.minimum(length, context + offset + ROWS)
    if WINDOW:
        whole_end = tl.maximum(context + offset - WINDOW + 1, 0) // TOKENS * TOKENS
    else:
        whole_end = (context + offset + 1) // TOKENS * TOKENS
        for n in range(0, whole_end, TOKENS):
            acc, total, peak = _attend(
                acc, total, peak, q, keys, values, blocks, position, n, length, kv_head, scale,
                element, KV_HEADS, BLOCK_SIZE, SIZE, PADDED, TOKENS, WINDOW, SOFT_CAP,
                PRECISION, BY_DESCRIPTOR, False, False,
            )  # fmt: skip
    # Tiles that lie within the sequence, then the one that may reach past its end.
    part_end = tl.maximum(tl.minimum(end, length // TOKENS * TOKENS), whole_end)
    for n in range(whole_end, part_end, TOKENS):
        acc, total, peak = _attend(
            acc, total, peak, q, keys, values, blocks, position, n, length, kv_head, scale,
            element, KV_HEADS, BLOCK_SIZE, SIZE, PADDED, TOKENS, WINDOW, SOFT_CAP,
            PRECISION, BY_DESCRIPTOR, True, False,
        )  # fmt: skip
    for n in range(part_end, end, TOKENS):
        acc, total, peak = _attend(
            acc, total, peak, q, keys, values, blocks, position, n, length, kv_head, scale,
            element, KV_HEADS, BLOCK_SIZE, SIZE, PADDED, TOKENS, WINDOW, SOFT_CAP,
            PRECISION, BY_DESCRIPTOR, True, True,
        )  # fmt: skip
    acc = acc / total[:, None]
    tl.store(
        out + token[:, None] * out_stride + head * SIZE + element[None, :],
        acc.to(out.dtype.element_ty), mask=stored,
    )  # fmt: skip


def _shape(itemsize: int, padded: int) -> tuple[int, int, int, int, int | None]:
    """Return rows and tokens of a tile, warps, stages, and registers at most a thread."""
    if itemsize == 4:
        return 32, 32, 4, 1, None
    if padded > 128:
        return 64, 32, 4, 2, None
    return 128, 64, 8, 3, 128  # two programs share a multiprocessor's registers


def prefill(
    query: Tensor,
    kv_cache: tuple[Tensor, ...],
    descriptors: tuple[Any, Any] | None,
    block_table: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    output: Tensor,
    *,
    first: int,
    num_reqs: int,
    num_tokens: int,
    scale: float,
    window: int,
    soft_cap: float,
) -> None:
    """Attend with the new tokens of requests `first` to `num_reqs`; writes their `output`.

    Args:
        query: [all tokens, num_heads, head_size], heads contiguous.
        kv_cache: keys and values, [num_blocks, num_kv_heads, block_size, head_size].
        descriptors: of both as rows [64, head_size], or None for plain pointers.
        block_table: [num_reqs, max_blocks] int32.
        query_start_loc: [num_reqs + 1] int32.
        seq_lens: [num_reqs] int32.
        output: as `query`.
        first, num_reqs: which requests.
        num_tokens: upper bound of their new tokens together.
        scale: of the scores.
        window: last tokens a query sees; 0 for all.
        soft_cap: of the scores; 0 for none.
    """
    keys, values = kv_cache
    _, num_heads, size = query.shape
    _, kv_heads, block_size, _ = keys.shape
    padded = max(16, triton.next_power_of_2(size))
    itemsize = query.element_size()
    rows, tokens, num_warps, num_stages, most_registers = _shape(itemsize, padded)
    num_tiles = num_tokens // rows + num_reqs - first
    lines, source = query, (keys, values)
    if descriptors is not None:
        shape, strides = [query.shape[0], num_heads * size], [query.stride(0), 1]
        lines, source = TensorDescriptor(query, shape, strides, [rows, size]), descriptors
    _prefill[(num_heads, num_tiles)](
        lines, *source, block_table, query_start_loc, seq_lens, output, first, num_reqs,
        scale if soft_cap else scale * 1.4426950408889634, query.stride(0), output.stride(0),
        block_table.stride(0), num_heads, kv_heads, size, padded, block_size, rows, tokens, window,
        soft_cap, "ieee" if itemsize == 4 else "tf32", descriptors is not None,
        num_warps=num_warps, num_stages=num_stages, maxnreg=most_registers,
    )  # fmt: skip
