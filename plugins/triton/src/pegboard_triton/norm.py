"""Root-mean-square norms: one program a row, the row in registers."""

# Launches take options, and constants are numbers, that triton's annotations do not show.
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportReturnType=false

import triton
import triton.language as tl
from torch import Tensor, empty

__all__ = ["fused_add_rms_norm", "rms_norm"]


@triton.jit
def _rms_norm(
    x, out, weight, eps, stride_outer, stride_inner, inner, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    held = column < SIZE
    start = (row // inner) * stride_outer + (row % inner) * stride_inner
    wide = tl.load(x + start + column, mask=held, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    factor = tl.load(weight + column, mask=held, other=0.0)
    result = wide * scale * factor
    tl.store(out + row * SIZE + column, result.to(out.dtype.element_ty), mask=held)


@triton.jit
def _fused_add_rms_norm(x, residual, weight, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    held = column < SIZE
    at = row * SIZE + column
    total = tl.load(x + at, mask=held, other=0.0).to(tl.float32)
    total += tl.load(residual + at, mask=held, other=0.0).to(tl.float32)
    rounded = total.to(residual.dtype.element_ty)
    tl.store(residual + at, rounded, mask=held)
    wide = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    factor = tl.load(weight + column, mask=held, other=0.0)
    tl.store(x + at, (wide * scale * factor).to(x.dtype.element_ty), mask=held)


def _shape(size: int) -> tuple[int, int]:
    """Return the block that holds a row, and warps for it."""
    block = triton.next_power_of_2(size)
    return block, min(8, max(1, block // 512))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x ** 2) + eps) * weight over the last dimension, contiguous.

    Args:
        x: [*, size]; two leading dimensions may be strided, more must lie together.
        weight: [size] float32.
        eps: added to the mean of squares.
    """
    size = x.shape[-1]
    out = empty(x.shape, dtype=x.dtype, device=x.device)
    if x.dim() == 3:
        inner, stride_outer, stride_inner = x.shape[1], x.stride(0), x.stride(1)
    else:
        x = x.reshape(-1, size)
        inner, stride_outer, stride_inner = 1, x.stride(0), 0
    block, num_warps = _shape(size)
    if out.numel():
        _rms_norm[(out.numel() // size,)](
            x, out, weight, eps, stride_outer, stride_inner, inner, size, block,
            num_warps=num_warps,
        )  # fmt: skip
    return out


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    """Add `x` to the residual and put the norm of the rounded sum into `x`, both in place.

    Args:
        x, residual: [num_tokens, size], contiguous.
        weight: [size] float32.
        eps: added to the mean of squares.
    """
    size = x.shape[-1]
    block, num_warps = _shape(size)
    if x.numel():
        _fused_add_rms_norm[(x.numel() // size,)](
            x, residual, weight, eps, size, block, num_warps=num_warps
        )
