"""Expands GGUF's block formats to float32, vectorised over blocks. Imports no torch.

A block holds 32 or 256 neighbouring values of a row as small integers with a float16 scale, and
in some formats an offset: value = scale * integer (+ or - offset). In the K formats 256 values
share the float16 numbers, and each group of 16 or 32 has a 6- or 8-bit scale of its own.

Source: the GGML tensor encoding; each function states its block's layout in bytes.
"""

from collections.abc import Callable

import numpy as np

__all__ = ["dequantize"]

#: Blocks expanded at a time: temporaries stay within the processor's caches.
_CHUNK_VALUES = 1 << 16

_Expander = Callable[[np.ndarray], np.ndarray]


def dequantize(data: np.ndarray, type_name: str, block_size: int, block_bytes: int) -> np.ndarray:
    """Expand stored bytes.

    Args:
        data: [num_blocks * block_bytes] uint8.
        type_name: of the tensor type, such as "Q4_1".
        block_size: values a block.
        block_bytes: bytes a block.

    Returns:
        [num_blocks * block_size] float32, newly allocated.
    """
    expand = _EXPANDERS[type_name]
    blocks = data.reshape(-1, block_bytes)
    values = np.empty((blocks.shape[0], block_size), np.float32)
    step = max(1, _CHUNK_VALUES // block_size)
    with np.errstate(invalid="ignore", over="ignore"):  # a scale may be NaN or infinite
        for start in range(0, blocks.shape[0], step):
            chunk = np.ascontiguousarray(blocks[start : start + step])
            values[start : start + step] = expand(chunk)
    return values.reshape(-1)


def _half(blocks: np.ndarray, start: int) -> np.ndarray:
    """Return the float16 at byte `start` of each block as float32, [num_blocks, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view(np.float16).astype(np.float32)


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """Split bytes [num_blocks, n]: all low halves, then all high halves, [num_blocks, 2n]."""
    return np.concatenate([packed & 0x0F, packed >> 4], axis=1)


def _bits(packed: np.ndarray) -> np.ndarray:
    """Return single bits, lowest first: [num_blocks, n] to [num_blocks, 8n]."""
    return np.unpackbits(packed, axis=1, bitorder="little")


def _f32(blocks: np.ndarray) -> np.ndarray:
    return blocks.view(np.float32)


def _f16(blocks: np.ndarray) -> np.ndarray:
    return blocks.view(np.float16).astype(np.float32)


def _bf16(blocks: np.ndarray) -> np.ndarray:
    return (blocks.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _q4_0(blocks: np.ndarray) -> np.ndarray:
    """Scale f16, 16 bytes of nibbles; value = scale * (q - 8)."""
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _q4_1(blocks: np.ndarray) -> np.ndarray:
    """Scale f16, offset f16, 16 bytes of nibbles; value = scale * q + offset."""
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + _half(blocks, 2)


def _q5_0(blocks: np.ndarray) -> np.ndarray:
    """Scale f16, 4 bytes of fifth bits, 16 bytes of nibbles; value = scale * (q - 16)."""
    quants = _nibbles(blocks[:, 6:]) | _bits(blocks[:, 2:6]) << 4
    return _half(blocks, 0) * (quants.astype(np.float32) - 16)


def _q5_1(blocks: np.ndarray) -> np.ndarray:
    """Scale f16, offset f16, 4 bytes of fifth bits, 16 bytes of nibbles."""
    quants = _nibbles(blocks[:, 8:]) | _bits(blocks[:, 4:8]) << 4
    return _half(blocks, 0) * quants.astype(np.float32) + _half(blocks, 2)


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    """Scale f16, 32 signed bytes; value = scale * q."""
    return _half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _scales_and_offsets(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Unpack eight 6-bit scales and eight 6-bit offsets from 12 bytes.

    Bytes 0-3 and 4-7 hold the first four of each in their low six bits; their top two bits,
    with the low (scales) and high (offsets) halves of bytes 8-11, make the last four.
    """
    first, second, rest = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 0x3F, (rest & 0x0F) | (first >> 6) << 4], axis=1)
    offsets = np.concatenate([second & 0x3F, (rest >> 4) | (second >> 6) << 4], axis=1)
    return scales.astype(np.float32), offsets.astype(np.float32)


def _k_values(blocks: np.ndarray, quants: np.ndarray) -> np.ndarray:
    """Value = d * scale[group] * q - dmin * offset[group]; quants [num_blocks, 8, 32]."""
    scales, offsets = _scales_and_offsets(blocks[:, 4:16])
    scales *= _half(blocks, 0)
    offsets *= _half(blocks, 2)
    values = scales[:, :, None] * quants.astype(np.float32) - offsets[:, :, None]
    return values.reshape(-1, 256)


def _k_nibbles(packed: np.ndarray) -> np.ndarray:
    """Four runs of 32 bytes: each gives a group of low halves, then one of high halves."""
    runs = packed.reshape(-1, 4, 1, 32)
    return np.concatenate([runs & 0x0F, runs >> 4], axis=2).reshape(-1, 8, 32)


def _q4_k(blocks: np.ndarray) -> np.ndarray:
    """D f16, dmin f16, 12 bytes of scales and offsets, 128 bytes of nibbles."""
    return _k_values(blocks, _k_nibbles(blocks[:, 16:]))


def _q5_k(blocks: np.ndarray) -> np.ndarray:
    """As Q4_K with 32 bytes of fifth bits before the nibbles; bit g of byte i is group g's."""
    groups = np.arange(8, dtype=np.uint8)[None, :, None]
    fifth = (blocks[:, None, 16:48] >> groups) & 1
    return _k_values(blocks, _k_nibbles(blocks[:, 48:]) | fifth << 4)


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    """128 bytes of low halves, 64 of top pairs of bits, 16 signed scales, d f16.

    Each half of the block, 128 values in four groups of 32, takes 64 bytes of the first and 32
    of the second; value = d * scale[16 values] * (q - 32).
    """
    low = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate([low & 0x0F, low >> 4], axis=2).reshape(-1, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8)[None, None, :, None]
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3
    quants = (low | high << 4).astype(np.float32) - 32
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32) * _half(blocks, 208)
    return (quants.reshape(-1, 16, 16) * scales[:, :, None]).reshape(-1, 256)


_EXPANDERS: dict[str, _Expander] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
