"""Rotary frequencies: how each kind of scaling stretches a model's positions.

Knows configurations and formulas; the tables are made in `rotary`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from pegboard.api.errors import ModelError

__all__ = ["ROPE_KINDS", "rope_frequencies", "rope_parameters"]


def rope_parameters(config: Mapping[str, Any], layer_type: str | None = None) -> dict[str, Any]:
    """Read a model's rotary parameters, in today's spelling or the former ones.

    Args:
        config: under Hugging Face's keys. `rope_parameters` may be one table or one a layer
            type; formerly `rope_theta` stood beside a table `rope_scaling`, whose kind was `type`.
        layer_type: such as "sliding_attention", for families with a table each.

    Returns:
        At least rope_type, rope_theta, partial_rotary_factor, max_position_embeddings and
        original_max_position_embeddings.
    """
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if layer_type is not None and isinstance(given.get(layer_type), Mapping):
        given = given[layer_type]
    parameters = dict(given)
    parameters["rope_type"] = parameters.get("rope_type") or parameters.pop("type", "default")
    longest = config["max_position_embeddings"]
    defaults = {
        "rope_theta": config.get("rope_theta", 10_000.0),
        "partial_rotary_factor": config.get("partial_rotary_factor", 1.0),
        "original_max_position_embeddings": config.get("original_max_position_embeddings", longest),
    }
    for name, default in defaults.items():
        if parameters.get(name) is None:
            parameters[name] = default
    parameters["max_position_embeddings"] = longest
    return parameters


def rope_frequencies(
    parameters: Mapping[str, Any], head_size: int, max_model_len: int
) -> tuple[Tensor, float]:
    """Return ([rotary_size / 2] float32 radians a position, factor on cosines and sines).

    Args:
        parameters: as `rope_parameters` returns.
        head_size: of queries and keys; a part of it turns if `partial_rotary_factor` is below 1.
        max_model_len: positions that will be used; kinds that depend on the length take it.

    Raises:
        ModelError: a kind that is not known; names those that are.
    """
    kind = parameters["rope_type"]
    scale = ROPE_KINDS.get(kind)
    if scale is None:
        known = ", ".join(ROPE_KINDS)
        raise ModelError(f"rope_type {kind!r} is not supported; supported are {known}")
    size = int(head_size * parameters["partial_rotary_factor"])
    return scale(parameters, size, max_model_len)


def _plain(theta: float, size: int) -> Tensor:
    return 1.0 / theta ** (torch.arange(0, size, 2, dtype=torch.float32) / size)


def _default(parameters: Mapping[str, Any], size: int, max_model_len: int) -> tuple[Tensor, float]:
    del max_model_len
    return _plain(parameters["rope_theta"], size), 1.0


def _linear(parameters: Mapping[str, Any], size: int, max_model_len: int) -> tuple[Tensor, float]:
    del max_model_len
    return _plain(parameters["rope_theta"], size) / parameters["factor"], 1.0


def _dynamic(parameters: Mapping[str, Any], size: int, max_model_len: int) -> tuple[Tensor, float]:
    """NTK-aware scaling for the longest sequence that this engine serves.

    Cached keys were turned once and stay, so the base cannot follow each sequence's length.
    """
    factor, trained = parameters["factor"], parameters["max_position_embeddings"]
    stretch = factor * max(max_model_len, trained) / trained - (factor - 1)
    return _plain(parameters["rope_theta"] * stretch ** (size / (size - 2)), size), 1.0


def _llama3(parameters: Mapping[str, Any], size: int, max_model_len: int) -> tuple[Tensor, float]:
    """Slow frequencies are divided by the factor, fast ones stay, those between are blended."""
    del max_model_len
    frequencies = _plain(parameters["rope_theta"], size)
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    turns = parameters["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - kept) * frequencies / parameters["factor"] + kept * frequencies, 1.0


def _yarn(parameters: Mapping[str, Any], size: int, max_model_len: int) -> tuple[Tensor, float]:
    """Interpolates slow dimensions, keeps fast ones, and sharpens attention by a factor.

    Source: Peng et al., YaRN: Efficient Context Window Extension of Large Language Models, 2023.
    """
    del max_model_len
    theta, trained = parameters["rope_theta"], parameters["original_max_position_embeddings"]
    factor = parameters.get("factor") or parameters["max_position_embeddings"] / trained

    def dimension(num_turns: float) -> float:
        return size * math.log(trained / (num_turns * 2 * math.pi)) / (2 * math.log(theta))

    low = dimension(parameters.get("beta_fast") or 32)
    high = dimension(parameters.get("beta_slow") or 1)
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    ramp = (torch.arange(size // 2, dtype=torch.float32) - low) / max(high - low, 0.001)
    kept = 1 - ramp.clamp(0, 1)
    frequencies = _plain(theta, size)
    return frequencies / factor * (1 - kept) + frequencies * kept, _yarn_sharpening(
        parameters, factor
    )


def _yarn_sharpening(parameters: Mapping[str, Any], factor: float) -> float:
    given = parameters.get("attention_factor")
    if given is not None:
        return given

    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    ours, theirs = parameters.get("mscale"), parameters.get("mscale_all_dim")
    return mscale(ours) / mscale(theirs) if ours and theirs else mscale(1.0)


def _longrope(parameters: Mapping[str, Any], size: int, max_model_len: int) -> tuple[Tensor, float]:
    """A factor for each frequency, from one of two lists by the longest sequence served.

    Source: Ding et al., LongRoPE: Extending LLM Context Window Beyond 2 Million Tokens, 2024.
    """
    trained = parameters["original_max_position_embeddings"]
    factors = parameters["long_factor" if max_model_len > trained else "short_factor"]
    stretch = torch.tensor(factors, dtype=torch.float32)
    frequencies = _plain(parameters["rope_theta"], size) / stretch
    factor = parameters.get("factor") or parameters["max_position_embeddings"] / trained
    sharpening = parameters.get("attention_factor")
    if sharpening is None:
        sharpening = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(trained))
    return frequencies, sharpening


#: rope_type to (parameters, rotary_size, max_model_len) -> (frequencies, factor).
ROPE_KINDS: dict[str, Callable[[Mapping[str, Any], int, int], tuple[Tensor, float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
