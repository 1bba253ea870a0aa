"""Process groups as models and layers see them: a rank, a size and a few collectives."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

__all__ = ["ProcessGroup", "tensor_parallel_sizes"]


def tensor_parallel_sizes(config: Mapping[str, Any]) -> list[int]:
    """Return the tensor-parallel sizes that divide a model.

    Query heads and the MLP's features must divide. Key and value heads may be fewer than ranks
    if each is repeated equally often. Vocabularies are padded and always divide.

    Args:
        config: as `ModelDescription.config`.
    """
    num_heads = int(config.get("num_attention_heads") or 1)
    num_kv_heads = int(config.get("num_key_value_heads") or num_heads)
    features = int(config.get("intermediate_size") or 0)
    return [
        size
        for size in range(1, num_heads + 1)
        if num_heads % size == 0
        and features % size == 0
        and (num_kv_heads % size == 0 or size % num_kv_heads == 0)
    ]


class ProcessGroup(Protocol):
    """A tensor-, pipeline- or expert-parallel group. All calls are collective and in order."""

    @property
    def rank(self) -> int:
        """This process's number in the group."""
        ...

    @property
    def size(self) -> int:
        """Processes in the group; 1 makes every collective the identity."""
        ...

    def all_reduce(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """Return the elementwise sum over the group; may work in place."""
        ...

    def all_gather(self, tensor: "torch.Tensor", dim: int = -1) -> "torch.Tensor":
        """Return the group's tensors, equal in shape, joined along `dim` in rank order."""
        ...

    def broadcast(self, tensor: "torch.Tensor", source: int = 0) -> "torch.Tensor":
        """Return `source`'s tensor, in place."""
        ...
