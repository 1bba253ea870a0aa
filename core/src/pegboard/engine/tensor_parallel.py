"""Whether a model's layers divide over a fleet."""

from collections.abc import Mapping
from typing import Any

from pegboard.api.distributed import tensor_parallel_sizes
from pegboard.api.errors import ConfigError

__all__ = ["check_tensor_parallel"]


def check_tensor_parallel(config: Mapping[str, Any], size: int) -> None:
    """Refuse a fleet size that does not divide.

    Raises:
        ConfigError: names the sizes that do.
    """
    sizes = tensor_parallel_sizes(config)
    if size in sizes:
        return
    fitting = ", ".join(map(str, sizes))
    raise ConfigError(
        f"tensor_parallel_size is {size}; the model has {config.get('num_attention_heads')} query "
        f"and {config.get('num_key_value_heads') or config.get('num_attention_heads')} KV heads, "
        f"which divide over {fitting} (--tensor-parallel-size)"
    )
