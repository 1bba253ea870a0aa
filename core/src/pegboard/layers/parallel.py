"""How a model is divided over tensor-parallel ranks, and which sizes divide it."""

from collections.abc import Mapping
from typing import Any

from pegboard.api.errors import ModelError
from pegboard.api.models import ModelContext

__all__ = ["divide", "divide_kv_heads", "tensor_parallel_sizes"]


def _kv_heads_divide(num_kv_heads: int, size: int) -> bool:
    return num_kv_heads % size == 0 or size % num_kv_heads == 0


def tensor_parallel_sizes(config: Mapping[str, Any]) -> list[int]:
    """Return the tensor-parallel sizes that divide a model.

    Query heads and the MLP's features must divide. Key and value heads may be fewer than ranks
    if each is repeated equally often. Vocabularies are padded and always divide.

    Args:
        config: under Hugging Face's keys.
    """
    num_heads = config["num_attention_heads"]
    num_kv_heads = config.get("num_key_value_heads") or num_heads
    features = config.get("intermediate_size") or num_heads
    return [
        size
        for size in range(1, num_heads + 1)
        if num_heads % size == 0 and features % size == 0 and _kv_heads_divide(num_kv_heads, size)
    ]


def _refuse(context: ModelContext, total: int, what: str) -> ModelError:
    sizes = ", ".join(map(str, tensor_parallel_sizes(context.config)))
    return ModelError(
        f"tensor_parallel_size is {context.tensor_parallel.size}, which does not divide the "
        f"model's {total} {what}; sizes that do: {sizes} (--tensor-parallel-size)"
    )


def divide(context: ModelContext, total: int, what: str) -> int:
    """Return one rank's share of `total`.

    Args:
        context: of the model that is built.
        total: whole count.
        what: names it in the error, such as "attention heads".

    Raises:
        ModelError: the group's size does not divide it; names the sizes that do.
    """
    if total % context.tensor_parallel.size:
        raise _refuse(context, total, what)
    return total // context.tensor_parallel.size


def divide_kv_heads(context: ModelContext, total: int) -> tuple[int, int]:
    """Return one rank's (first, count) of the key and value heads, repeated where they are few.

    Raises:
        ModelError: the group's size neither divides `total` nor is a multiple of it.
    """
    group = context.tensor_parallel
    if not _kv_heads_divide(total, group.size):
        raise _refuse(context, total, "key and value heads")
    return group.rank * total // group.size, max(1, total // group.size)
