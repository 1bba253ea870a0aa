"""The named ops in plain torch: the truth that every implementation is held to.

Unless an op says otherwise: arithmetic is in float32 whatever the dtype of the activations, and
the result is rounded to that dtype once, at the end. `*` stands for any leading dimensions; the
last dimension is contiguous, the others may be strided. None of them syncs.

The classes are ops that pack (`OpDefinition.packs`): `prepare` turns weights into the form the op
reads, and keeps no reference to its arguments.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

__all__ = [
    "Activation",
    "GateUpLinear",
    "Linear",
    "Logits",
    "PlainWeights",
    "embedding",
    "fused_add_rms_norm",
    "gelu_tanh_and_mul",
    "rms_norm",
    "rope_and_write_kv",
    "rotary_embedding",
    "silu_and_mul",
]

Activation = Literal["silu", "gelu_tanh"]


class PlainWeights:
    """Weights as they are: the reference's packed form."""

    __slots__ = ("activation", "bias", "weight")

    def __init__(
        self, weight: Tensor, bias: Tensor | None, activation: Activation | None = None
    ) -> None:
        """Copy what is given, so that the originals can be freed."""
        self.weight = weight.clone(memory_format=torch.contiguous_format)
        self.bias = None if bias is None else bias.clone(memory_format=torch.contiguous_format)
        self.activation = activation

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
    """`linear`: x @ weight.T + bias."""

    def prepare(self, weight: Tensor, bias: Tensor | None = None) -> PlainWeights:
        """Pack.

        Args:
            weight: [out_features, in_features], in the activations' dtype.
            bias: [out_features], in the activations' dtype, or None.
        """
        return PlainWeights(weight, bias)

    def __call__(self, x: Tensor, packed: PlainWeights) -> Tensor:
        """Multiply.

        Args:
            x: [*, in_features].
            packed: what `prepare` made.

        Returns:
            [*, out_features], a new tensor in the dtype of `x`.
        """
        return functional.linear(x, packed.weight, packed.bias)


class GateUpLinear:
    """`gate_up_linear` (optional): act(x @ gate.T) * (x @ up.T), the first half of a gated MLP."""

    def prepare(
        self, weight: Tensor, bias: Tensor | None = None, activation: Activation = "silu"
    ) -> PlainWeights:
        """Pack.

        Args:
            weight: [2 * features, in_features], the gate's rows first, then the up projection's.
            bias: [2 * features], in the same order, or None.
            activation: "silu" or "gelu_tanh".
        """
        return PlainWeights(weight, bias, activation)

    def __call__(self, x: Tensor, packed: PlainWeights) -> Tensor:
        """Multiply and gate; the products may stay in float32 until they are multiplied.

        Args:
            x: [*, in_features].
            packed: what `prepare` made.

        Returns:
            [*, features], a new tensor in the dtype of `x`.
        """
        product = functional.linear(x, packed.weight, packed.bias)
        return silu_and_mul(product) if packed.activation == "silu" else gelu_tanh_and_mul(product)


class Logits:
    """`logits`: the vocabulary's matrix, for a model's head and, where tied, its embedding too.

    One packed copy serves both: `embed` reads rows back out of the packed form.
    """

    def prepare(self, weight: Tensor, bias: Tensor | None = None) -> PlainWeights:
        """Pack.

        Args:
            weight: [vocab, hidden_size], in the activations' dtype.
            bias: [vocab], or None.
        """
        return PlainWeights(weight, bias)

    def __call__(self, x: Tensor, packed: PlainWeights) -> Tensor:
        """Multiply.

        Args:
            x: [num_rows, hidden_size].
            packed: what `prepare` made.

        Returns:
            [num_rows, vocab] float32; at least as precise as rounding to the dtype of `x` first.
        """
        return functional.linear(x, packed.weight, packed.bias).float()

    def embed(self, ids: Tensor, packed: PlainWeights) -> Tensor:
        """Return rows of the matrix, bit for bit as they were given to `prepare`.

        Args:
            ids: [num_tokens] int64, in [0, vocab).
            packed: what `prepare` made.

        Returns:
            [num_tokens, hidden_size], a new tensor.
        """
        return functional.embedding(ids, packed.weight)


def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """Return rows of an untied embedding.

    Args:
        ids: [num_tokens] int64, in [0, vocab).
        weight: [vocab, hidden_size].

    Returns:
        [num_tokens, hidden_size], a new tensor.
    """
    return functional.embedding(ids, weight)


def _normalise(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x ** 2) + eps) * weight over the last dimension.

    Args:
        x: [*, size]; for the norm of each head, [num_tokens, num_heads, head_size] that is a view
            into a fused product.
        weight: [size] float32 always; a family that multiplies by (1 + w) has the one added.
        eps: added to the mean of squares.

    Returns:
        As `x`, a new contiguous tensor.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019.
    """
    return _normalise(x, weight, eps).to(x.dtype)


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    """Add `x` to the residual stream and normalise the sum, both in place.

    `residual` becomes the sum rounded to its dtype; `x` becomes `rms_norm` of that rounded sum.

    Args:
        x: [num_tokens, size], contiguous; a sublayer's output, then the next one's input.
        residual: as `x`; other storage than `x`.
        weight: [size] float32.
        eps: as in `rms_norm`.
    """
    residual += x
    x.copy_(_normalise(residual, weight, eps))


def silu_and_mul(x: Tensor) -> Tensor:
    """Return silu(first half) * second half.

    Args:
        x: [*, 2 * size].

    Returns:
        [*, size], a new tensor.
    """
    gate, up = x.float().chunk(2, dim=-1)
    return (functional.silu(gate) * up).to(x.dtype)


def gelu_tanh_and_mul(x: Tensor) -> Tensor:
    """Return gelu(first half) * second half, gelu in its tanh approximation.

    Args:
        x: [*, 2 * size].

    Returns:
        [*, size], a new tensor.
    """
    gate, up = x.float().chunk(2, dim=-1)
    return (functional.gelu(gate, approximate="tanh") * up).to(x.dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotate the leading 2 * cos.shape[-1] elements of each head; `x` is float32."""
    half = cos.shape[-1]
    rotary, rest = x[..., : 2 * half], x[..., 2 * half :]
    if interleaved:
        first, second = rotary[..., 0::2], rotary[..., 1::2]
    else:
        first, second = rotary[..., :half], rotary[..., half:]
    turned = (first * cos - second * sin, second * cos + first * sin)
    joined = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
    return torch.cat((joined, rest), -1)


def rotary_embedding(
    query: Tensor, key: Tensor, positions: Tensor, cos_sin: Tensor, interleaved: bool
) -> None:
    """Turn queries and keys by their positions, in place.

    Args:
        query: [num_tokens, num_heads, head_size]; may be a view into a fused product.
        key: [num_tokens, num_kv_heads, head_size]; the same.
        positions: [num_tokens] int64, in [0, max_positions).
        cos_sin: [max_positions, rotary_size] float32: rotary_size / 2 cosines, then as many
            sines. The leading `rotary_size` elements of a head turn, the rest stay.
        interleaved: pairs are (0, 1), (2, 3), …; else element i goes with rotary_size / 2 + i.

    Source: Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding, 2021.
    """
    cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)  # [num_tokens, 1, rotary_size / 2]
    for x in (query, key):
        x.copy_(_rotate(x.float(), cos, sin, interleaved))


def rope_and_write_kv(
    qkv: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    slot_mapping: Tensor,
    kv_cache: Sequence[Tensor],
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
    v_head_size: int,
    interleaved: bool,
) -> None:
    """Normalise and turn queries and keys, and write keys and values to the cache (optional).

    Afterwards the query part of `qkv` holds normalised, turned queries; the key and value parts
    are undefined. All in float32 from the product to the one rounding at the end. This reference
    writes the REFERENCE backend's layout; an implementation lists the layouts it writes
    (`OpImplementationSpec.kv_layouts`), and is held to this one through its backend.

    Args:
        qkv: [num_tokens, num_heads * head_size + num_kv_heads * (head_size + v_head_size)],
            queries, then keys, then values; rows contiguous. The query part is written in place.
        positions, cos_sin, interleaved: as in `rotary_embedding`.
        q_norm, k_norm: [head_size] float32 weights of an `rms_norm` of each head before it is
            turned, both or neither.
        eps: of that norm; ignored without it.
        slot_mapping: [num_tokens] int64; -1 marks padding, which is not written to the cache.
        kv_cache: the layer's tensors; here keys and values, each [num_blocks, block_size,
            num_kv_heads, size].
        num_heads, num_kv_heads, head_size, v_head_size: on this rank.
    """
    sizes = (num_heads * head_size, num_kv_heads * head_size, num_kv_heads * v_head_size)
    query, key, value = qkv.split(sizes, dim=-1)
    cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)
    query = query.unflatten(-1, (num_heads, head_size))
    wide_query = query.float() if q_norm is None else _normalise(query, q_norm, eps)
    query.copy_(_rotate(wide_query, cos, sin, interleaved))
    key = key.unflatten(-1, (num_kv_heads, head_size))
    wide_key = key.float() if k_norm is None else _normalise(key, k_norm, eps)
    turned = _rotate(wide_key, cos, sin, interleaved)
    written = slot_mapping >= 0
    slots = slot_mapping[written]
    keys, values = kv_cache
    keys.flatten(0, 1)[slots] = turned[written].to(keys.dtype)
    value = value.unflatten(-1, (num_kv_heads, v_head_size))
    values.flatten(0, 1)[slots] = value[written].to(values.dtype)
