"""The optional op `decoder_layers`: a run of pre-norm decoder layers as one call.

Where kernels are fast, the way from one to the next counts: an implementation saves it. Layers
are handed over as what they are made of; the forward context says where their caches are.
"""

from collections.abc import Mapping, Sequence

import msgspec
import torch
from torch import Tensor

from pegboard.api.attention import AttentionLayer
from pegboard.api.ops import PackedWeights
from pegboard.ops import reference
from pegboard.ops.attention import attention

__all__ = ["DecoderLayerParts", "DecoderLayers", "PreparedLayers"]


class DecoderLayerParts(msgspec.Struct, frozen=True, kw_only=True):
    """One layer, after loading. Each sublayer works on the norm of the residual stream.

    Attributes:
        input_norm, mlp_norm: [hidden_size] float32 weights of `rms_norm`s with `eps`.
        qkv, output, down: made by the op `linear`; `gate_up` by `gate_up_linear`.
        q_norm, k_norm: [head_size] float32, or None; `head_eps` theirs.
        cos_sin, interleaved: as in `rotary_embedding`.
        attention: what the layer's attention is.
        sinks: [num_heads] float32, or None.
    """

    input_norm: Tensor
    mlp_norm: Tensor
    eps: float
    qkv: PackedWeights
    output: PackedWeights
    gate_up: PackedWeights
    down: PackedWeights
    q_norm: Tensor | None
    k_norm: Tensor | None
    head_eps: float
    cos_sin: Tensor
    interleaved: bool
    attention: AttentionLayer
    sinks: Tensor | None


class PreparedLayers:
    """Layers ready to run. The weights stay the layers' own."""

    def __init__(self, parts: Sequence[DecoderLayerParts]) -> None:
        """Keep the parts."""
        self.parts = tuple(parts)

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Nothing of its own."""
        return {}

    @property
    def nbytes(self) -> int:
        """Nothing of its own."""
        return 0


class DecoderLayers:
    """`decoder_layers` (optional): the layers one after the other."""

    def prepare(self, parts: Sequence[DecoderLayerParts]) -> PackedWeights | None:
        """Take loaded layers; None where this implementation cannot run them together."""
        return PreparedLayers(parts)

    def __call__(self, residual: Tensor, positions: Tensor, prepared: PreparedLayers) -> Tensor:
        """Run the layers inside a forward context that has metadata.

        Args:
            residual: [num_tokens, hidden_size], contiguous; the stream, updated in place.
            positions: [num_tokens] int64.
            prepared: what `prepare` made.

        Returns:
            [num_tokens, hidden_size], a new tensor: what is still to be added to the stream.
        """
        x = None
        for parts in prepared.parts:
            if x is None:
                x = reference.rms_norm(residual, parts.input_norm, parts.eps)
            else:
                reference.fused_add_rms_norm(x, residual, parts.input_norm, parts.eps)
            x = _attend(parts, x, positions)
            reference.fused_add_rms_norm(x, residual, parts.mlp_norm, parts.eps)
            gated = reference.GateUpLinear()(x, parts.gate_up)  # type: ignore[arg-type] -- its own
            x = reference.Linear()(gated, parts.down)  # type: ignore[arg-type] -- its own
        return torch.zeros_like(residual) if x is None else x


def _attend(parts: DecoderLayerParts, x: Tensor, positions: Tensor) -> Tensor:
    layer = parts.attention
    heads, kv_heads = layer.num_heads, layer.num_kv_heads
    product = reference.Linear()(x, parts.qkv)  # type: ignore[arg-type] -- its own
    sizes = (heads * layer.head_size, kv_heads * layer.head_size, kv_heads * layer.v_head_size)
    query, key, value = product.split(sizes, dim=-1)
    query = query.unflatten(-1, (heads, layer.head_size))
    key = key.unflatten(-1, (kv_heads, layer.head_size))
    if parts.q_norm is not None and parts.k_norm is not None:
        query = reference.rms_norm(query, parts.q_norm, parts.head_eps)
        key = reference.rms_norm(key, parts.k_norm, parts.head_eps)
    reference.rotary_embedding(query, key, positions, parts.cos_sin, parts.interleaved)
    output = x.new_empty((x.shape[0], heads, layer.v_head_size))
    attention(query, key, value.unflatten(-1, (kv_heads, -1)), output, layer.index)
    return reference.Linear()(output.flatten(1), parts.output)  # type: ignore[arg-type]
