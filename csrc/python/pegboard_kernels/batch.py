"""The persistent batch's bookkeeping: a step's inputs, its slots, and the tokens it appends."""

import torch
from torch import Tensor

from pegboard_kernels.library import KernelError
from pegboard_kernels.registration import LIBRARY, returns_nothing, torch_op

__all__ = ["append_tokens", "prepare_inputs", "slot_mapping"]


def _check(dtype: torch.dtype, **tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.dtype != dtype or not tensor.is_contiguous():
            raise KernelError(f"{name} is {tensor.dtype}; contiguous {dtype} is needed")


@torch_op(
    "(Tensor token_ids, Tensor(a!) num_computed_tokens, Tensor rows, Tensor num_scheduled_tokens, "
    "Tensor query_start_loc, Tensor(b!) input_ids, Tensor(c!) positions, Tensor(d!) requests, "
    "Tensor(e!) seq_lens) -> ()",
    returns_nothing,
)
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
    """Gather a step's tokens and advance the rows.

    Args:
        token_ids: [max_num_rows, width] int32.
        num_computed_tokens: [max_num_rows] int32; advanced in place.
        rows: [num_reqs] int64, each row once.
        num_scheduled_tokens: [num_reqs] int32.
        query_start_loc: their running sum, which is not needed here.
        input_ids: [num_tokens] int64, written.
        positions: [num_tokens] int64, written.
        requests: [num_tokens] int64, written: a token's index into `rows`.
        seq_lens: [num_reqs] int32, written.
    """
    del query_start_loc
    _check(torch.int64, rows=rows, input_ids=input_ids, positions=positions, requests=requests)
    _check(
        torch.int32,
        token_ids=token_ids,
        num_computed_tokens=num_computed_tokens,
        num_scheduled_tokens=num_scheduled_tokens,
        seq_lens=seq_lens,
    )
    num_tokens, num_reqs = len(input_ids), len(rows)
    if not len(positions) == len(requests) == num_tokens or len(seq_lens) < num_reqs:
        raise KernelError(f"the step's outputs do not have {num_tokens} tokens, {num_reqs} rows")
    LIBRARY.check(
        LIBRARY.c.pgk_prepare_inputs(
            token_ids.data_ptr(), *token_ids.shape, num_computed_tokens.data_ptr(),
            rows.data_ptr(), num_scheduled_tokens.data_ptr(), num_reqs, num_tokens,
            input_ids.data_ptr(), positions.data_ptr(), requests.data_ptr(), seq_lens.data_ptr(),
        )
    )  # fmt: skip


@torch_op(
    "(Tensor block_table, Tensor requests, Tensor positions, int block_size, Tensor(a!) slots) "
    "-> ()",
    returns_nothing,
)
def slot_mapping(
    block_table: Tensor, requests: Tensor, positions: Tensor, block_size: int, slots: Tensor
) -> None:
    """Write each token's slot, block id * block_size + offset.

    Args:
        block_table: [num_reqs, max_blocks] int32; lines may lie apart.
        requests: [num_tokens] int64, a token's line.
        positions: [num_tokens] int64.
        block_size: tokens a block.
        slots: [num_tokens] int64, written.
    """
    _check(torch.int64, requests=requests, positions=positions, slots=slots)
    if block_table.dtype != torch.int32 or block_table.stride(1) != 1:
        raise KernelError(f"the block table is {block_table.dtype}; lines of int32 are needed")
    if not len(requests) == len(positions) == len(slots):
        raise KernelError(f"{len(requests)} tokens, {len(positions)} positions, {len(slots)} slots")
    num_reqs, max_blocks = block_table.shape
    LIBRARY.check(
        LIBRARY.c.pgk_slot_mapping(
            block_table.data_ptr(), block_table.stride(0), num_reqs, max_blocks,
            requests.data_ptr(), positions.data_ptr(), len(slots), block_size, slots.data_ptr(),
        )
    )  # fmt: skip


@torch_op(
    "(Tensor(a!) token_ids, Tensor(b!) num_tokens, Tensor rows, Tensor sampled) -> ()",
    returns_nothing,
)
def append_tokens(token_ids: Tensor, num_tokens: Tensor, rows: Tensor, sampled: Tensor) -> None:
    """Write one token behind each row's last one and count it.

    Args:
        token_ids: [max_num_rows, width] int32; a full row's last entry is overwritten.
        num_tokens: [max_num_rows] int32, one added for each row.
        rows: [n] int64, each row once.
        sampled: [n] int64.
    """
    _check(torch.int32, token_ids=token_ids, num_tokens=num_tokens)
    _check(torch.int64, rows=rows, sampled=sampled)
    if len(rows) != len(sampled):
        raise KernelError(f"{len(sampled)} tokens for {len(rows)} rows")
    LIBRARY.check(
        LIBRARY.c.pgk_append_tokens(
            token_ids.data_ptr(), *token_ids.shape, num_tokens.data_ptr(), rows.data_ptr(),
            sampled.data_ptr(), len(rows),
        )
    )  # fmt: skip
