"""Bounds on the numbers of a checkpoint's configuration, whatever its format."""

import math
from typing import Any

from pegboard.api.errors import ModelError

__all__ = ["check_sizes"]

#: Key to its largest sensible value. A hostile file must not make the engine allocate wildly.
_LIMITS = {
    "hidden_size": 1 << 18,
    "num_hidden_layers": 4096,
    "intermediate_size": 1 << 22,
    "num_attention_heads": 1 << 14,
    "num_key_value_heads": 1 << 14,
    "head_dim": 1 << 14,
    "vocab_size": 1 << 24,
    "max_position_embeddings": 1 << 30,
    "sliding_window": 1 << 30,
}


def check_sizes(config: dict[str, Any], source: str) -> None:
    """Check the numbers that shapes are made of, and that they agree.

    Raises:
        ModelError: one is no whole number within its bounds, or two disagree; names `source`.
    """
    for key, limit in _LIMITS.items():
        value = config.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
            raise ModelError(
                f"{source}: {key} is {value!r}; a whole number from 1 to {limit} is needed"
            )
    heads, kv_heads = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if heads and kv_heads and heads % kv_heads:
        raise ModelError(
            f"{source}: num_attention_heads is {heads}, not a multiple of num_key_value_heads, "
            f"{kv_heads}"
        )
    head_dim = config.get("head_dim")
    if head_dim and head_dim % 2:
        raise ModelError(f"{source}: head_dim is {head_dim}; an even number is needed")
    epsilon = config.get("rms_norm_eps")
    if epsilon is not None and (
        isinstance(epsilon, bool)
        or not isinstance(epsilon, int | float)
        or not (math.isfinite(epsilon) and 0 <= epsilon < 1)
    ):
        raise ModelError(f"{source}: rms_norm_eps is {epsilon!r}; a number from 0 to 1 is needed")
