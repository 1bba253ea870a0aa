"""The matrix products on cuBLAS."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["DenseWeights", "Linear", "Logits"]


class DenseWeights:
    """A matrix as it is, and its bias."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Copy what is given, so that the originals can be freed."""
        self.weight = weight.clone(memory_format=torch.contiguous_format)
        self.bias = None if bias is None else bias.clone()

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The storage by name."""
        if self.bias is None:
            return {"weight": self.weight}
        return {"weight": self.weight, "bias": self.bias}

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


class Linear:
    """x @ weight.T + bias."""

    def prepare(self, weight: Tensor, bias: Tensor | None = None) -> DenseWeights:
        """Keep [out_features, in_features]."""
        return DenseWeights(weight, bias)

    def __call__(self, x: Tensor, packed: DenseWeights) -> Tensor:
        """Return [*, out_features] in x's dtype."""
        return functional.linear(x, packed.weight, packed.bias)


class Logits:
    """The head's product with sums kept in float32, and the tied embedding's rows."""

    def prepare(self, weight: Tensor, bias: Tensor | None = None) -> DenseWeights:
        """Keep [vocab, hidden_size]."""
        return DenseWeights(weight, bias)

    def __call__(self, x: Tensor, packed: DenseWeights) -> Tensor:
        """Return [num_rows, vocab] float32, straight from the float32 sums."""
        if x.dtype == torch.float32:
            return functional.linear(x, packed.weight, packed.bias)
        logits = torch.mm(x, packed.weight.t(), out_dtype=torch.float32)
        return logits if packed.bias is None else logits.add_(packed.bias)

    def embed(self, ids: Tensor, packed: DenseWeights) -> Tensor:
        """Return rows `ids` as they were given to `prepare`."""
        return functional.embedding(ids, packed.weight)
