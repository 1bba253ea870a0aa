"""Products with packed weights, and rows of plain and packed tables."""

import torch
from torch import Tensor

from pegboard_kernels.registration import DTYPE_CODES, LIBRARY, as_rows, dtype_code, torch_op

__all__ = [
    "gather_packed",
    "gather_rows",
    "linear",
]


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


@torch_op(
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
    rows = as_rows(x)
    outputs = n // 2 if activation else n
    out = torch.empty((*x.shape[:-1], outputs), dtype=out_dtype)
    status = LIBRARY.c.pgk_linear(
        DTYPE_CODES[weight_dtype],
        n,
        k,
        packed.data_ptr(),
        None if bias is None else bias.data_ptr(),
        rows.data_ptr(),
        dtype_code(rows.dtype),
        rows.stride(0) if rows.shape[0] > 1 else k,
        rows.shape[0],
        out.data_ptr(),
        dtype_code(out_dtype),
        outputs,
        activation,
    )
    if status:
        LIBRARY.check(status)
    return out


def _gather_packed_fake(
    packed: Tensor, ids: Tensor, n: int, k: int, weight_dtype: torch.dtype, out_dtype: torch.dtype
) -> Tensor:
    del packed, n, weight_dtype
    return ids.new_empty((*ids.shape, k), dtype=out_dtype)


@torch_op(
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
    LIBRARY.check(
        LIBRARY.c.pgk_gather_packed(
            dtype_code(weight_dtype), 0, n, k, packed.data_ptr(), flat.data_ptr(), flat.shape[0],
            out.data_ptr(), dtype_code(out_dtype), k,
        )
    )  # fmt: skip
    return out


def _gather_rows_fake(table: Tensor, ids: Tensor) -> Tensor:
    return table.new_empty((*ids.shape, table.shape[1]))


@torch_op("(Tensor table, Tensor ids) -> Tensor", _gather_rows_fake)
def gather_rows(table: Tensor, ids: Tensor) -> Tensor:
    """Return rows `ids` (int64, any shape) of a plain table [rows, cols]."""
    flat = ids.reshape(-1).contiguous()
    cols = table.shape[1]
    out = torch.empty((*ids.shape, cols), dtype=table.dtype)
    LIBRARY.check(
        LIBRARY.c.pgk_gather_rows(
            table.data_ptr(), table.stride(0), table.shape[0], cols, flat.data_ptr(),
            flat.shape[0], out.data_ptr(), cols, dtype_code(table.dtype),
        )
    )  # fmt: skip
    return out
