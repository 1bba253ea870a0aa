"""Norms, gated activations, gathers, and rotation with the cache write, against plain torch."""

import pytest
import torch
from torch import Tensor

from pegboard_kernels import Isa, KernelError, KernelLibrary
from pegboard_kernels import fused as kernels
from pegboard_kernels.linear import gather_rows
from pegboard_kernels.registration import ACTIVATIONS

TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 8e-3}


def _close(got: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(
        got.float(), expected.float(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )


def _norm(x: Tensor, weight: Tensor | None, eps: float, offset: float) -> Tensor:
    x = x.float()
    scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return scaled if weight is None else scaled * (weight.float() + offset)


@pytest.mark.parametrize("cols", [16, 64, 576, 100, 7, 1000])
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_matches_torch(
    isa: Isa,
    dtype: torch.dtype,
    cols: int,
    offset: float,
    weight_dtype: torch.dtype,
    generator: torch.Generator,
) -> None:
    x = torch.randn(37, cols, generator=generator).to(dtype)
    weight = torch.randn(cols, generator=generator).to(weight_dtype)
    _close(kernels.rms_norm(x, weight, 1e-5, offset), _norm(x, weight, 1e-5, offset), dtype)
    _close(kernels.rms_norm(x, None, 1e-5), _norm(x, None, 1e-5, 0.0), dtype)


@pytest.mark.parametrize("cols", [64, 576, 100])
def test_fused_add_rms_norm_updates_both_in_place(
    isa: Isa, dtype: torch.dtype, cols: int, generator: torch.Generator
) -> None:
    x = torch.randn(5, cols, generator=generator).to(dtype)
    residual = torch.randn(5, cols, generator=generator).to(dtype)
    weight = torch.randn(cols, generator=generator).to(dtype)
    total = (x.float() + residual.float()).to(dtype)
    kernels.fused_add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(residual, total)
    _close(x, _norm(total, weight, 1e-6, 0.0), dtype)


def test_rms_norm_reads_strided_rows(
    isa: Isa, dtype: torch.dtype, generator: torch.Generator
) -> None:
    wide = torch.randn(6, 90, generator=generator).to(dtype)
    x = wide[:, 10:74]
    assert torch.equal(
        kernels.rms_norm(x, None, 1e-5), kernels.rms_norm(x.contiguous(), None, 1e-5)
    )


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("cols", [16, 1536, 100, 3])
def test_gated_activation_matches_torch(
    isa: Isa, dtype: torch.dtype, activation: str, cols: int, generator: torch.Generator
) -> None:
    x = (torch.randn(11, 2 * cols, generator=generator) * 4).to(dtype)
    gate, up = x.float().split(cols, dim=1)
    act = (
        torch.nn.functional.silu(gate)
        if activation == "silu"
        else torch.nn.functional.gelu(gate, approximate="tanh")
    )
    _close(kernels.gated_activation(x, ACTIVATIONS[activation]), act * up, dtype)


def test_activations_of_extreme_values_are_finite(isa: Isa) -> None:
    gate = torch.tensor([-1e30, -200.0, -90.0, 0.0, 90.0, 200.0, 1e30])
    x = torch.cat([gate, torch.ones(7)])[None]
    for code, expected in (
        (1, torch.nn.functional.silu(gate)),
        (2, torch.nn.functional.gelu(gate, approximate="tanh")),
    ):
        torch.testing.assert_close(
            kernels.gated_activation(x, code)[0], expected, rtol=1e-5, atol=1e-5
        )


def test_gather_rows_matches_indexing(
    isa: Isa, dtype: torch.dtype, generator: torch.Generator
) -> None:
    table = torch.randn(50, 24, generator=generator).to(dtype)
    ids = torch.randint(0, 50, (70,), generator=generator)
    assert torch.equal(gather_rows(table, ids), table[ids])
    with pytest.raises(KernelError, match="outside"):
        gather_rows(table, torch.tensor([-1]))


def _rotated(x: Tensor, cos_sin: Tensor, positions: Tensor, is_neox: bool) -> Tensor:
    half = cos_sin.shape[1] // 2
    cos, sin = cos_sin[positions][:, None, :half], cos_sin[positions][:, None, half:]
    turned, rest = x[..., : 2 * half].float(), x[..., 2 * half :].float()
    if is_neox:
        a, b = turned[..., :half], turned[..., half:]
        turned = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
    else:
        a, b = turned[..., ::2], turned[..., 1::2]
        turned = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
    return torch.cat([turned, rest], dim=-1)


def _read_cache(cache: Tensor, is_key: bool, block_size: int, head_size: int) -> Tensor:
    """Return the cache as [num_blocks * block_size, num_kv_heads, head_size]."""
    blocks, heads = cache.shape[:2]
    width = 2 if cache.dtype is torch.bfloat16 else 1
    if is_key:
        view = cache.reshape(blocks, heads, block_size // 16, head_size // width, 16, width)
        plain = view.permute(0, 2, 4, 1, 3, 5)
    else:
        view = cache.reshape(blocks, heads, block_size // width, head_size, width)
        plain = view.permute(0, 2, 4, 1, 3)
    return plain.reshape(blocks * block_size, heads, head_size)


@pytest.mark.parametrize(
    ("head_size", "rotary_size"), [(64, 64), (80, 32), (24, 24), (128, 128), (8, 8)]
)
@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize("with_norm", [True, False])
def test_rotate_and_write_matches_torch(
    isa: Isa,
    dtype: torch.dtype,
    head_size: int,
    rotary_size: int,
    is_neox: bool,
    with_norm: bool,
    generator: torch.Generator,
) -> None:
    tokens, heads, kv_heads, block_size, blocks = 21, 4, 2, 32, 5
    fused = torch.randn(tokens, (heads + 2 * kv_heads) * head_size, generator=generator).to(dtype)
    query, key, value = (
        part.unflatten(-1, (-1, head_size))
        for part in fused.split([heads * head_size, kv_heads * head_size, kv_heads * head_size], 1)
    )
    positions = torch.randint(0, 40, (tokens,), generator=generator)
    cos_sin = torch.randn(40, rotary_size, generator=generator)
    slots = torch.randperm(blocks * block_size, generator=generator)[:tokens]
    slots[[4, 20]] = -1
    norms = [torch.randn(head_size, generator=generator).to(dtype) for _ in range(2)]
    q_norm, k_norm = norms if with_norm else (None, None)
    before = query.clone(), key.clone(), value.clone()
    caches = [
        torch.randn(blocks, kv_heads, block_size * head_size, generator=generator).to(dtype)
        for _ in range(2)
    ]
    old = [cache.clone() for cache in caches]
    kernels.rotate_and_write(
        query, key, value, q_norm, k_norm, 1e-6, 1.0, positions, cos_sin, is_neox,
        *caches, slots, block_size,
    )  # fmt: skip

    def turned(x: Tensor, norm: Tensor | None) -> Tensor:
        x = x.float() if norm is None else _norm(x, norm, 1e-6, 1.0)
        return _rotated(x, cos_sin, positions, is_neox)

    tolerance = {"rtol": 1e-2, "atol": 4e-2} if dtype is torch.bfloat16 else {}
    torch.testing.assert_close(query.float(), turned(before[0], q_norm), **tolerance)
    torch.testing.assert_close(key.float(), turned(before[1], k_norm), **tolerance)
    assert torch.equal(value, before[2])
    written = slots >= 0
    keys, values = (
        _read_cache(cache, is_key, block_size, head_size)
        for cache, is_key in zip(caches, (True, False), strict=True)
    )
    assert torch.equal(keys[slots[written]], key[written])
    assert torch.equal(values[slots[written]], value[written])
    untouched = torch.ones(blocks * block_size, dtype=torch.bool)
    untouched[slots[written]] = False
    for cache, previous, is_key in zip(caches, old, (True, False), strict=True):
        now = _read_cache(cache, is_key, block_size, head_size)[untouched]
        assert torch.equal(now, _read_cache(previous, is_key, block_size, head_size)[untouched])


def test_rotate_alone_needs_no_cache(
    isa: Isa, dtype: torch.dtype, generator: torch.Generator
) -> None:
    query = torch.randn(3, 2, 16, generator=generator).to(dtype)
    key = torch.randn(3, 1, 16, generator=generator).to(dtype)
    positions = torch.tensor([0, 5, 9])
    cos_sin = torch.randn(10, 16, generator=generator)
    expected = _rotated(query, cos_sin, positions, True)
    kernels.rotate_and_write(
        query, key, None, None, None, 0.0, 0.0, positions, cos_sin, True, None, None, None, 0
    )
    _close(query, expected, dtype)


def test_slot_and_position_out_of_range_are_refused(library: KernelLibrary) -> None:
    key, value = torch.zeros(1, 1, 16), torch.zeros(1, 1, 16)
    cache = torch.zeros(2, 1, 16 * 16)
    with pytest.raises(KernelError, match="slot 32 is outside"):
        kernels.rotate_and_write(
            None, key, value, None, None, 0.0, 0.0, None, None, True, cache, cache.clone(),
            torch.tensor([32]), 16,
        )  # fmt: skip
    with pytest.raises(KernelError, match="position 7 is outside"):
        kernels.rotate_and_write(
            None, key, value, None, None, 0.0, 0.0, torch.tensor([7]), torch.zeros(7, 16), True,
            None, None, None, 0,
        )  # fmt: skip
