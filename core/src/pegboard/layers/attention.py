"""The attention layer: from the fused product of queries, keys and values to attended values.

It owns the norms of heads, the rotary embedding, the cache write and the attention itself. Where
a fused op can write the backend's cache, norms, rotary and write are one pass over the product.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pegboard.api.attention import AttentionLayer
from pegboard.api.errors import ModelError
from pegboard.api.forward_context import forward_context
from pegboard.api.kv import KVLayerNeed
from pegboard.api.models import ModelContext
from pegboard.layers.base import Layer, WeightSlot, beside
from pegboard.layers.norm import RMSNorm
from pegboard.layers.parallel import divide, divide_kv_heads
from pegboard.layers.rotary import Rotary
from pegboard.ops.attention import traced_attention

__all__ = ["Attention"]


class Attention(Layer):
    """One layer's attention, by its index; declares itself to the model's context.

    Attributes:
        layer: what it is on this rank, as backends see it.
        sinks: [heads on this rank] float32, or None.
    """

    def __init__(
        self,
        context: ModelContext,
        index: int,
        num_heads: int,
        num_kv_heads: int,
        head_size: int,
        *,
        rotary: Rotary | None = None,
        q_norm: RMSNorm | None = None,
        k_norm: RMSNorm | None = None,
        v_head_size: int | None = None,
        scale: float | None = None,
        sliding_window: int | None = None,
        soft_cap: float | None = None,
        causal: bool = True,
        sinks: bool = False,
    ) -> None:
        """Build and declare the layer.

        Args:
            context: where the model is built.
            index: of the layer in the forward context; each number once.
            num_heads, num_kv_heads: of the whole model.
            head_size, v_head_size: of queries and keys; of values, if another.
            rotary: turns queries and keys; None leaves them.
            q_norm, k_norm: norms over each head before it is turned, both or neither. They stay
                the caller's children; this layer only reads them.
            scale: multiplies the scores; None means head_size ** -0.5.
            sliding_window: last tokens a query sees, itself included; None for all.
            soft_cap: scores become cap * tanh(score / cap).
            causal: False for encoders, which see both sides and keep no cache.
            sinks: a learned logit a head joins the softmax's denominator ("sinks" beside the
                layer in the checkpoint).

        Raises:
            ModelError: heads do not divide over the ranks, or one norm without the other.
        """
        if (q_norm is None) != (k_norm is None):
            raise ModelError("an attention layer has q_norm and k_norm, or neither")
        heads = divide(context, num_heads, "attention heads")
        _, kv_heads = divide_kv_heads(context, num_kv_heads)
        v_size = v_head_size or head_size
        self.layer = AttentionLayer(
            index=index,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_size=head_size,
            v_head_size=v_size,
            scale=head_size**-0.5 if scale is None else scale,
            sliding_window=sliding_window,
            soft_cap=soft_cap,
            causal=causal,
            has_sinks=sinks,
        )
        self.sinks = torch.zeros(heads, device=context.device) if sinks else None
        self._first_head = heads * context.tensor_parallel.rank
        self._sinks_shape = (num_heads,)
        self._index, self._heads, self._kv_heads = index, heads, kv_heads
        self._head_size, self._v_size = head_size, v_size
        self._sizes = (heads * head_size, kv_heads * head_size, kv_heads * v_size)
        self._rotary, self._q_norm, self._k_norm = rotary, q_norm, k_norm
        self._rotate = context.ops["rotary_embedding"]
        self._attend = context.ops["attention"]
        can_fuse = rotary is not None and causal
        self._rope_and_write = context.ops.get("rope_and_write_kv") if can_fuse else None
        context.add_attention(self.layer, self._need(context.kv_dtype), self.sinks)

    def __call__(self, qkv: Tensor, positions: Tensor) -> Tensor:
        """Attend.

        Args:
            qkv: [num_tokens, (heads + kv_heads) * head_size + kv_heads * v_head_size] of this
                rank: queries, keys, values. Overwritten.
            positions: [num_tokens] int64.

        Returns:
            [num_tokens, heads * v_head_size], a new tensor.
        """
        num_tokens = qkv.shape[0]
        output = qkv.new_empty((num_tokens, self._heads * self._v_size))
        heads_output = output.view(num_tokens, self._heads, self._v_size)
        if self._rope_and_write is None or torch.compiler.is_compiling():
            self._unfused(qkv, positions, heads_output)
        else:
            self._fused(qkv, positions, heads_output)
        return output

    def _fused(self, qkv: Tensor, positions: Tensor, output: Tensor) -> None:
        context, index = forward_context(), self._index
        metadata = context.metadata[index]
        if metadata is None:
            output.zero_()
            return
        caches = context.kv_caches[index]
        rotary, q_norm, k_norm = self._rotary, self._q_norm, self._k_norm
        self._rope_and_write(  # type: ignore[misc] -- checked by the caller
            qkv,
            positions,
            rotary.cos_sin,  # type: ignore[union-attr] -- fused only with a rotary table
            q_norm.weight if q_norm is not None else None,
            k_norm.weight if k_norm is not None else None,
            q_norm.eps if q_norm is not None else 0.0,
            context.slot_mapping[index],
            caches,
            self._heads,
            self._kv_heads,
            self._head_size,
            self._v_size,
            rotary.interleaved,  # type: ignore[union-attr]
        )
        shape = (qkv.shape[0], self._heads, self._head_size)
        query = qkv.as_strided(shape, (qkv.stride(0), self._head_size, 1), qkv.storage_offset())
        context.attention[index].forward(query, None, None, caches, metadata, output)

    def _unfused(self, qkv: Tensor, positions: Tensor, output: Tensor) -> None:
        query, key, value = qkv.split(self._sizes, dim=-1)
        query = query.unflatten(-1, (self._heads, self._head_size))
        key = key.unflatten(-1, (self._kv_heads, self._head_size))
        value = value.unflatten(-1, (self._kv_heads, self._v_size))
        if self._q_norm is not None and self._k_norm is not None:
            query, key = self._q_norm(query), self._k_norm(key)
        if self._rotary is not None:
            table, interleaved = self._rotary.cos_sin, self._rotary.interleaved
            self._rotate(query, key, positions, table, interleaved)
        attend = traced_attention if torch.compiler.is_compiling() else self._attend
        attend(query, key, value, output, self._index)

    def _need(self, dtype: torch.dtype) -> KVLayerNeed | None:
        if not self.layer.causal:
            return None
        window = self.layer.sliding_window
        return KVLayerNeed(
            layer=self._index,
            group_type="full" if window is None else "sliding_window",
            bytes_per_token=self._kv_heads * (self._head_size + self._v_size) * dtype.itemsize,
            window=window,
        )

    def slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]:
        """The sinks, which stand beside the layer in the checkpoint."""
        if self.sinks is not None:
            yield beside(name, "sinks"), WeightSlot(self._sinks_shape, self._store)

    def _store(self, tensor: Tensor) -> None:
        assert self.sinks is not None
        self.sinks.copy_(tensor[self._first_head : self._first_head + self._heads])

    def packed_weights(self) -> Iterator[tuple[str, Any]]:
        """The sinks."""
        if self.sinks is not None:
            yield "sinks", self.sinks
