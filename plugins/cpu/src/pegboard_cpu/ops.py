"""The named ops on the native kernels.

Each function is the kernel of `torch.ops.pegboard_kernels.…`: called directly when it runs, which
costs a few microseconds less, and through the torch op while a graph is traced. Activations are
float32 or bfloat16 on the CPU; shapes are those of the definitions in `pegboard.ops`.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.compiler import is_compiling

from pegboard_kernels import fused, linear, sampling
from pegboard_kernels.packed import PackedMatrix
from pegboard_kernels.registration import ACTIVATIONS

__all__ = [
    "GateUpLinear",
    "Linear",
    "Logits",
    "draw_tokens",
    "embedding",
    "fused_add_rms_norm",
    "gelu_tanh_and_mul",
    "keep_likely",
    "most_likely",
    "philox_uniform",
    "rms_norm",
    "rope_and_write_kv",
    "rotary_embedding",
    "silu_and_mul",
]

_traced = torch.ops.pegboard_kernels
_SILU, _GELU_TANH = ACTIVATIONS["silu"], ACTIVATIONS["gelu_tanh"]


def _packed(weight: Tensor, bias: Tensor | None, activation: str = "") -> PackedMatrix:
    rows, columns = weight.shape
    packed = PackedMatrix(rows, columns, weight.dtype, activation, bias)
    packed.pack_rows(weight)
    return packed


class Linear:
    """x @ weight.T + bias."""

    def prepare(self, weight: Tensor, bias: Tensor | None = None) -> PackedMatrix:
        """Pack [out_features, in_features]."""
        return _packed(weight, bias)

    def __call__(self, x: Tensor, packed: PackedMatrix) -> Tensor:
        """Return [*, out_features] in x's dtype."""
        return packed.linear(x)


class GateUpLinear:
    """act(x @ gate.T) * (x @ up.T): the activation is the product's epilogue."""

    def prepare(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: Literal["silu", "gelu_tanh"] = "silu",
    ) -> PackedMatrix:
        """Pack [2 * features, in_features], gate rows first."""
        return _packed(weight, bias, activation)

    def __call__(self, x: Tensor, packed: PackedMatrix) -> Tensor:
        """Return [*, features] in x's dtype."""
        return packed.linear(x)


class Logits:
    """The head's product, and the tied embedding read back from the same packed copy."""

    def prepare(self, weight: Tensor, bias: Tensor | None = None) -> PackedMatrix:
        """Pack [vocab, hidden_size]."""
        return _packed(weight, bias)

    def __call__(self, x: Tensor, packed: PackedMatrix) -> Tensor:
        """Return [num_rows, vocab] float32, straight from the float32 sums."""
        return packed.linear(x, torch.float32)

    def embed(self, ids: Tensor, packed: PackedMatrix) -> Tensor:
        """Return rows `ids` as they were given to `prepare`."""
        return packed.gather(ids)


def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """Return rows of an untied embedding."""
    return _traced.gather_rows(weight, ids) if is_compiling() else linear.gather_rows(weight, ids)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the norm over the last dimension as a new tensor."""
    if is_compiling():
        return _traced.rms_norm(x, weight, eps)
    return fused.rms_norm(x, weight, eps)


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    """Add x to the residual and put the norm of the sum into x, both in place."""
    if is_compiling():
        _traced.fused_add_rms_norm(x, residual, weight, eps)
    else:
        fused.fused_add_rms_norm(x, residual, weight, eps)


def silu_and_mul(x: Tensor) -> Tensor:
    """Return silu(first half) * second half."""
    if is_compiling():
        return _traced.gated_activation(x, _SILU)
    return fused.gated_activation(x, _SILU)


def gelu_tanh_and_mul(x: Tensor) -> Tensor:
    """Return gelu(first half) * second half, gelu by tanh."""
    if is_compiling():
        return _traced.gated_activation(x, _GELU_TANH)
    return fused.gated_activation(x, _GELU_TANH)


def rotary_embedding(
    query: Tensor, key: Tensor, positions: Tensor, cos_sin: Tensor, interleaved: bool
) -> None:
    """Turn queries and keys by their positions, in place."""
    rotate = _traced.rotate_and_write if is_compiling() else fused.rotate_and_write
    rotate(
        query, key, None, None, None, 0.0, 0.0, positions, cos_sin, not interleaved, None, None,
        None, 0,
    )  # fmt: skip


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
    """Norm and turn queries and keys of the fused product and cache keys and values, in one pass.

    The head counts and sizes are those of the cache, which says them too.
    """
    del num_kv_heads, head_size, v_head_size
    rotate = _traced.rotate_and_write_product if is_compiling() else fused.rotate_and_write_product
    rotate(
        qkv, q_norm, k_norm, eps, positions, cos_sin, not interleaved, *kv_cache, slot_mapping,
        num_heads,
    )  # fmt: skip


def most_likely(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's greatest logit and its first index."""
    if is_compiling():
        return _traced.most_likely(logits)
    return sampling.most_likely(logits)


def draw_tokens(logits: Tensor, uniforms: Tensor) -> Tensor:
    """Draw a token a row from softmax(logits)."""
    if is_compiling():
        return _traced.draw_tokens(logits, uniforms)
    return sampling.draw_tokens(logits, uniforms)


def keep_likely(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> None:
    """Set to -inf what min-p, top-k and top-p drop, in place; never waits."""
    if is_compiling():
        _traced.keep_likely(logits, top_k, top_p, min_p)
    else:
        sampling.keep_likely(logits, top_k, top_p, min_p)


def philox_uniform(seeds: Tensor, positions: Tensor, stream: int) -> Tensor:
    """Return one uniform number a row, bit for bit the reference's."""
    if is_compiling():
        return _traced.philox_uniform(seeds, positions, stream)
    return sampling.philox_uniform(seeds, positions, stream)
