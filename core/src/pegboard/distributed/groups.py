"""Process groups: a group of one, and a group over torch.distributed.

Collectives move tensors and nothing else: no object is serialised.
"""

import datetime

import torch
import torch.distributed as dist
from torch import Tensor

from pegboard.api.errors import WorkerError

__all__ = ["SingleGroup", "TorchGroup", "join_world", "leave_world"]


class SingleGroup:
    """The group of one process: every collective is the identity."""

    rank = 0
    size = 1

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Return the tensor itself."""
        return tensor

    def all_gather(self, tensor: Tensor, dim: int = -1) -> Tensor:
        """Return the tensor itself."""
        del dim
        return tensor

    def broadcast(self, tensor: Tensor, source: int = 0) -> Tensor:
        """Return the tensor itself."""
        del source
        return tensor


class TorchGroup:
    """A group of processes that joined one world. All calls are collective, in the same order."""

    __slots__ = ("_group", "rank", "size")

    def __init__(self, group: dist.ProcessGroup) -> None:
        """Read this process's place in the group."""
        self._group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Return the elementwise sum, in place where the tensor is contiguous."""
        tensor = tensor.contiguous()
        dist.all_reduce(tensor, group=self._group)
        return tensor

    def all_gather(self, tensor: Tensor, dim: int = -1) -> Tensor:
        """Return a new tensor: the group's, joined along `dim` in rank order."""
        tensor = tensor.contiguous()
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(parts, tensor, group=self._group)
        return torch.cat(parts, dim=dim)

    def broadcast(self, tensor: Tensor, source: int = 0) -> Tensor:
        """Fill the tensor, which must be contiguous, with the source's."""
        dist.broadcast(tensor, group=self._group, group_src=source)
        return tensor


def join_world(
    *, rank: int, world_size: int, init_method: str, backend: str, timeout_s: float = 600.0
) -> SingleGroup | TorchGroup:
    """Join the fleet's processes; returns the group of all of them. Once a process.

    Args:
        rank: this process's number.
        world_size: processes in all; 1 joins nothing.
        init_method: where they meet, such as "file:///run/private/world".
        backend: torch.distributed's, as the platform's spec names it.
        timeout_s: longest wait of a collective for the other ranks.

    Raises:
        WorkerError: the others did not come, or the backend is not there.
    """
    if world_size == 1:
        return SingleGroup()
    if not dist.is_backend_available(backend):
        raise WorkerError(
            f"rank {rank} of {world_size} cannot join the process group: this torch has no "
            f"distributed backend {backend!r}"
        )
    try:
        dist.init_process_group(
            backend,
            init_method=init_method,
            rank=rank,
            world_size=world_size,
            timeout=datetime.timedelta(seconds=timeout_s),
        )
    except (RuntimeError, ValueError) as error:
        raise WorkerError(
            f"rank {rank} of {world_size} could not join the process group ({backend}): {error}"
        ) from error
    world = dist.group.WORLD
    assert world is not None
    return TorchGroup(world)


def leave_world() -> None:
    """Leave the world, if one was joined. May be called twice."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
