"""Head norms, rotary embedding and the cache write in one pass over the fused product.

One program turns a few heads of one token: query heads in place, key heads into the cache, and
with the keys their values. Writes the layout `triton_paged`.
"""

# Launches take options, and constants are numbers, that triton's annotations do not show.
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportArgumentType=false, reportReturnType=false

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

__all__ = ["rope_and_write_kv", "write_kv"]

_MAX_HEADS = 8


@triton.jit
def _turned(
    start, offset, element, cos, sin, norm, eps,
    SIZE: tl.constexpr, ROTARY: tl.constexpr, INTERLEAVED: tl.constexpr, HAS_NORM: tl.constexpr,
):  # fmt: skip
    """Return heads [heads, padded size] in float32, normalised and turned.

    Args:
        start: where the heads' first element is; offset: [heads, 1] of each head from there.
        element: [1, padded size]; cos, sin: [1, padded size] of each element's pair.
    """
    half: tl.constexpr = ROTARY // 2
    if INTERLEAVED:
        is_first = element % 2 == 0
        partner = tl.where(is_first, element + 1, element - 1)
    else:
        is_first = element < half
        partner = tl.where(is_first, element + half, element - half)
    turns = element < ROTARY
    partner = tl.where(turns, partner, element)
    held = element < SIZE
    x = tl.load(start + offset + element, mask=held, other=0.0).to(tl.float32)
    y = tl.load(start + offset + partner, mask=held, other=0.0).to(tl.float32)
    if HAS_NORM:
        scale = tl.rsqrt(tl.sum(x * x, 1) / SIZE + eps)[:, None]
        x = x * scale * tl.load(norm + element, mask=held, other=0.0)
        y = y * scale * tl.load(norm + partner, mask=held, other=0.0)
    return tl.where(turns, x * cos + tl.where(is_first, -y, y) * sin, x)


@triton.jit
def _rope_and_write(
    qkv, positions, cos_sin, q_norm, k_norm, eps, slots, keys, values, stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, TILE: tl.constexpr, SIZE: tl.constexpr,
    PADDED: tl.constexpr, ROTARY: tl.constexpr, INTERLEAVED: tl.constexpr, HAS_NORM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * TILE
    element = tl.arange(0, PADDED)[None, :]
    held = element < SIZE
    half: tl.constexpr = ROTARY // 2
    position = tl.load(positions + token)
    pair = element // 2 if INTERLEAVED else element % half
    turns = element < ROTARY
    cos = tl.load(cos_sin + position * ROTARY + pair, mask=turns, other=1.0)
    sin = tl.load(cos_sin + position * ROTARY + half + pair, mask=turns, other=0.0)
    head = first + tl.arange(0, TILE)[:, None]
    start = qkv + token * stride
    offset = head * SIZE
    if first < HEADS:
        query = _turned(
            start, offset, element, cos, sin, q_norm, eps, SIZE, ROTARY, INTERLEAVED, HAS_NORM
        )
        # Every warp has read what the others are about to overwrite.
        tl.debug_barrier()
        tl.store(start + offset + element, query.to(qkv.dtype.element_ty), mask=held)
    else:
        slot = tl.load(slots + token)
        if slot >= 0:
            key = _turned(
                start, offset, element, cos, sin, k_norm, eps, SIZE, ROTARY, INTERLEAVED, HAS_NORM
            )
            value = tl.load(start + KV_HEADS * SIZE + offset + element, mask=held, other=0.0)
            kv_head = head - HEADS
            block = slot // BLOCK_SIZE
            row = (block * KV_HEADS + kv_head) * BLOCK_SIZE + slot % BLOCK_SIZE
            at = row * SIZE + element
            tl.store(keys + at, key.to(keys.dtype.element_ty), mask=held)
            tl.store(values + at, value.to(values.dtype.element_ty), mask=held)


@triton.jit
def _write(
    key, value, slots, keys, values, key_stride, key_head_stride, value_stride, value_head_stride,
    KV_HEADS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    element = tl.arange(0, PADDED)
    held = element < SIZE
    slot = tl.load(slots + token)
    if slot >= 0:
        row = (slot // BLOCK_SIZE * KV_HEADS + head) * BLOCK_SIZE + slot % BLOCK_SIZE
        k = tl.load(key + token * key_stride + head * key_head_stride + element, mask=held)
        v = tl.load(value + token * value_stride + head * value_head_stride + element, mask=held)
        tl.store(keys + row * SIZE + element, k.to(keys.dtype.element_ty), mask=held)
        tl.store(values + row * SIZE + element, v.to(values.dtype.element_ty), mask=held)


def _tile(heads: int, kv_heads: int) -> int:
    """Return how many heads a program takes: a power of two that divides both counts."""
    tile = 1
    while tile < _MAX_HEADS and heads % (2 * tile) == 0 and kv_heads % (2 * tile) == 0:
        tile *= 2
    return tile


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
    """Norm and turn queries and keys of the fused product, and cache keys and values.

    Values are as wide as keys (`TritonAttentionBackend.kv_layout` refuses others).
    """
    del v_head_size
    keys, values = kv_cache
    num_tokens = qkv.shape[0]
    if not num_tokens:
        return
    tile = _tile(num_heads, num_kv_heads)
    padded = triton.next_power_of_2(head_size)
    unused = cos_sin  # a pointer that is not read
    _rope_and_write[(num_tokens, (num_heads + num_kv_heads) // tile)](
        qkv, positions, cos_sin, unused if q_norm is None else q_norm,
        unused if k_norm is None else k_norm, eps, slot_mapping, keys, values, qkv.stride(0),
        num_heads, num_kv_heads, tile, head_size, padded, cos_sin.shape[1], interleaved,
        q_norm is not None, keys.shape[2], num_warps=min(4, max(1, tile * padded // 256)),
    )  # fmt: skip


def write_kv(key: Tensor, value: Tensor, kv_cache: Sequence[Tensor], slot_mapping: Tensor) -> None:
    """Write each new token's key and value into its slot; -1 is skipped.

    Args:
        key, value: [num_tokens, num_kv_heads, head_size], heads contiguous.
        kv_cache: keys and values, [num_blocks, num_kv_heads, block_size, head_size].
        slot_mapping: [num_tokens] int64.
    """
    keys, values = kv_cache
    num_tokens, num_kv_heads, size = key.shape
    if num_tokens:
        _write[(num_tokens, num_kv_heads)](
            key, value, slot_mapping, keys, values, key.stride(0), key.stride(1), value.stride(0),
            value.stride(1), num_kv_heads, size, triton.next_power_of_2(size), keys.shape[2],
            num_warps=1,
        )  # fmt: skip
