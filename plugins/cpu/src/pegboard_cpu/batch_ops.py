"""The persistent batch's ops on the native kernels; see `ops` for how they are called."""

import torch
from torch import Tensor
from torch.compiler import is_compiling

from pegboard_kernels import batch

__all__ = ["append_tokens", "prepare_inputs", "slot_mapping"]

_traced = torch.ops.pegboard_kernels


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
    """Gather a step's tokens and advance the rows."""
    prepare = _traced.prepare_inputs if is_compiling() else batch.prepare_inputs
    prepare(
        token_ids,
        num_computed_tokens,
        rows,
        num_scheduled_tokens,
        query_start_loc,
        input_ids,
        positions,
        requests,
        seq_lens,
    )


def slot_mapping(
    block_table: Tensor, requests: Tensor, positions: Tensor, block_size: int, slots: Tensor
) -> None:
    """Write each token's slot."""
    find = _traced.slot_mapping if is_compiling() else batch.slot_mapping
    find(block_table, requests, positions, block_size, slots)


def append_tokens(token_ids: Tensor, num_tokens: Tensor, rows: Tensor, sampled: Tensor) -> None:
    """Write one token behind each row's last one."""
    append = _traced.append_tokens if is_compiling() else batch.append_tokens
    append(token_ids, num_tokens, rows, sampled)
