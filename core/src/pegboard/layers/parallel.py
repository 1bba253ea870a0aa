"""How a model is divided over tensor-parallel ranks."""

from pegboard.api.distributed import tensor_parallel_sizes
from pegboard.api.errors import ModelError
from pegboard.api.models import ModelContext

__all__ = ["divide", "divide_kv_heads"]


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
    if total % group.size and group.size % total:
        raise _refuse(context, total, "key and value heads")
    return group.rank * total // group.size, max(1, total // group.size)
