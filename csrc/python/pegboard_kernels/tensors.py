"""The kernels over torch tensors, and their registration as `torch.ops.pegboard_kernels.…`.

Importing this module loads the library and raises `KernelsUnavailableError` where it is absent.
Each function may be called directly (the least overhead) or through its torch op, which tracing
and compilation see; both are the same code. Tensors live on the CPU; rows may be strided, the last
dimension may not.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pegboard_kernels.library import KernelError, load

__all__ = [
    "ACTIVATIONS",
    "fused_add_rms_norm",
    "gated_activation",
    "gather_packed",
    "gather_rows",
    "linear",
    "paged_attention",
    "rms_norm",
    "rotate_and_write",
    "rotate_and_write_product",
]

#: Names of gated activations, as the C interface numbers them; "" is none.
ACTIVATIONS = {"": 0, "silu": 1, "gelu_tanh": 2}

_LIBRARY = load()
_C = _LIBRARY.c
_check = _LIBRARY.check
_CODES = {torch.float32: 0, torch.bfloat16: 1}
_REGISTRATION = torch.library.Library("pegboard_kernels", "DEF")


def _code(dtype: torch.dtype) -> int:
    try:
        return _CODES[dtype]
    except KeyError:
        raise KernelError(f"dtype {dtype} is not supported; float32 and bfloat16 are") from None


def _rows(x: Tensor) -> Tensor:
    """View [..., k] as [rows, k] with a contiguous last dimension."""
    if x.dim() != 2:
        x = x.reshape(-1, x.shape[-1])
    return x if x.stride(1) == 1 else x.contiguous()


def _op(schema: str, fake: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Register the function as a torch op of the schema's name, with a shape-only twin."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__
        _REGISTRATION.define(f"{name}{schema}")
        _REGISTRATION.impl(name, function, "CPU")
        torch.library.register_fake(f"pegboard_kernels::{name}", fake, lib=_REGISTRATION)
        return function

    return register


def _nothing(*_: Any) -> None:  # noqa: ANN401 -- the fake of ops that only mutate
    return None


def _linear_fake(
    x: Tensor,
    packed: Tensor,
    n: int,
    bias: Tensor | None,
    activation: int,
    weight_dtype: torch.dtype,
    out_dtype: torch.dtype,
) -> Tensor:
    del packed, bias, weight_dtype
    return x.new_empty((*x.shape[:-1], n // 2 if activation else n), dtype=out_dtype)


@_op(
    "(Tensor x, Tensor packed, int n, Tensor? bias, int activation, ScalarType weight_dtype, "
    "ScalarType out_dtype) -> Tensor",
    _linear_fake,
)
def linear(
    x: Tensor,
    packed: Tensor,
    n: int,
    bias: Tensor | None,
    activation: int,
    weight_dtype: torch.dtype,
    out_dtype: torch.dtype,
) -> Tensor:
    """Return x . weight^T + bias, or the gated activation of its halves.

    Args:
        x: [..., k], float32 or bfloat16; rounded to the weight's dtype first.
        packed: the weight's packed bytes (`pegboard_kernels.packed`), made with the gate-and-up
            order where `activation` is not 0.
        n: rows of the weight.
        bias: [n] float32, or None.
        activation: a value of `ACTIVATIONS`.
        weight_dtype: of the packed weight.
        out_dtype: float32 or bfloat16.

    Returns:
        [..., n], or [..., n / 2] with an activation. Sums are float32; a row's bits do not depend
        on the other rows.
    """
    k = x.shape[-1]
    rows = _rows(x)
    outputs = n // 2 if activation else n
    out = torch.empty((*x.shape[:-1], outputs), dtype=out_dtype)
    status = _C.pgk_linear(
        _CODES[weight_dtype],
        n,
        k,
        packed.data_ptr(),
        None if bias is None else bias.data_ptr(),
        rows.data_ptr(),
        _code(rows.dtype),
        rows.stride(0) if rows.shape[0] > 1 else k,
        rows.shape[0],
        out.data_ptr(),
        _code(out_dtype),
        outputs,
        activation,
    )
    if status:
        _check(status)
    return out


def _gather_packed_fake(
    packed: Tensor, ids: Tensor, n: int, k: int, weight_dtype: torch.dtype, out_dtype: torch.dtype
) -> Tensor:
    del packed, n, weight_dtype
    return ids.new_empty((*ids.shape, k), dtype=out_dtype)


@_op(
    "(Tensor packed, Tensor ids, int n, int k, ScalarType weight_dtype, ScalarType out_dtype) "
    "-> Tensor",
    _gather_packed_fake,
)
def gather_packed(
    packed: Tensor, ids: Tensor, n: int, k: int, weight_dtype: torch.dtype, out_dtype: torch.dtype
) -> Tensor:
    """Return rows `ids` (int64, any shape) of a packed weight, exactly as they were packed."""
    flat = ids.reshape(-1).contiguous()
    out = torch.empty((*ids.shape, k), dtype=out_dtype)
    _check(
        _C.pgk_gather_packed(
            _code(weight_dtype), 0, n, k, packed.data_ptr(), flat.data_ptr(), flat.shape[0],
            out.data_ptr(), _code(out_dtype), k,
        )
    )  # fmt: skip
    return out


def _gather_rows_fake(table: Tensor, ids: Tensor) -> Tensor:
    return table.new_empty((*ids.shape, table.shape[1]))


@_op("(Tensor table, Tensor ids) -> Tensor", _gather_rows_fake)
def gather_rows(table: Tensor, ids: Tensor) -> Tensor:
    """Return rows `ids` (int64, any shape) of a plain table [rows, cols]."""
    flat = ids.reshape(-1).contiguous()
    cols = table.shape[1]
    out = torch.empty((*ids.shape, cols), dtype=table.dtype)
    _check(
        _C.pgk_gather_rows(
            table.data_ptr(), table.stride(0), table.shape[0], cols, flat.data_ptr(),
            flat.shape[0], out.data_ptr(), cols, _code(table.dtype),
        )
    )  # fmt: skip
    return out


def _norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    eps: float,
    weight_offset: float,
    out: Tensor,
) -> None:
    """Norm the rows of x (after adding them to the residual's) into `out`; all are 2-d."""
    count, cols = x.shape
    status = _C.pgk_rms_norm(
        x.data_ptr(),
        x.stride(0) if count > 1 else cols,
        None if residual is None else residual.data_ptr(),
        cols if residual is None or count <= 1 else residual.stride(0),
        None if weight is None else weight.data_ptr(),
        0 if weight is None else _code(weight.dtype),
        weight_offset,
        eps,
        count,
        cols,
        out.data_ptr(),
        out.stride(0) if count > 1 else cols,
        _code(x.dtype),
    )
    if status:
        _check(status)


def _rms_norm_fake(
    x: Tensor, weight: Tensor | None, eps: float, weight_offset: float = 0.0
) -> Tensor:
    del weight, eps, weight_offset
    return x.new_empty(x.shape)


@_op("(Tensor x, Tensor? weight, float eps, float weight_offset=0.0) -> Tensor", _rms_norm_fake)
def rms_norm(x: Tensor, weight: Tensor | None, eps: float, weight_offset: float = 0.0) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * (weight + weight_offset) over the last dimension."""
    out = torch.empty(x.shape, dtype=x.dtype)
    _norm(_rows(x), None, weight, eps, weight_offset, out if x.dim() == 2 else _rows(out))
    return out


@_op(
    "(Tensor(a!) x, Tensor(b!) residual, Tensor? weight, float eps, float weight_offset=0.0) -> ()",
    _nothing,
)
def fused_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, eps: float, weight_offset: float = 0.0
) -> None:
    """Add x [rows, cols] to `residual`, and put the norm of the rounded sum into x, in place."""
    if residual.shape != x.shape or residual.dtype != x.dtype or x.dim() != 2:
        raise KernelError(f"residual {tuple(residual.shape)} must be rows as x {tuple(x.shape)}")
    if x.stride(1) != 1 or residual.stride(1) != 1:
        raise KernelError("x and residual must have contiguous rows")
    _norm(x, residual, weight, eps, weight_offset, x)


def _gated_activation_fake(x: Tensor, activation: int) -> Tensor:
    del activation
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


@_op("(Tensor x, int activation) -> Tensor", _gated_activation_fake)
def gated_activation(x: Tensor, activation: int) -> Tensor:
    """Return act(gate) * up of x [..., gate | up]; `activation` as `ACTIVATIONS` numbers them."""
    rows = _rows(x)
    cols = x.shape[-1] // 2
    out = torch.empty((*x.shape[:-1], cols), dtype=x.dtype)
    _check(
        _C.pgk_gated_activation(
            rows.data_ptr(), rows.stride(0) if rows.shape[0] > 1 else 2 * cols, rows.shape[0],
            cols, out.data_ptr(), cols, _code(x.dtype), activation,
        )
    )  # fmt: skip
    return out


@_op(
    "(Tensor(a!)? query, Tensor(b!) key, Tensor? value, Tensor? q_norm, Tensor? k_norm, "
    "float eps, float norm_offset, Tensor? positions, Tensor? cos_sin, bool is_neox, "
    "Tensor(c!)? key_cache, Tensor(d!)? value_cache, Tensor? slot_mapping, int block_size) -> ()",
    _nothing,
)
def rotate_and_write(
    query: Tensor | None,
    key: Tensor,
    value: Tensor | None,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    norm_offset: float,
    positions: Tensor | None,
    cos_sin: Tensor | None,
    is_neox: bool,
    key_cache: Tensor | None,
    value_cache: Tensor | None,
    slot_mapping: Tensor | None,
    block_size: int,
) -> None:
    """Norm, rotate and cache the new tokens in one pass; each part is optional.

    Args:
        query: [num_tokens, num_heads, head_size], changed in place; None to leave it.
        key: [num_tokens, num_kv_heads, head_size], changed in place by norm and rotation.
        value: as `key`; needed with a cache.
        q_norm: [head_size] weight of each query head's RMS norm, or None.
        k_norm: the same for key heads.
        eps: of those norms.
        norm_offset: added to those weights.
        positions: [num_tokens] int64, or None for no rotation.
        cos_sin: [max_position, rotary_size] float32, cosines then sines.
        is_neox: pairs are (i, i + rotary_size / 2); else (2i, 2i + 1).
        key_cache: [num_blocks, …] as `pgk_paged_attention` lays a block out; None for no write.
        value_cache: as `key_cache`.
        slot_mapping: [>= num_tokens] int64; negative slots are not written.
        block_size: tokens a block.
    """
    tokens, num_kv_heads, head_size = key.shape
    if slot_mapping is not None:
        tokens = min(tokens, slot_mapping.shape[0])
    norm = k_norm if q_norm is None else q_norm
    has_cache = key_cache is not None and slot_mapping is not None and value_cache is not None
    if has_cache and key_cache.dtype != key.dtype:
        raise KernelError(f"the cache is {key_cache.dtype}, keys are {key.dtype}")
    status = _C.pgk_rotate_and_write(
        None if query is None else query.data_ptr(),
        0 if query is None else query.stride(0),
        key.data_ptr(),
        key.stride(0),
        None if value is None else value.data_ptr(),
        0 if value is None else value.stride(0),
        _code(key.dtype),
        tokens,
        0 if query is None else query.shape[1],
        num_kv_heads,
        head_size,
        None if q_norm is None else q_norm.data_ptr(),
        None if k_norm is None else k_norm.data_ptr(),
        0 if norm is None else _code(norm.dtype),
        norm_offset,
        eps,
        None if positions is None else positions.data_ptr(),
        None if cos_sin is None else cos_sin.data_ptr(),
        0 if cos_sin is None else cos_sin.shape[0],
        0 if cos_sin is None else cos_sin.shape[1],
        is_neox,
        key_cache.data_ptr() if has_cache else None,
        value_cache.data_ptr() if has_cache else None,
        key_cache.stride(0) if has_cache else 0,
        block_size,
        slot_mapping.data_ptr() if has_cache else None,
        key_cache.shape[0] * block_size if has_cache else 0,
    )
    if status:
        _check(status)


@_op(
    "(Tensor(a!) qkv, Tensor? q_norm, Tensor? k_norm, float eps, Tensor positions, "
    "Tensor cos_sin, bool is_neox, Tensor(b!) key_cache, Tensor(c!) value_cache, "
    "Tensor slot_mapping, int num_heads) -> ()",
    _nothing,
)
def rotate_and_write_product(
    qkv: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    positions: Tensor,
    cos_sin: Tensor,
    is_neox: bool,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    num_heads: int,
) -> None:
    """As `rotate_and_write`, on the fused product of queries, keys and values.

    Args:
        qkv: [num_tokens, (num_heads + 2 * num_kv_heads) * head_size], queries, keys, values; the
            queries and keys are changed in place.
        q_norm: as in `rotate_and_write`.
        k_norm: as in `rotate_and_write`.
        eps: as in `rotate_and_write`.
        positions: as in `rotate_and_write`.
        cos_sin: as in `rotate_and_write`.
        is_neox: as in `rotate_and_write`.
        key_cache: [num_blocks, num_kv_heads, block_size / 16, head_size / s, 16, s].
        value_cache: [num_blocks, num_kv_heads, block_size / s, head_size, s].
        slot_mapping: [num_tokens] int64; negative slots are not written.
        num_heads: query heads.
    """
    num_blocks, num_kv_heads, groups, _, _, _ = key_cache.shape
    head_size = value_cache.shape[3]
    if key_cache.dtype != qkv.dtype or slot_mapping.shape[0] < qkv.shape[0]:
        raise KernelError(
            f"the cache is {key_cache.dtype}, the product {qkv.dtype}; {slot_mapping.shape[0]} "
            f"slots for {qkv.shape[0]} tokens"
        )
    stride, start = qkv.stride(0), qkv.data_ptr()
    step = head_size * qkv.element_size()
    key = start + num_heads * step
    status = _C.pgk_rotate_and_write(
        start,
        stride,
        key,
        stride,
        key + num_kv_heads * step,
        stride,
        _code(qkv.dtype),
        qkv.shape[0],
        num_heads,
        num_kv_heads,
        head_size,
        None if q_norm is None else q_norm.data_ptr(),
        None if k_norm is None else k_norm.data_ptr(),
        0 if q_norm is None else _code(q_norm.dtype),
        0.0,
        eps,
        positions.data_ptr(),
        cos_sin.data_ptr(),
        cos_sin.shape[0],
        cos_sin.shape[1],
        is_neox,
        key_cache.data_ptr(),
        value_cache.data_ptr(),
        key_cache.stride(0),
        groups * 16,
        slot_mapping.data_ptr(),
        num_blocks * groups * 16,
    )
    if status:
        _check(status)


@_op(
    "(Tensor query, Tensor(a!) out, Tensor key_cache, Tensor value_cache, int block_size, "
    "Tensor query_start_loc, Tensor seq_lens, Tensor block_table, float scale, float soft_cap, "
    "int window, bool is_causal, Tensor? sinks=None) -> ()",
    _nothing,
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
    status = _C.pgk_paged_attention(
        query.data_ptr(),
        query.stride(0),
        out.data_ptr(),
        out.stride(0),
        _code(query.dtype),
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
        _check(status)
