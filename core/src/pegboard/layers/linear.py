"""Linear layers: matrices of the checkpoint, this rank's part of them, packed as they arrive.

A layer may join several matrices of the checkpoint (queries, keys and values; gate and up) into
one product. Their rows are gathered in a buffer that lives from the first to the last arrival;
then the op packs it and it is freed, so that no more than one layer's weights is ever held twice.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pegboard.api.models import ModelContext
from pegboard.api.ops import PackedWeights
from pegboard.layers.base import Layer, WeightSlot, beside
from pegboard.layers.parallel import divide, divide_kv_heads
from pegboard.ops.reference import Activation

__all__ = [
    "ColumnParallelLinear",
    "GateUpLinear",
    "MergedColumnParallelLinear",
    "PackedLinear",
    "QKVParallelLinear",
    "ReplicatedLinear",
    "RowParallelLinear",
    "Shard",
]


class Shard(NamedTuple):
    """One matrix of the checkpoint, and the part of it that this rank holds.

    Attributes:
        name: beside the layer in the checkpoint, such as "q_proj"; "" is the layer's own name.
        shape: (out_features, in_features) in the checkpoint.
        rows, columns: (first, count) held here.
    """

    name: str
    shape: tuple[int, int]
    rows: tuple[int, int]
    columns: tuple[int, int]


class PackedLinear(Layer):
    """x @ weight.T + bias, over one or several matrices of the checkpoint.

    Attributes:
        packed: what the op made of the weights; None until they are complete.
    """

    def __init__(
        self, context: ModelContext, shards: Sequence[Shard], *, bias: bool, op: str = "linear"
    ) -> None:
        """Remember what is to come; allocates nothing.

        Args:
            context: where the model is built.
            shards: in the order of their rows in the product; equal `columns`.
            bias: whether each matrix comes with a bias.
            op: the packing op that makes and multiplies the weights.
        """
        self._op = context.ops[op]
        self._dtype, self._device = context.dtype, context.device
        self._shards = tuple(shards)
        self._bias = bias
        self._adds_bias = bias
        self._weight_buffer: Tensor | None = None
        self._bias_buffer: Tensor | None = None
        self._missing = len(shards) * (2 if bias else 1)
        self.packed: PackedWeights | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Return this rank's product, [*, out_features]."""
        return self._op(x, self.packed)

    @property
    def out_features(self) -> int:
        """Rows of this rank's product."""
        return sum(shard.rows[1] for shard in self._shards)

    def slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]:
        """Each matrix, and each bias where there are any."""
        offset = 0
        for shard in self._shards:
            path = beside(name, shard.name) if shard.name else name
            yield f"{path}.weight", WeightSlot(shard.shape, self._store_weight(shard, offset))
            if self._bias:
                slot = WeightSlot(shard.shape[:1], self._store_bias(shard, offset))
                yield f"{path}.bias", slot
            offset += shard.rows[1]

    def packed_weights(self) -> Iterator[tuple[str, PackedWeights | Tensor]]:
        """The one packed product."""
        if self.packed is not None:
            yield "packed", self.packed

    def _store_weight(self, shard: Shard, offset: int):  # noqa: ANN202 -- a slot's store
        def store(tensor: Tensor) -> None:
            (row, rows), (column, columns) = shard.rows, shard.columns
            part = tensor[row : row + rows, column : column + columns]
            if self._missing == 1 and self._weight_buffer is None:
                self._weight_buffer = part.to(self._device, self._dtype)
            else:
                if self._weight_buffer is None:
                    self._weight_buffer = self._empty(self.out_features, columns)
                self._weight_buffer[offset : offset + rows].copy_(part)
            self._arrived()

        return store

    def _store_bias(self, shard: Shard, offset: int):  # noqa: ANN202 -- a slot's store
        def store(tensor: Tensor) -> None:
            if self._adds_bias:
                if self._bias_buffer is None:
                    self._bias_buffer = self._empty(self.out_features)
                row, rows = shard.rows
                self._bias_buffer[offset : offset + rows].copy_(tensor[row : row + rows])
            self._arrived()

        return store

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self._dtype, device=self._device)

    def _arrived(self) -> None:
        self._missing -= 1
        if not self._missing:
            assert self._weight_buffer is not None
            self.packed = self._prepare(self._weight_buffer, self._bias_buffer)
            self._weight_buffer = self._bias_buffer = None

    def _prepare(self, weight: Tensor, bias: Tensor | None) -> PackedWeights:
        return self._op.prepare(weight, bias)


def _whole(in_features: int, out_features: int) -> Shard:
    return Shard("", (out_features, in_features), (0, out_features), (0, in_features))


def _columns(context: ModelContext, in_features: int, out_features: int, name: str = "") -> Shard:
    rows = divide(context, out_features, f"features of {name or 'a linear layer'}")
    first = rows * context.tensor_parallel.rank
    return Shard(name, (out_features, in_features), (first, rows), (0, in_features))


class ReplicatedLinear(PackedLinear):
    """The whole product on every rank."""

    def __init__(
        self, context: ModelContext, in_features: int, out_features: int, *, bias: bool = False
    ) -> None:
        """See `PackedLinear`."""
        super().__init__(context, [_whole(in_features, out_features)], bias=bias)


class ColumnParallelLinear(PackedLinear):
    """Output features divided over ranks; the result stays divided."""

    def __init__(
        self, context: ModelContext, in_features: int, out_features: int, *, bias: bool = False
    ) -> None:
        """See `PackedLinear`; raises `ModelError` where the features do not divide."""
        super().__init__(context, [_columns(context, in_features, out_features)], bias=bias)


class MergedColumnParallelLinear(PackedLinear):
    """Several column-parallel matrices of one input as one product, each divided over ranks."""

    def __init__(
        self,
        context: ModelContext,
        in_features: int,
        matrices: Sequence[tuple[str, int]],
        *,
        bias: bool = False,
    ) -> None:
        """See `PackedLinear`.

        Args:
            matrices: (name beside the layer in the checkpoint, out_features), in product order.
        """
        shards = [_columns(context, in_features, size, name) for name, size in matrices]
        super().__init__(context, shards, bias=bias)


class QKVParallelLinear(PackedLinear):
    """Queries, keys and values as one product, heads divided over ranks.

    Where there are fewer key and value heads than ranks, each is held by several ranks.
    """

    def __init__(
        self,
        context: ModelContext,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_size: int,
        *,
        v_head_size: int | None = None,
        bias: bool = False,
        names: tuple[str, str, str] = ("q_proj", "k_proj", "v_proj"),
    ) -> None:
        """See `PackedLinear`.

        Args:
            hidden_size: of the input.
            num_heads, num_kv_heads: of the whole model.
            head_size, v_head_size: of queries and keys; of values, if another.
            names: beside the layer in the checkpoint.
        """
        heads = divide(context, num_heads, "attention heads")
        first_kv, kv_heads = divide_kv_heads(context, num_kv_heads)
        parts = (
            (num_heads, heads * context.tensor_parallel.rank, heads, head_size),
            (num_kv_heads, first_kv, kv_heads, head_size),
            (num_kv_heads, first_kv, kv_heads, v_head_size or head_size),
        )
        shards = [
            Shard(name, (total * size, hidden_size), (first * size, count * size), (0, hidden_size))
            for name, (total, first, count, size) in zip(names, parts, strict=True)
        ]
        super().__init__(context, shards, bias=bias)


class RowParallelLinear(PackedLinear):
    """Input features divided over ranks; the ranks' products are summed."""

    def __init__(
        self, context: ModelContext, in_features: int, out_features: int, *, bias: bool = False
    ) -> None:
        """See `PackedLinear`; the bias is added by rank 0 alone."""
        group = context.tensor_parallel
        count = divide(context, in_features, "input features of a linear layer")
        shard = Shard(
            "", (out_features, in_features), (0, out_features), (count * group.rank, count)
        )
        super().__init__(context, [shard], bias=bias)
        self._adds_bias = bias and group.rank == 0
        self._all_reduce = group.all_reduce if group.size > 1 else None

    def __call__(self, x: Tensor) -> Tensor:
        """Return the whole product, [*, out_features], on every rank."""
        product = self._op(x, self.packed)
        return product if self._all_reduce is None else self._all_reduce(product)


class GateUpLinear(PackedLinear):
    """act(x @ gate.T) * (x @ up.T), features divided over ranks: the first half of a gated MLP."""

    def __init__(
        self,
        context: ModelContext,
        hidden_size: int,
        intermediate_size: int,
        activation: Activation,
        *,
        bias: bool = False,
        names: tuple[str, str] = ("gate_proj", "up_proj"),
    ) -> None:
        """See `PackedLinear`.

        Args:
            activation: "silu" or "gelu_tanh".
            names: beside the layer in the checkpoint.
        """
        fused = context.ops.get("gate_up_linear") is not None
        shards = [_columns(context, hidden_size, intermediate_size, name) for name in names]
        super().__init__(context, shards, bias=bias, op="gate_up_linear" if fused else "linear")
        self._activation: Activation = activation
        self._activate = None if fused else context.ops[f"{activation}_and_mul"]

    def __call__(self, x: Tensor) -> Tensor:
        """Return this rank's [*, intermediate_size / ranks]."""
        product = self._op(x, self.packed)
        return product if self._activate is None else self._activate(product)

    def _prepare(self, weight: Tensor, bias: Tensor | None) -> PackedWeights:
        if self._activate is None:
            return self._op.prepare(weight, bias, self._activation)
        return self._op.prepare(weight, bias)
