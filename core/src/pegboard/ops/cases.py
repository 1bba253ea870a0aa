"""Fresh random arguments for the named ops, odd shapes among them; the conformance kit's fuel."""

from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from pegboard.api.ops import OpCase

__all__ = [
    "embedding",
    "fused_add_rms_norm",
    "gate_up_linear",
    "gated",
    "linear",
    "logits",
    "rms_norm",
    "rotary_embedding",
]

#: (tokens, in features, out features); batch 1, skinny, odd and prefill-like products.
_PRODUCTS = ((1, 64, 96), (1, 576, 192), (3, 40, 24), (17, 192, 61), (64, 128, 130), (130, 96, 256))


def _normal(random: Generator, dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=random).to(dtype)


def _strided(x: Tensor) -> Tensor:
    """Return `x` as a view whose rows lie apart, as in a fused product."""
    wide = torch.zeros(*x.shape[:-1], x.shape[-1] + 16, dtype=x.dtype)
    wide[..., 8 : 8 + x.shape[-1]] = x
    return wide[..., 8 : 8 + x.shape[-1]]


def linear(random: Generator, dtype: torch.dtype) -> Iterator[OpCase]:
    """Products with and without bias, of contiguous and strided tensors, 1 to 3 dimensions."""
    for tokens, size, out in _PRODUCTS:
        weight = _normal(random, dtype, out, size) * size**-0.5
        bias = _normal(random, dtype, out)
        x = _normal(random, dtype, tokens, size)
        what = f"[{tokens}, {size}] x [{out}, {size}]"
        yield OpCase(what=what, args=(x,), weights=(weight.to(dtype), None))
        # A rank's columns of a whole matrix: a view whose rows lie apart.
        part = _strided(weight.to(dtype))
        yield OpCase(what=f"{what}, bias, strided", args=(_strided(x),), weights=(part, bias))
    x = _normal(random, dtype, 2, 3, 64)
    yield OpCase(what="[2, 3, 64]", args=(x,), weights=(_normal(random, dtype, 32, 64) * 0.1, None))


def gate_up_linear(random: Generator, dtype: torch.dtype) -> Iterator[OpCase]:
    """Both activations, with and without bias."""
    for tokens, size, out in _PRODUCTS:
        weight = _normal(random, dtype, 2 * out, size) * size**-0.5
        x = _normal(random, dtype, tokens, size)
        for activation in ("silu", "gelu_tanh"):
            bias = _normal(random, dtype, 2 * out) if tokens % 2 else None
            yield OpCase(
                what=f"[{tokens}, {size}], {activation}",
                args=(x,),
                weights=(weight.to(dtype), bias, activation),
            )


def logits(random: Generator, dtype: torch.dtype) -> Iterator[OpCase]:
    """A head's product; its result is float32."""
    for case in linear(random, dtype):
        if case.args[0].dim() == 2:
            yield case


def embedding(random: Generator, dtype: torch.dtype) -> Iterator[OpCase]:
    """Repeated, first and last rows."""
    weight = _normal(random, dtype, 37, 48)
    ids = torch.randint(0, 37, (19,), generator=random)
    ids[:3] = torch.tensor([0, 36, 36])
    yield OpCase(what="19 of 37 rows", args=(ids, weight), tolerance=dict.fromkeys(_EXACT, 0.0))


_EXACT = ("float32", "bfloat16", "float16")


def rms_norm(random: Generator, dtype: torch.dtype) -> Iterator[OpCase]:
    """Whole rows and heads of a fused product."""
    for shape in ((1, 576), (7, 33), (64, 2048), (5, 3, 64)):
        x = _normal(random, dtype, *shape) * 3
        weight = torch.rand(shape[-1], generator=random) + 0.5
        yield OpCase(what=f"{list(shape)}", args=(x, weight, 1e-5))
    heads = _strided(_normal(random, dtype, 6, 4 * 32)).unflatten(-1, (4, 32))
    yield OpCase(what="strided heads", args=(heads, torch.rand(32, generator=random), 1e-6))


def fused_add_rms_norm(random: Generator, dtype: torch.dtype) -> Iterator[OpCase]:
    """Rows of several sizes; both tensors change."""
    for shape in ((1, 576), (7, 33), (64, 2048)):
        x, residual = _normal(random, dtype, *shape), _normal(random, dtype, *shape) * 4
        weight = torch.rand(shape[-1], generator=random) + 0.5
        yield OpCase(what=f"{list(shape)}", args=(x, residual, weight, 1e-5))


def gated(random: Generator, dtype: torch.dtype) -> Iterator[OpCase]:
    """Odd and wide rows, large values of both signs."""
    for shape in ((1, 2 * 1536), (7, 2 * 33), (2, 3, 2 * 40)):
        yield OpCase(what=f"{list(shape)}", args=(_normal(random, dtype, *shape) * 6,))


def rotary_embedding(random: Generator, dtype: torch.dtype) -> Iterator[OpCase]:
    """Whole and partial heads, halves and pairs, contiguous and strided."""
    for head_size, rotary_size, interleaved in ((64, 64, False), (40, 16, False), (32, 32, True)):
        angles = torch.rand(50, rotary_size // 2, generator=random) * 6
        cos_sin = torch.cat((angles.cos(), angles.sin()), -1)
        positions = torch.randint(0, 50, (11,), generator=random)
        query = _strided(_normal(random, dtype, 11, 6 * head_size)).unflatten(-1, (6, head_size))
        key = _normal(random, dtype, 11, 2, head_size)
        what = f"head {head_size}, rotary {rotary_size}, interleaved {interleaved}"
        yield OpCase(what=what, args=(query, key, positions, cos_sin, interleaved))
