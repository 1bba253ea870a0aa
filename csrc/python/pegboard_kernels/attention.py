"""Paged attention over a mixed batch."""

from torch import Tensor

from pegboard_kernels.library import KernelError
from pegboard_kernels.registration import LIBRARY, dtype_code, returns_nothing, torch_op

__all__ = [
    "paged_attention",
]


@torch_op(
    "(Tensor query, Tensor(a!) out, Tensor key_cache, Tensor value_cache, int block_size, "
    "Tensor query_start_loc, Tensor seq_lens, Tensor block_table, float scale, float soft_cap, "
    "int window, bool is_causal, Tensor? sinks=None) -> ()",
    returns_nothing,
)
def paged_attention(
    query: Tensor,
    out: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_size: int,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    block_table: Tensor,
    scale: float,
    soft_cap: float,
    window: int,
    is_causal: bool,
    sinks: Tensor | None = None,
) -> None:
    """Attend a mixed batch over the paged cache and write `out` in place.

    Args:
        query: [num_tokens, num_heads, head_size]; heads of a token contiguous.
        out: as `query`.
        key_cache: [num_blocks, num_kv_heads, …]; dtype as the query's.
        value_cache: as `key_cache`.
        block_size: tokens a block, a multiple of 16.
        query_start_loc: [num_reqs + 1] int32.
        seq_lens: [num_reqs] int32, computed plus new tokens.
        block_table: [num_reqs, max_blocks] int32.
        scale: multiplies the scores.
        soft_cap: scores then become cap * tanh(score / cap); 0 for none.
        window: last tokens a query sees, itself included; 0 for all.
        is_causal: a query sees no later key.
        sinks: [num_heads] float32 logits that join the softmax's denominator, or None.
    """
    if key_cache.dtype != query.dtype:
        raise KernelError(f"the cache is {key_cache.dtype}, the query is {query.dtype}")
    status = LIBRARY.c.pgk_paged_attention(
        query.data_ptr(),
        query.stride(0),
        out.data_ptr(),
        out.stride(0),
        dtype_code(query.dtype),
        key_cache.data_ptr(),
        value_cache.data_ptr(),
        key_cache.stride(0),
        block_size,
        query.shape[1],
        key_cache.shape[1],
        query.shape[2],
        seq_lens.shape[0],
        query_start_loc.data_ptr(),
        seq_lens.data_ptr(),
        block_table.data_ptr(),
        block_table.stride(0),
        scale,
        soft_cap,
        window,
        is_causal,
        None if sinks is None else sinks.data_ptr(),
    )
    if status:
        LIBRARY.check(status)
