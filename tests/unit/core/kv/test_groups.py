"""Group types: the longest hit and the blocks that may go, against the definition."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.scheduling import full_group, window_group

from pegboard.api.errors import ConfigError
from pegboard.api.kv import KVGroup, KVGroupType
from pegboard.kv.groups.full import FullGroup
from pegboard.kv.groups.sliding_window import SlidingWindowGroup

SIZE = 4


def seen_by_next_query(num_tokens: int, window: int | None) -> range:
    """Earlier positions that the query at position `num_tokens` sees, by definition."""
    if window is None:
        return range(num_tokens)
    return range(max(0, num_tokens - (window - 1)), num_tokens)


def make(window: int | None) -> KVGroupType:
    if window is None:
        return FullGroup(full_group(SIZE))
    return SlidingWindowGroup(window_group(window, SIZE))


windows = st.one_of(st.none(), st.integers(1, 20))


@settings(deadline=None, max_examples=300)
@given(windows, st.lists(st.booleans(), max_size=14))
def test_longest_hit_is_the_longest_prefix_whose_visible_blocks_are_cached(
    window: int | None, cached: list[bool]
) -> None:
    def is_servable(num_blocks: int) -> bool:
        return all(cached[p // SIZE] for p in seen_by_next_query(num_blocks * SIZE, window))

    longest = max(n for n in range(len(cached) + 1) if is_servable(n))

    length, needed = make(window).longest_hit(len(cached), cached.__getitem__)

    assert length == longest
    visible = {p // SIZE for p in seen_by_next_query(length * SIZE, window)}
    assert visible <= set(needed)
    assert all(cached[index] for index in needed)
    assert set(needed) == visible


@settings(deadline=None)
@given(windows, st.integers(0, 80))
def test_no_later_query_sees_a_block_before_the_first_needed(
    window: int | None, num_computed: int
) -> None:
    first = make(window).first_needed_block(num_computed)

    visible = [*seen_by_next_query(num_computed, window), num_computed]
    assert first == min(visible) // SIZE


@settings(deadline=None)
@given(windows, st.integers(1, 100), st.integers(1, 30), st.integers(0, 30))
def test_max_blocks_covers_a_window_and_all_tokens_in_flight(
    window: int | None, num_tokens: int, in_flight: int, offset: int
) -> None:
    group_type = make(window)
    most = group_type.max_blocks(num_tokens, in_flight)

    confirmed = max(0, num_tokens - in_flight - offset)
    scheduled = min(num_tokens, confirmed + in_flight)
    held = -(-scheduled // SIZE) - group_type.first_needed_block(confirmed)
    assert held <= most


@pytest.mark.parametrize("window", [None, 0])
def test_window_group_without_window_is_refused(window: int | None) -> None:
    group = KVGroup(group_type="sliding_window", layers=(1,), block_size=4, window=window)
    with pytest.raises(ConfigError, match="must give at least 1"):
        SlidingWindowGroup(group)
