"""The persistent batch's device work, as plain references of named ops. None of them syncs."""

import torch
from torch import Tensor

__all__ = ["append_tokens", "prepare_inputs", "slot_mapping"]


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
    """Gather a step's tokens and advance the rows; the reference of the op `prepare_inputs`.

    Args:
        token_ids: [max_num_rows, width] int32.
        num_computed_tokens: [max_num_rows] int32; advanced by the scheduled tokens, in place.
        rows: [num_reqs] int64, each row once; -1 marks a line of padding, which advances no row.
        num_scheduled_tokens: [num_reqs] int32, each at least 1.
        query_start_loc: [num_reqs + 1] int32; their running sum from 0.
        input_ids: [num_tokens] int64, written; 0 for padding.
        positions: [num_tokens] int64, written: a token's index in its sequence; 0 for padding.
        requests: [num_tokens] int64, written: a token's index into `rows`; -1 for padding.
        seq_lens: [num_reqs] int32, written: computed plus scheduled tokens; 0 for padding.
    """
    num_tokens, num_reqs = input_ids.shape[0], rows.shape[0]
    is_real, held = rows >= 0, rows.clamp(min=0)
    computed = num_computed_tokens[held]
    line = torch.arange(num_reqs, device=rows.device)
    if num_tokens == num_reqs:
        positions.copy_(computed)
    else:
        line = line.repeat_interleave(num_scheduled_tokens, output_size=num_tokens)
        offset = computed - query_start_loc[:-1]
        positions.copy_(torch.arange(num_tokens, device=rows.device) + offset[line])
    token_is_real = is_real[line]
    positions.mul_(token_is_real)
    input_ids.copy_(token_ids[held[line], positions] * token_is_real)
    requests.copy_(torch.where(token_is_real, line, -1))
    torch.mul(computed + num_scheduled_tokens, is_real, out=seq_lens)
    num_computed_tokens.index_add_(0, held, num_scheduled_tokens * is_real)


def slot_mapping(
    block_table: Tensor, requests: Tensor, positions: Tensor, block_size: int, slots: Tensor
) -> None:
    """Find the cache slot of each of a step's tokens; the reference of the op `slot_mapping`.

    Args:
        block_table: [num_reqs, max_blocks] int32.
        requests: [num_tokens] int64; a token's line of the block table; -1 marks padding.
        positions: [num_tokens] int64.
        block_size: tokens a block.
        slots: [num_tokens] int64, written: block id * block_size + offset; -1 for padding.
    """
    blocks = block_table[requests, positions.div(block_size, rounding_mode="floor")]
    torch.add(positions % block_size, blocks.long(), alpha=block_size, out=slots)
    slots.masked_fill_(requests < 0, -1)


def append_tokens(token_ids: Tensor, num_tokens: Tensor, rows: Tensor, sampled: Tensor) -> None:
    """Write one token behind each row's last one; the reference of the op `append_tokens`.

    A step that was scheduled before the token was known finds it there.

    Args:
        token_ids: [max_num_rows, width] int32, written at [row, num_tokens[row]]; a full row's
            last entry is overwritten.
        num_tokens: [max_num_rows] int32, one added for each row.
        rows: [n] int64, each row once; lines of -1 are padding.
        sampled: [n] int64.
    """
    is_real, held = rows >= 0, rows.clamp(min=0)
    where = num_tokens[held].clamp(max=token_ids.shape[1] - 1).long()
    flat = held * token_ids.shape[1] + where
    # Padding adds nothing to whatever it meets.
    change = (sampled.int() - token_ids.view(-1)[flat]) * is_real
    token_ids.view(-1).index_add_(0, flat, change)
    num_tokens.index_add_(0, held, is_real.int())
