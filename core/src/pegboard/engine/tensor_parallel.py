"""Whether a model's layers divide over a fleet."""

from collections.abc import Mapping
from typing import Any

from pegboard.api.errors import ConfigError

__all__ = ["check_tensor_parallel", "sizes_that_divide"]


def _divides(config: Mapping[str, Any], size: int) -> bool:
    heads = int(config.get("num_attention_heads") or 1)
    kv_heads = int(config.get("num_key_value_heads") or heads)
    inner = int(config.get("intermediate_size") or 0)
    if heads % size or inner % size:
        return False
    return kv_heads % size == 0 or size % kv_heads == 0


def sizes_that_divide(config: Mapping[str, Any]) -> list[int]:
    """Return the fleet sizes that the model's heads and widths divide over.

    KV heads either divide, or are replicated evenly.
    """
    heads = int(config.get("num_attention_heads") or 1)
    return [size for size in range(1, heads + 1) if _divides(config, size)]


def check_tensor_parallel(config: Mapping[str, Any], size: int) -> None:
    """Refuse a fleet size that does not divide.

    Raises:
        ConfigError: names the sizes that do.
    """
    if _divides(config, size):
        return
    fitting = ", ".join(map(str, sizes_that_divide(config)))
    raise ConfigError(
        f"tensor_parallel_size is {size}; the model has {config.get('num_attention_heads')} query "
        f"and {config.get('num_key_value_heads') or config.get('num_attention_heads')} KV heads, "
        f"which divide over {fitting} (--tensor-parallel-size)"
    )
