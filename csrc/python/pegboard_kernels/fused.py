"""Norms, gated activations, and rotation with the cache write."""

import torch
from torch import Tensor

from pegboard_kernels.library import KernelError
from pegboard_kernels.registration import (
    LIBRARY,
    as_rows,
    dtype_code,
    returns_nothing,
    torch_op,
)

__all__ = [
    "fused_add_rms_norm",
    "gated_activation",
    "rms_norm",
    "rotate_and_write",
    "rotate_and_write_product",
]


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
    status = LIBRARY.c.pgk_rms_norm(
        x.data_ptr(),
        x.stride(0) if count > 1 else cols,
        None if residual is None else residual.data_ptr(),
        cols if residual is None or count <= 1 else residual.stride(0),
        None if weight is None else weight.data_ptr(),
        0 if weight is None else dtype_code(weight.dtype),
        weight_offset,
        eps,
        count,
        cols,
        out.data_ptr(),
        out.stride(0) if count > 1 else cols,
        dtype_code(x.dtype),
    )
    if status:
        LIBRARY.check(status)


def _rms_norm_fake(
    x: Tensor, weight: Tensor | None, eps: float, weight_offset: float = 0.0
) -> Tensor:
    del weight, eps, weight_offset
    return x.new_empty(x.shape)


@torch_op(
    "(Tensor x, Tensor? weight, float eps, float weight_offset=0.0) -> Tensor", _rms_norm_fake
)
def rms_norm(x: Tensor, weight: Tensor | None, eps: float, weight_offset: float = 0.0) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * (weight + weight_offset) over the last dimension."""
    out = torch.empty(x.shape, dtype=x.dtype)
    _norm(as_rows(x), None, weight, eps, weight_offset, out if x.dim() == 2 else as_rows(out))
    return out


@torch_op(
    "(Tensor(a!) x, Tensor(b!) residual, Tensor? weight, float eps, float weight_offset=0.0) -> ()",
    returns_nothing,
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


@torch_op("(Tensor x, int activation) -> Tensor", _gated_activation_fake)
def gated_activation(x: Tensor, activation: int) -> Tensor:
    """Return act(gate) * up of x [..., gate | up]; `activation` as `ACTIVATIONS` numbers them."""
    rows = as_rows(x)
    cols = x.shape[-1] // 2
    out = torch.empty((*x.shape[:-1], cols), dtype=x.dtype)
    LIBRARY.check(
        LIBRARY.c.pgk_gated_activation(
            rows.data_ptr(), rows.stride(0) if rows.shape[0] > 1 else 2 * cols, rows.shape[0],
            cols, out.data_ptr(), cols, dtype_code(x.dtype), activation,
        )
    )  # fmt: skip
    return out


@torch_op(
    "(Tensor(a!)? query, Tensor(b!) key, Tensor? value, Tensor? q_norm, Tensor? k_norm, "
    "float eps, float norm_offset, Tensor? positions, Tensor? cos_sin, bool is_neox, "
    "Tensor(c!)? key_cache, Tensor(d!)? value_cache, Tensor? slot_mapping, int block_size) -> ()",
    returns_nothing,
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
    status = LIBRARY.c.pgk_rotate_and_write(
        None if query is None else query.data_ptr(),
        0 if query is None else query.stride(0),
        key.data_ptr(),
        key.stride(0),
        None if value is None else value.data_ptr(),
        0 if value is None else value.stride(0),
        dtype_code(key.dtype),
        tokens,
        0 if query is None else query.shape[1],
        num_kv_heads,
        head_size,
        None if q_norm is None else q_norm.data_ptr(),
        None if k_norm is None else k_norm.data_ptr(),
        0 if norm is None else dtype_code(norm.dtype),
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
        LIBRARY.check(status)


@torch_op(
    "(Tensor(a!) qkv, Tensor? q_norm, Tensor? k_norm, float eps, Tensor positions, "
    "Tensor cos_sin, bool is_neox, Tensor(b!) key_cache, Tensor(c!) value_cache, "
    "Tensor slot_mapping, int num_heads) -> ()",
    returns_nothing,
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
    status = LIBRARY.c.pgk_rotate_and_write(
        start,
        stride,
        key,
        stride,
        key + num_kv_heads * step,
        stride,
        dtype_code(qkv.dtype),
        qkv.shape[0],
        num_heads,
        num_kv_heads,
        head_size,
        None if q_norm is None else q_norm.data_ptr(),
        None if k_norm is None else k_norm.data_ptr(),
        0 if q_norm is None else dtype_code(q_norm.dtype),
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
        LIBRARY.check(status)
