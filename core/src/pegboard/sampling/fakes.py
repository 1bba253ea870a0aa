"""Shapes and dtypes of what the sampling ops return, for tracing; nothing is computed."""

import torch
from torch import Tensor

__all__ = ["most_likely", "one_token_a_row", "philox_uniform"]


def most_likely(logits: Tensor) -> tuple[Tensor, Tensor]:
    """As `draw.most_likely`."""
    shape = logits.shape[:1]
    return logits.new_empty(shape), logits.new_empty(shape, dtype=torch.int64)


def one_token_a_row(logits: Tensor, uniforms: Tensor) -> Tensor:
    """As `draw.draw_tokens`."""
    del uniforms
    return logits.new_empty(logits.shape[:1], dtype=torch.int64)


def philox_uniform(seeds: Tensor, positions: Tensor, stream: int) -> Tensor:
    """As `philox.philox_uniform`."""
    del positions, stream
    return seeds.new_empty(seeds.shape, dtype=torch.float64)
