"""The persistent batch's device work, one kernel an op. A row of -1 marks padding."""

# Launches take options, and constants are numbers, that triton's annotations do not show.
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportReturnType=false

import triton
import triton.language as tl
from torch import Tensor

__all__ = ["append_tokens", "prepare_inputs", "slot_mapping"]

_BLOCK = 256
_MANY = 1024


@triton.jit(do_not_specialize=["width"])
def _prepare(
    token_ids, computed, rows, scheduled, starts, input_ids, positions, requests, seq_lens, width,
    BLOCK: tl.constexpr,
):  # fmt: skip
    line = tl.program_id(0)
    row = tl.load(rows + line)
    is_real = row >= 0
    row = tl.maximum(row, 0)
    count = tl.load(scheduled + line)
    start = tl.load(starts + line)
    done = tl.where(is_real, tl.load(computed + row), 0)
    for offset in range(0, count, BLOCK):
        token = offset + tl.arange(0, BLOCK)
        held = token < count
        position = (done + token).to(tl.int64)
        ids = tl.load(token_ids + row * width + position, mask=held & is_real, other=0)
        at = start + token
        tl.store(input_ids + at, ids.to(tl.int64), mask=held)
        tl.store(positions + at, tl.where(is_real, position, 0), mask=held)
        tl.store(requests + at, tl.where(is_real, line, -1).to(tl.int64) + 0 * position, mask=held)
    tl.store(seq_lens + line, tl.where(is_real, done + count, 0))
    tl.store(computed + row, done + count, mask=is_real)


@triton.jit(do_not_specialize=["stride", "num_tokens"])
def _slots(table, requests, positions, slots, stride, num_tokens, BLOCK_SIZE: tl.constexpr,
           BLOCK: tl.constexpr):  # fmt: skip
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    held = token < num_tokens
    line = tl.load(requests + token, mask=held, other=-1)
    position = tl.load(positions + token, mask=held, other=0)
    block = tl.load(table + line * stride + position // BLOCK_SIZE, mask=line >= 0, other=0).to(
        tl.int64
    )
    slot = block * BLOCK_SIZE + position % BLOCK_SIZE
    tl.store(slots + token, tl.where(line >= 0, slot, -1), mask=held)


@triton.jit(do_not_specialize=["width", "num_rows"])
def _append(token_ids, num_tokens, rows, sampled, width, num_rows, BLOCK: tl.constexpr):
    line = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(rows + line, mask=line < num_rows, other=-1)
    held = row >= 0
    where = tl.load(num_tokens + row, mask=held, other=0)
    token = tl.load(sampled + line, mask=held, other=0).to(tl.int32)
    last = width - 1
    column = tl.minimum(where, last).to(tl.int64)
    tl.store(token_ids + row * width + column, token, mask=held)
    tl.store(num_tokens + row, where + 1, mask=held)


def prepare_inputs(
    token_ids: Tensor,
    num_computed_tokens: Tensor,
    rows: Tensor,
    num_scheduled_tokens: Tensor,
    query_start_loc: Tensor,
    input_ids: Tensor,
    positions: Tensor,
    requests: Tensor,
    seq_lens: Tensor,
) -> None:
    """Gather a step's tokens and advance the rows; one program a request."""
    num_reqs, num_tokens = rows.shape[0], input_ids.shape[0]
    block = _BLOCK if num_tokens == num_reqs else _MANY
    _prepare[(num_reqs,)](
        token_ids, num_computed_tokens, rows, num_scheduled_tokens, query_start_loc, input_ids,
        positions, requests, seq_lens, token_ids.shape[1], block, num_warps=4,
    )  # fmt: skip


def slot_mapping(
    block_table: Tensor, requests: Tensor, positions: Tensor, block_size: int, slots: Tensor
) -> None:
    """Find the cache slot of each token; -1 where `requests` is."""
    num_tokens = positions.shape[0]
    _slots[(triton.cdiv(num_tokens, _BLOCK),)](
        block_table, requests, positions, slots, block_table.stride(0), num_tokens, block_size,
        _BLOCK, num_warps=4,
    )  # fmt: skip


def append_tokens(token_ids: Tensor, num_tokens: Tensor, rows: Tensor, sampled: Tensor) -> None:
    """Write one token behind each row's last one."""
    num_rows = rows.shape[0]
    _append[(triton.cdiv(num_rows, _BLOCK),)](
        token_ids, num_tokens, rows, sampled, token_ids.shape[1], num_rows, _BLOCK, num_warps=4
    )
