"""Choosing tokens from rows of float32 logits: the greatest, filters, draws, random numbers."""

import torch
from torch import Tensor

from pegboard_kernels.library import KernelError
from pegboard_kernels.registration import LIBRARY, returns_nothing, torch_op

__all__ = ["draw_tokens", "keep_likely", "most_likely", "philox_uniform"]


def _check_logits(logits: Tensor) -> None:
    if logits.dim() != 2 or logits.dtype != torch.float32 or logits.stride(1) != 1:
        raise KernelError(
            f"logits are {logits.dtype} {tuple(logits.shape)}; rows of float32 are needed"
        )


def _row_stride(logits: Tensor) -> int:
    return max(logits.stride(0), logits.shape[1])


def _most_likely_fake(logits: Tensor) -> tuple[Tensor, Tensor]:
    rows = logits.shape[0]
    return logits.new_empty(rows), logits.new_empty(rows, dtype=torch.int64)


@torch_op("(Tensor logits) -> (Tensor, Tensor)", _most_likely_fake)
def most_likely(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's greatest logit [n] and its first index [n] int64; NaN is the greatest.

    Args:
        logits: [n, vocab] float32.
    """
    _check_logits(logits)
    rows, vocab = logits.shape
    values = torch.empty(rows)
    tokens = torch.empty(rows, dtype=torch.int64)
    LIBRARY.check(
        LIBRARY.c.pgk_most_likely(
            logits.data_ptr(), _row_stride(logits), rows, vocab, values.data_ptr(),
            tokens.data_ptr(),
        )
    )  # fmt: skip
    return values, tokens


def _draw_tokens_fake(logits: Tensor, uniforms: Tensor) -> Tensor:
    del uniforms
    return logits.new_empty(logits.shape[0], dtype=torch.int64)


@torch_op("(Tensor logits, Tensor uniforms) -> Tensor", _draw_tokens_fake)
def draw_tokens(logits: Tensor, uniforms: Tensor) -> Tensor:
    """Draw a token a row from softmax(logits), by the inverse of its cumulative distribution.

    Args:
        logits: [n, vocab] float32; -inf is never drawn.
        uniforms: [n] float64 in [0, 1).

    Returns:
        [n] int64.
    """
    _check_logits(logits)
    rows, vocab = logits.shape
    if uniforms.dtype != torch.float64 or uniforms.shape != (rows,):
        raise KernelError(f"uniforms are {uniforms.dtype} {tuple(uniforms.shape)} for {rows} rows")
    uniforms = uniforms.contiguous()
    tokens = torch.empty(rows, dtype=torch.int64)
    LIBRARY.check(
        LIBRARY.c.pgk_draw_tokens(
            logits.data_ptr(), _row_stride(logits), rows, vocab, uniforms.data_ptr(),
            tokens.data_ptr(),
        )
    )  # fmt: skip
    return tokens


@torch_op("(Tensor(a!) logits, Tensor top_k, Tensor top_p, Tensor min_p) -> ()", returns_nothing)
def keep_likely(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> None:
    """Set to -inf, in place, what min-p, then top-k, then top-p drop; equal logits stay together.

    Args:
        logits: [n, vocab] float32.
        top_k: [n] int32; 0 is off.
        top_p: [n] float32; 1 is off.
        min_p: [n] float32; 0 is off.
    """
    _check_logits(logits)
    rows, vocab = logits.shape
    if (top_k.dtype, top_p.dtype, min_p.dtype) != (torch.int32, torch.float32, torch.float32):
        raise KernelError(f"filters are {top_k.dtype}, {top_p.dtype}, {min_p.dtype}")
    if not len(top_k) == len(top_p) == len(min_p) == rows:
        raise KernelError(f"{len(top_k)}, {len(top_p)}, {len(min_p)} filters for {rows} rows")
    top_k, top_p, min_p = top_k.contiguous(), top_p.contiguous(), min_p.contiguous()
    LIBRARY.check(
        LIBRARY.c.pgk_keep_likely(
            logits.data_ptr(), _row_stride(logits), rows, vocab, top_k.data_ptr(),
            top_p.data_ptr(), min_p.data_ptr(),
        )
    )  # fmt: skip


def _philox_uniform_fake(seeds: Tensor, positions: Tensor, stream: int) -> Tensor:
    del positions, stream
    return seeds.new_empty(seeds.shape, dtype=torch.float64)


@torch_op("(Tensor seeds, Tensor positions, int stream) -> Tensor", _philox_uniform_fake)
def philox_uniform(seeds: Tensor, positions: Tensor, stream: int) -> Tensor:
    """Return [n] float64 in [0, 1): Philox-4x32-10 of each seed, position and the stream.

    Args:
        seeds: [n] int64.
        positions: [n] int64.
        stream: which use of random numbers this is.
    """
    if seeds.dtype != torch.int64 or positions.dtype != torch.int64 or seeds.dim() != 1:
        raise KernelError(f"seeds are {seeds.dtype}, positions {positions.dtype}; int64 is needed")
    if seeds.shape != positions.shape:
        raise KernelError(f"{len(seeds)} seeds for {len(positions)} positions")
    seeds, positions = seeds.contiguous(), positions.contiguous()
    uniforms = torch.empty(len(seeds), dtype=torch.float64)
    LIBRARY.check(
        LIBRARY.c.pgk_philox_uniform(
            seeds.data_ptr(), positions.data_ptr(), stream, len(seeds), uniforms.data_ptr()
        )
    )
    return uniforms
