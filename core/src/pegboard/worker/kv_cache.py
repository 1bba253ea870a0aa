"""The KV cache's memory: one tensor slot is shared by the i-th layer of every KV group.

Blocks have equal bytes in all groups and each block id belongs to one group at a time, so the
groups may lie over each other in the same memory. It is taken without being touched: resident
memory grows with use. What was never written holds anything, NaN included; backends mask it.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pegboard.api.attention import KVLayout
from pegboard.api.errors import EngineError
from pegboard.api.kv import KVGroup

__all__ = ["KVCache"]


def _nbytes(shape: Sequence[int], dtype: str) -> int:
    return torch.Size(shape).numel() * getattr(torch, dtype).itemsize


class KVCache:
    """All layers' cache tensors.

    Attributes:
        nbytes: bytes taken in all.
    """

    __slots__ = ("_layers", "_owned", "nbytes")

    def __init__(
        self, groups: Sequence[KVGroup], layouts: Mapping[int, KVLayout], device: torch.device
    ) -> None:
        """Take the memory.

        Args:
            groups: as the KV manager planned them.
            layouts: of each layer that has a cache, by its index.
            device: where the memory is.

        Raises:
            EngineError: layers that share a slot cannot lie over each other.
        """
        self._layers: dict[int, tuple[Tensor, ...]] = {}
        self._owned: list[tuple[Tensor, int]] = []
        self.nbytes = 0
        for index in range(max((len(group.layers) for group in groups), default=0)):
            layers = [group.layers[index] for group in groups if index < len(group.layers)]
            self._make_slot(layers, layouts, device)

    def layer(self, index: int) -> tuple[Tensor, ...]:
        """Return a layer's tensors, as its `KVLayout` says; empty if it has no cache."""
        return self._layers.get(index, ())

    def zero_blocks(self, block_ids: Sequence[int]) -> None:
        """Make blocks read as zero, in every layer."""
        for tensor, block_dim in self._owned:
            index = torch.tensor(block_ids, dtype=torch.int64, device=tensor.device)
            tensor.index_fill_(block_dim, index, 0)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (from, to), in every layer; all are read before any is written."""
        for tensor, block_dim in self._owned:
            both = torch.tensor(pairs, dtype=torch.int64, device=tensor.device)
            tensor.index_copy_(block_dim, both[:, 1], tensor.index_select(block_dim, both[:, 0]))

    def _make_slot(
        self, layers: Sequence[int], layouts: Mapping[int, KVLayout], device: torch.device
    ) -> None:
        first = layouts[layers[0]]
        for layer in layers[1:]:
            other = layouts[layer]
            same = (first.shapes, first.dtypes) == (other.shapes, other.dtypes)
            if not same and not _can_overlay(first, other):
                raise EngineError(
                    f"layers {layers[0]} and {layer} share a cache but their layouts "
                    f"{first.shapes} and {other.shapes} cannot lie over each other"
                )
        sizes = [
            _nbytes(shape, dtype) for shape, dtype in zip(first.shapes, first.dtypes, strict=True)
        ]
        memory = [torch.empty(size, dtype=torch.uint8, device=device) for size in sizes]
        self.nbytes += sum(sizes)
        for layer in layers:
            layout = layouts[layer]
            self._layers[layer] = tuple(
                part.view(getattr(torch, dtype)).view(shape)
                for part, shape, dtype in zip(memory, layout.shapes, layout.dtypes, strict=True)
            )
        self._owned += [(tensor, first.block_dim) for tensor in self._layers[layers[0]]]


def _can_overlay(one: KVLayout, other: KVLayout) -> bool:
    """Whether equal block ids mean equal bytes: blocks first, and the same bytes a tensor."""
    if one.block_dim or other.block_dim or len(one.shapes) != len(other.shapes):
        return False
    pairs = zip(one.shapes, one.dtypes, other.shapes, other.dtypes, strict=True)
    return all(a[0] == b[0] and _nbytes(a, s) == _nbytes(b, t) for a, s, b, t in pairs)
