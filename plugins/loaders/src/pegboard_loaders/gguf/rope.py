"""Rotary parameters of a GGUF file under Hugging Face's keys."""

import math
from typing import Any

import numpy as np

from pegboard.api.errors import ModelError
from pegboard_loaders.gguf.dequantize import dequantize
from pegboard_loaders.gguf.reader import GgufFile

__all__ = ["rope_parameters"]


def rope_parameters(file: GgufFile, prefix: str, head_dim: int) -> dict[str, Any]:
    """Return rope_type, rope_theta and the type's numbers.

    Raises:
        ModelError: a partial rotary, or a scaling that is not supported.
    """
    metadata = file.metadata
    rotated = metadata.get(f"{prefix}.rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise ModelError(
            f"{file.path} rotates {rotated} of {head_dim} dimensions a head; only whole heads are "
            "supported"
        )
    theta = _positive(file, f"{prefix}.rope.freq_base", 10_000.0)
    kind = metadata.get(f"{prefix}.rope.scaling.type", "none")
    if "rope_freqs.weight" in file.tensors:
        return {"rope_theta": theta, **_llama3(file, theta, head_dim)}
    if kind in ("none", ""):
        return {"rope_type": "default", "rope_theta": theta}
    factor = _positive(file, f"{prefix}.rope.scaling.factor", 1.0)
    if kind == "linear":
        return {"rope_type": "linear", "rope_theta": theta, "factor": factor}
    if kind == "yarn":
        original = _positive(file, f"{prefix}.rope.scaling.original_context_length", 0)
        return {
            "rope_type": "yarn",
            "rope_theta": theta,
            "factor": factor,
            "original_max_position_embeddings": int(original),
        }
    raise ModelError(
        f"{file.path}: rotary scaling {kind!r} is not supported; none, linear and yarn are"
    )


def _positive(file: GgufFile, key: str, default: float) -> float:
    value = file.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ModelError(f"{file.path}: {key} is {value!r}, not a number")
    if not (math.isfinite(value) and value > 0):
        raise ModelError(f"{file.path}: {key} is {value!r}; a positive number is needed")
    return float(value)


def _llama3(file: GgufFile, theta: float, head_dim: int) -> dict[str, Any]:
    """Recover Llama 3's scaling from the table of divisors that the converter worked out.

    The published models differ in `factor` alone, which is the largest divisor; the table made
    from it must be the file's.
    """
    tensor = file.tensors["rope_freqs.weight"]
    kind = tensor.type
    stored = dequantize(file.tensor_bytes(tensor), kind.name, kind.block_size, kind.block_bytes)
    parameters = {
        "rope_type": "llama3",
        "factor": float(stored.max(initial=0.0)),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    expected = _llama3_divisors(theta, head_dim, parameters)
    if stored.shape != expected.shape or not np.allclose(stored, expected, rtol=1e-3):
        raise ModelError(
            f"{file.path}: rope_freqs.weight is no Llama 3 scaling, and no other is supported"
        )
    return parameters


def _llama3_divisors(theta: float, head_dim: int, parameters: dict[str, Any]) -> np.ndarray:
    """Return what each frequency is divided by, [head_dim / 2]."""
    factor = max(parameters["factor"], 1e-6)
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    original = parameters["original_max_position_embeddings"]
    waves = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = np.clip((original / waves - low) / (high - low), 0, 1)
    return 1 / ((1 - smooth) / factor + smooth)
