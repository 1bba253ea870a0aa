"""Groups with equal bytes a block."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pegboard.api.errors import ConfigError
from pegboard.api.kv import KVLayerNeed
from pegboard.kv.planning import block_bytes, plan_groups


def need(layer: int, window: int | None = None, bytes_per_token: int = 100) -> KVLayerNeed:
    return KVLayerNeed(
        layer=layer,
        group_type="full" if window is None else "sliding_window",
        bytes_per_token=bytes_per_token,
        window=window,
    )


def test_equal_layers_are_one_group() -> None:
    needs = [need(layer) for layer in range(30)]

    groups = plan_groups(needs, 16)

    assert [group.layers for group in groups] == [tuple(range(30))]
    assert block_bytes(groups, needs) == 30 * 16 * 100


def test_five_to_one_model_splits_into_groups_of_the_full_layers_size() -> None:
    needs = [need(i, None if i % 6 == 5 else 512) for i in range(18)]

    groups = plan_groups(needs, 16)

    assert sorted(len(group.layers) for group in groups) == [3] * 6
    assert sum(group.window is None for group in groups) == 1
    assert block_bytes(groups, needs) == 3 * 16 * 100


def test_uneven_counts_lose_at_most_a_tenth_of_the_slots() -> None:
    needs = [need(i, None if i % 6 == 5 else 512) for i in range(26)]

    groups = plan_groups(needs, 16)

    assert max(len(group.layers) for group in groups) == 4
    assert len(groups) == 7


def test_layers_that_need_less_get_larger_blocks() -> None:
    needs = [need(0, None, 200), need(1, 512, 100)]

    groups = plan_groups(needs, 16)

    assert [group.block_size for group in groups] == [16, 32]
    assert block_bytes(groups, needs) == 16 * 200


def test_sizes_that_cannot_be_made_equal_are_refused() -> None:
    with pytest.raises(ConfigError, match="a smaller --block-size"):
        plan_groups([need(0, None, 997), need(1, 512, 991)], 16)


def test_model_without_cache_is_refused() -> None:
    with pytest.raises(ConfigError, match="no layer with a KV cache"):
        plan_groups([], 16)


@settings(deadline=None)
@given(
    full=st.integers(0, 40),
    windowed=st.integers(0, 40),
    block_size=st.sampled_from([1, 16, 64]),
)
def test_every_layer_is_in_one_group_and_slots_are_not_wasted(
    full: int, windowed: int, block_size: int
) -> None:
    needs = [need(i) for i in range(full)] + [need(full + i, 128) for i in range(windowed)]
    if not needs:
        return

    groups = plan_groups(needs, block_size)

    assert sorted(layer for group in groups for layer in group.layers) == list(range(len(needs)))
    num_slots = max(len(group.layers) for group in groups)
    assert 10 * (num_slots * len(groups) - len(needs)) <= len(needs)
