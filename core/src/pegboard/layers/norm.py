"""Root-mean-square norms."""

from collections.abc import Iterator

import torch
from torch import Tensor

from pegboard.api.models import ModelContext
from pegboard.layers.base import Layer, WeightSlot

__all__ = ["RMSNorm"]


class RMSNorm(Layer):
    """x / sqrt(mean(x ** 2) + eps) * weight.

    Attributes:
        weight: [size] float32, with the offset already added.
        eps: added to the mean of squares.
    """

    def __init__(
        self, context: ModelContext, size: int, eps: float, *, weight_offset: float = 0.0
    ) -> None:
        """Allocate the weight.

        Args:
            context: where the model is built.
            size: of the last dimension.
            eps: added to the mean of squares.
            weight_offset: added to the checkpoint's weight; 1.0 for families that store w - 1.
        """
        self.weight = torch.ones(size, dtype=torch.float32, device=context.device)
        self.eps = eps
        self._offset = weight_offset
        self._norm = context.ops["rms_norm"]
        self._add_norm = context.ops["fused_add_rms_norm"]

    def __call__(self, x: Tensor) -> Tensor:
        """Return the norm of `x` [*, size] as a new tensor."""
        return self._norm(x, self.weight, self.eps)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """Add `x` to `residual` and normalise the sum, both in place; return `x`.

        Args:
            x: [num_tokens, size], a sublayer's output; becomes the norm.
            residual: [num_tokens, size]; becomes the sum.
        """
        self._add_norm(x, residual, self.weight, self.eps)
        return x

    def slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]:
        """The weight."""

        def store(tensor: Tensor) -> None:
            self.weight.copy_(tensor)
            self.weight += self._offset

        yield f"{name}.weight", WeightSlot(tuple(self.weight.shape), store)

    def packed_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The weight."""
        yield "weight", self.weight
