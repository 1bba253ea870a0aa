"""One memory under all groups: overlays, block copies and zeros."""

import pytest
import torch

from pegboard.api.attention import KVLayout
from pegboard.api.errors import EngineError
from pegboard.api.kv import KVGroup
from pegboard.worker.kv_cache import KVCache

DEVICE = torch.device("cpu")


def group(layers, block_size=4):
    return KVGroup(group_type="full", layers=layers, block_size=block_size)


def layout(*shapes, dtype="float32", block_dim=0, block_size=4):
    return KVLayout(
        name="test",
        shapes=shapes,
        dtypes=(dtype,) * len(shapes),
        block_dim=block_dim,
        block_size=block_size,
    )


def test_the_ith_layers_of_all_groups_share_memory():
    layouts = {layer: layout((6, 4, 2, 8), (6, 4, 2, 8)) for layer in range(5)}
    cache = KVCache([group((0, 2, 4)), group((1, 3))], layouts, DEVICE)
    assert cache.nbytes == 3 * 2 * 6 * 4 * 2 * 8 * 4
    for one, other in ((0, 1), (2, 3)):
        for a, b in zip(cache.layer(one), cache.layer(other), strict=True):
            assert a.data_ptr() == b.data_ptr()
    pointers = {cache.layer(layer)[0].data_ptr() for layer in (0, 2, 4)}
    assert len(pointers) == 3
    assert cache.layer(9) == ()


def test_groups_with_larger_blocks_lie_over_the_same_bytes():
    layouts = {0: layout((6, 4, 2, 8)), 1: layout((6, 8, 1, 8), block_size=8)}
    cache = KVCache([group((0,)), group((1,), 8)], layouts, DEVICE)
    (wide,), (narrow,) = cache.layer(0), cache.layer(1)
    wide.zero_()
    narrow[3] = 1.0
    assert wide[3].eq(1).all()
    assert wide.sum() == wide[3].numel()


def test_layouts_that_cannot_lie_over_each_other_are_refused():
    layouts = {
        0: layout((2, 6, 4, 8), block_dim=1),
        1: layout((2, 6, 8, 4), block_dim=1),
    }
    with pytest.raises(EngineError, match="cannot lie over each other"):
        KVCache([group((0,)), group((1,))], layouts, DEVICE)


@pytest.mark.parametrize("block_dim", [0, 1])
def test_blocks_are_zeroed_and_copied_along_their_dimension(block_dim):
    shape = (6, 2, 8) if block_dim == 0 else (2, 6, 8)
    cache = KVCache(
        [group((0, 1))], dict.fromkeys((0, 1), layout(shape, block_dim=block_dim)), DEVICE
    )
    before = {}
    for layer in (0, 1):
        (tensor,) = cache.layer(layer)
        tensor.copy_(torch.randn(shape))
        before[layer] = tensor.clone()
    cache.copy_blocks([(1, 2), (2, 5)])
    cache.zero_blocks([0, 4])
    for layer in (0, 1):
        blocks, old = (t.unbind(block_dim) for t in (cache.layer(layer)[0], before[layer]))
        assert torch.equal(blocks[2], old[1])
        assert torch.equal(blocks[5], old[2])
        assert not blocks[0].any()
        assert not blocks[4].any()
        assert torch.equal(blocks[1], old[1])
        assert torch.equal(blocks[3], old[3])
