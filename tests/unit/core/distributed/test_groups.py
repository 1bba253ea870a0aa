"""Process groups in one process; the multi-process executor's tests have two."""

import pytest
import torch
import torch.distributed as dist

from pegboard.api.errors import WorkerError
from pegboard.distributed.groups import SingleGroup, TorchGroup, join_world, leave_world


def test_a_world_of_one_joins_nothing():
    group = join_world(rank=0, world_size=1, init_method="", backend="nonsense")
    assert isinstance(group, SingleGroup)
    tensor = torch.randn(3, 2)
    assert group.all_reduce(tensor) is tensor
    assert group.all_gather(tensor) is tensor
    assert group.broadcast(tensor) is tensor
    leave_world()


def test_a_backend_that_is_not_there_is_named():
    with pytest.raises(WorkerError, match=r"rank 1 of 2 .*no distributed backend 'nonsense'"):
        join_world(rank=1, world_size=2, init_method="file:///nowhere/x", backend="nonsense")


def test_collectives_take_views_and_both_dtypes(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/world", rank=0, world_size=1)
    try:
        group = TorchGroup(dist.group.WORLD)
        assert (group.rank, group.size) == (0, 1)
        for dtype in (torch.float32, torch.bfloat16):
            view = torch.randn(4, 6).to(dtype)[:, ::2]
            assert torch.equal(group.all_reduce(view), view)
            assert torch.equal(group.all_gather(view), view)
            assert torch.equal(group.all_gather(view, dim=0), view)
            whole = view.contiguous()
            assert group.broadcast(whole) is whole
    finally:
        leave_world()
    leave_world()
