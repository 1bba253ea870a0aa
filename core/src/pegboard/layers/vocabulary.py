"""The vocabulary's two ends, divided over ranks by token id: the embedding and the head.

Where they are tied there is one packed copy: the head's op also reads rows back out of it.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from pegboard.api.models import ModelContext
from pegboard.api.ops import PackedWeights
from pegboard.layers.base import Layer, WeightSlot

__all__ = ["LmHead", "VocabEmbedding"]


class _VocabShard:
    """This rank's token ids: [first, first + held), padded to `rows` so that ranks are equal."""

    __slots__ = ("first", "held", "rows")

    def __init__(self, context: ModelContext, vocab_size: int) -> None:
        group = context.tensor_parallel
        self.rows = -(-vocab_size // group.size)
        self.first = min(self.rows * group.rank, vocab_size)
        self.held = min(self.rows, vocab_size - self.first)

    def take(self, tensor: Tensor, context: ModelContext) -> Tensor:
        """Return this rank's rows of a whole tensor; a view where nothing must change."""
        part = tensor[self.first : self.first + self.held].to(context.device, context.dtype)
        if self.held == self.rows:
            return part
        padded = part.new_zeros((self.rows, *part.shape[1:]))
        padded[: self.held] = part
        return padded


class VocabEmbedding(Layer):
    """Token ids to hidden states.

    Attributes:
        weight: this rank's rows if untied: a tensor; if tied: what the `logits` op packed.
    """

    def __init__(
        self,
        context: ModelContext,
        vocab_size: int,
        hidden_size: int,
        *,
        tied: bool = False,
        scale: float | None = None,
    ) -> None:
        """Remember what is to come; allocates nothing.

        Args:
            context: where the model is built.
            vocab_size, hidden_size: of the whole matrix.
            tied: an `LmHead` shares the matrix.
            scale: multiplies the hidden states; rounded to the activations' dtype first.
        """
        self._context = context
        self._shape = (vocab_size, hidden_size)
        self._shard = _VocabShard(context, vocab_size)
        self._head_op = context.ops["logits"] if tied else None
        self._embed = self._head_op.embed if self._head_op else context.ops["embedding"]
        group = context.tensor_parallel
        self._all_reduce = group.all_reduce if group.size > 1 else None
        self._scale = None if scale is None else torch.tensor(scale, dtype=context.dtype).item()
        self.weight: Tensor | PackedWeights | None = None

    def __call__(self, ids: Tensor) -> Tensor:
        """Return [num_tokens, hidden_size] of [num_tokens] ids: new, whole on each rank."""
        if self._all_reduce is None:
            hidden = self._embed(ids, self.weight)
        else:
            local = ids - self._shard.first
            elsewhere = (local < 0) | (local >= self._shard.held)
            hidden = self._embed(local.masked_fill(elsewhere, 0), self.weight)
            hidden = self._all_reduce(hidden.masked_fill_(elsewhere.unsqueeze(-1), 0))
        return hidden if self._scale is None else hidden.mul_(self._scale)

    def slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]:
        """The matrix."""

        def store(tensor: Tensor) -> None:
            part = self._shard.take(tensor, self._context)
            if self._head_op:
                self.weight = self._head_op.prepare(part, None)
            else:
                self.weight = part.clone() if part.data_ptr() == tensor.data_ptr() else part

        yield f"{name}.weight", WeightSlot(self._shape, store)

    def packed_weights(self) -> Iterator[tuple[str, PackedWeights | Tensor]]:
        """The matrix."""
        if self.weight is not None:
            yield "weight", self.weight


class LmHead(Layer):
    """Hidden states to float32 logits."""

    def __init__(
        self,
        context: ModelContext,
        vocab_size: int,
        hidden_size: int,
        *,
        embedding: VocabEmbedding | None = None,
        soft_cap: float | None = None,
    ) -> None:
        """Remember what is to come; allocates nothing.

        Args:
            context: where the model is built.
            vocab_size, hidden_size: of the whole matrix.
            embedding: built with `tied=True`, whose packed matrix this head reads; else None.
            soft_cap: logits become cap * tanh(logits / cap).
        """
        self._context = context
        self._shape = (vocab_size, hidden_size)
        self._shard = _VocabShard(context, vocab_size)
        self._embedding = embedding
        self._op = context.ops["logits"]
        group = context.tensor_parallel
        self._all_gather = group.all_gather if group.size > 1 else None
        self._soft_cap = soft_cap
        self.packed: PackedWeights | None = None

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return [num_rows, vocab_size] float32 of [num_rows, hidden_size], whole on each rank."""
        packed = self.packed if self._embedding is None else self._embedding.weight
        logits = self._op(hidden, packed)
        if self._all_gather is not None:
            logits = self._all_gather(logits, -1)[:, : self._shape[0]]
        if self._soft_cap is not None:
            logits = torch.tanh(logits / self._soft_cap) * self._soft_cap
        return logits

    def slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]:
        """The matrix; a tied checkpoint may repeat it, which is ignored."""
        tied = self._embedding is not None

        def store(tensor: Tensor) -> None:
            if not tied:
                part = self._shard.take(tensor, self._context)
                self.packed = self._op.prepare(part, None)

        yield f"{name}.weight", WeightSlot(self._shape, store, optional=tied)

    def packed_weights(self) -> Iterator[tuple[str, PackedWeights | Tensor]]:
        """The matrix, unless the embedding holds it."""
        if self.packed is not None:
            yield "packed", self.packed
