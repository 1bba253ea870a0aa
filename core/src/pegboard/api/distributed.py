"""Process groups as models and layers see them: a rank, a size and a few collectives."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

__all__ = ["ProcessGroup"]


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
