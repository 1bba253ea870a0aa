"""Gated activations: act(first half) * second half."""

# Launches take options, and constants are numbers, that triton's annotations do not show.
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportReturnType=false

import triton
import triton.language as tl
from torch import Tensor, empty

__all__ = ["gelu_tanh_and_mul", "silu_and_mul"]

_BLOCK = 1024


@triton.jit
def _gated(x, out, stride, SIZE: tl.constexpr, GELU: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    held = column < SIZE
    gate = tl.load(x + row * stride + column, mask=held, other=0.0).to(tl.float32)
    up = tl.load(x + row * stride + SIZE + column, mask=held, other=0.0).to(tl.float32)
    if GELU:
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        gate = gate * tl.sigmoid(2.0 * inner)  # gelu by tanh: (1 + tanh y) / 2 is sigmoid(2 y)
    else:
        gate = gate * tl.sigmoid(gate)
    tl.store(out + row * SIZE + column, (gate * up).to(out.dtype.element_ty), mask=held)


def _launch(x: Tensor, *, gelu: bool) -> Tensor:
    size = x.shape[-1] // 2
    out = empty((*x.shape[:-1], size), dtype=x.dtype, device=x.device)
    rows = x.reshape(-1, 2 * size)
    if out.numel():
        grid = (rows.shape[0], triton.cdiv(size, _BLOCK))
        _gated[grid](rows, out, rows.stride(0), size, gelu, _BLOCK, num_warps=4)
    return out


def silu_and_mul(x: Tensor) -> Tensor:
    """Return silu(first half) * second half: [*, size] of [*, 2 * size]."""
    return _launch(x, gelu=False)


def gelu_tanh_and_mul(x: Tensor) -> Tensor:
    """Return gelu(first half) * second half, gelu by tanh: [*, size] of [*, 2 * size]."""
    return _launch(x, gelu=True)
