"""The KV manager: prefix hits against brute force, growth, trimming, isolation, metrics."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.scheduling import full_group, make_kv, window_group

from pegboard.api.kv import KVGroup
from pegboard.kv.block_hash import HashExtras
from pegboard.kv.manager import KVCacheManager, RequestKV

HYBRID = [full_group(4), window_group(6, 4, (1,)), window_group(9, 2, (2,))]
IN_FLIGHT = 64


def compute(kv: KVCacheManager, tokens: Sequence[int], *, salt: str | None = None) -> RequestKV:
    """Admit, compute and register a whole sequence; the caller gives it back."""
    request = kv.new_request(HashExtras(cache_salt=salt))
    kv.adopt(request, kv.lookup(request, tokens))
    assert kv.grow(request, len(tokens)) is not None
    kv.register(request, tokens, len(tokens))
    kv.trim(request, len(tokens))
    return request


def free(kv: KVCacheManager, request: RequestKV) -> None:
    kv.release(kv.take(request))


def hit_tokens(kv: KVCacheManager, tokens: Sequence[int], **extras: str | None) -> int:
    return kv.lookup(kv.new_request(HashExtras(**extras)), tokens).num_tokens  # type: ignore[arg-type]


def test_last_token_is_always_computed() -> None:
    kv = make_kv()
    free(kv, compute(kv, range(8)))

    assert hit_tokens(kv, range(8)) == 4
    assert hit_tokens(kv, range(9)) == 8
    assert hit_tokens(kv, [0, 1, 2, 3]) == 0


def test_partial_block_is_not_hit() -> None:
    kv = make_kv()
    free(kv, compute(kv, range(7)))

    assert hit_tokens(kv, range(20)) == 4


def test_request_that_must_not_read_hits_nothing_and_still_fills_the_cache() -> None:
    kv = make_kv()
    request = kv.new_request(can_read=False)
    kv.grow(request, 8)
    kv.register(request, range(8), 8)

    assert kv.lookup(request, range(9)).num_tokens == 0
    assert hit_tokens(kv, range(9)) == 8


def test_salts_do_not_share() -> None:
    kv = make_kv()
    free(kv, compute(kv, range(9), salt="tenant"))

    assert hit_tokens(kv, range(9)) == 0
    assert hit_tokens(kv, range(9), cache_salt="other") == 0
    assert hit_tokens(kv, range(9), cache_salt="tenant") == 8


def test_without_prefix_caching_nothing_is_hit_or_kept() -> None:
    kv = make_kv(enable_prefix_caching=False)
    free(kv, compute(kv, range(9)))

    assert hit_tokens(kv, range(9)) == 0
    assert kv.pool.num_cached == 0
    assert kv.explain_miss(kv.new_request(), range(9), kv.lookup(kv.new_request(), range(9))) == (
        "prefix caching is off"
    )


def test_miss_is_explained() -> None:
    kv = make_kv()
    free(kv, compute(kv, range(8)))
    request = kv.new_request()

    short = kv.lookup(request, [*range(8), *range(50, 60)])
    assert "lacks block 2" in kv.explain_miss(request, [*range(8), *range(50, 60)], short)
    full = kv.lookup(kv.new_request(), range(9))
    assert "no further full block" in kv.explain_miss(request, range(9), full)


def test_grow_that_does_not_fit_takes_nothing() -> None:
    kv = make_kv(num_blocks=6, groups=[full_group(4), window_group(6)])
    request = kv.new_request()

    assert kv.grow(request, 12) is None
    assert kv.pool.num_free == 5
    assert kv.grow(request, 8) == [[1, 2], [3, 4]]
    assert kv.num_lacking(request, 12) == 2


def test_pool_full_of_evictable_blocks_admits() -> None:
    kv = make_kv(num_blocks=9)
    free(kv, compute(kv, range(32)))
    assert kv.pool.num_cached == 8
    request = kv.new_request()
    other = list(range(100, 132))

    hit = kv.lookup(request, other)

    assert kv.can_admit(hit, 32, IN_FLIGHT, num_kept=0)
    assert not kv.can_admit(hit, 33, IN_FLIGHT, num_kept=0)
    assert not kv.can_admit(hit, 32, IN_FLIGHT, num_kept=1)
    kv.adopt(request, hit)
    assert kv.grow(request, 32) is not None


def test_free_blocks_of_the_hit_itself_are_not_counted_twice() -> None:
    kv = make_kv(num_blocks=9)
    free(kv, compute(kv, range(16)))
    other = compute(kv, range(200, 212))
    assert kv.pool.num_free == 5

    hit = kv.lookup(kv.new_request(), range(20))
    assert hit.num_tokens == 16
    assert kv.can_admit(hit, 20, IN_FLIGHT, num_kept=0)
    assert not kv.can_admit(hit, 21, IN_FLIGHT, num_kept=0)
    free(kv, other)


def test_shared_blocks_cost_nothing_more() -> None:
    kv = make_kv(num_blocks=6)
    first = compute(kv, range(17))
    assert kv.pool.num_free == 0

    hit = kv.lookup(kv.new_request(), range(16))

    assert hit.num_tokens == 12
    assert not kv.can_admit(hit, 16, IN_FLIGHT, num_kept=0)
    free(kv, first)
    assert kv.can_admit(kv.lookup(kv.new_request(), range(16)), 16, IN_FLIGHT, num_kept=0)


def test_blocks_out_of_the_window_return_and_stay_hittable() -> None:
    kv = make_kv(num_blocks=12, groups=[window_group(5, 4, (0,))])
    request = kv.new_request()
    kv.grow(request, 16)
    kv.register(request, range(16), 16)
    assert kv.pool.num_free == 7

    kv.trim(request, 16)

    assert kv.block_ids(request) == [[0, 0, 0, 4]]
    assert kv.pool.num_free == 10
    assert hit_tokens(kv, range(9)) == 8


@given(st.integers(1, 30), st.lists(st.integers(1, 9), max_size=12))
@settings(deadline=None)
def test_trimming_at_next_trim_only_misses_nothing(window: int, steps: list[int]) -> None:
    groups = [window_group(window, 4, (0,)), window_group(window + 3, 2, (1,))]
    lazy, eager = make_kv(200, groups), make_kv(200, groups)
    requests = lazy.new_request(), eager.new_request()
    computed = 0
    for step in steps:
        computed += step
        lazy.grow(requests[0], computed)
        eager.grow(requests[1], computed)
        if computed >= requests[0].next_trim:
            lazy.trim(requests[0], computed)
        eager.trim(requests[1], computed)

        assert lazy.pool.num_free == eager.pool.num_free


def test_hybrid_hit_needs_every_group() -> None:
    groups = [full_group(4), window_group(6, 4)]
    kv = make_kv(num_blocks=40, groups=groups)
    free(kv, compute(kv, range(24)))
    # Evict the window group's copies of blocks 3 and 4; the full group keeps all.
    suffix_hit = kv.lookup(kv.new_request(), range(24))
    assert suffix_hit.num_tokens == 20
    table = suffix_hit.tables[1]
    assert [block.block_id == 0 for block in table] == [True, True, True, False, False]
    for block in table[3:]:
        kv.pool.forget(block)

    again = kv.lookup(kv.new_request(), range(24))

    assert again.num_tokens == 12
    assert len(again.tables[0]) == len(again.tables[1]) == 3


GROUP_SETS: list[list[KVGroup]] = [
    [full_group(4)],
    [window_group(5, 4, (0,))],
    HYBRID,
    [window_group(9, 2, (0,)), full_group(4, (1,))],
]


@settings(deadline=None, max_examples=150)
@given(
    groups=st.sampled_from(GROUP_SETS),
    computed=st.integers(1, 40),
    asked=st.integers(1, 40),
    fork=st.integers(0, 40),
    lost=st.sets(st.integers(0, 60)),
)
def test_hit_is_the_longest_prefix_that_serves_every_group(
    groups: list[KVGroup], computed: int, asked: int, fork: int, lost: set[int]
) -> None:
    kv = make_kv(400, groups)
    tokens = list(range(computed))
    request = kv.new_request()
    kv.grow(request, computed)
    kv.register(request, tokens, computed)
    held = [block for table in request.tables for block in table]
    for index in lost:
        if index < len(held):
            kv.pool.forget(held[index])
    query = [
        token if position < fork else 900 + token for position, token in enumerate(range(asked))
    ]

    def serves(length: int) -> bool:
        for group, table in zip(groups, request.tables, strict=True):
            if length % group.block_size:
                return False
            first = 0 if group.window is None else max(0, length - group.window + 1)
            for position in range(first, length):
                if table[position // group.block_size].key is None:
                    return False
        return True

    # Equal prefixes only; the block of the first differing token is another block.
    same = min(fork, asked - 1, computed)
    expected = max(length for length in range(same + 1) if serves(length))

    hit = kv.lookup(kv.new_request(), query)

    assert hit.num_tokens == expected
    for group, table, own in zip(groups, hit.tables, request.tables, strict=True):
        assert len(table) == hit.num_tokens // group.block_size
        assert all(a is b for a, b in zip(table, own, strict=False) if a.block_id)


def test_duplicate_blocks_coexist_and_tables_are_append_only() -> None:
    kv = make_kv()
    first, second = kv.new_request(), kv.new_request()
    for request in (first, second):
        kv.grow(request, 8)
    before = kv.block_ids(second)
    kv.register(first, range(8), 8)
    kv.register(second, range(8), 8)

    assert kv.block_ids(second) == before
    free(kv, first)
    assert hit_tokens(kv, range(9)) == 8


def test_longest_sequence_of_a_pool_fits_and_one_more_does_not() -> None:
    for groups in GROUP_SETS:
        kv = make_kv(30, groups)
        most = kv.max_sequence_tokens(10_000, 8)
        assert sum(t.max_blocks(most, min(most, 8)) for t in kv.group_types) <= 29
        if most < 10_000:
            more = most + 1
            assert sum(t.max_blocks(more, min(more, 8)) for t in kv.group_types) > 29


def test_forget_reports_who_else_holds_what_failed() -> None:
    kv = make_kv()
    writer = compute(kv, range(12))
    reader = kv.new_request()
    kv.adopt(reader, kv.lookup(reader, range(12)))

    assert kv.forget(writer.tables, 12) == set()
    assert kv.forget(writer.tables, 4) == {2}
    assert hit_tokens(kv, range(12)) == 4
    assert kv.holds_any(reader.tables, {2})
    assert not kv.holds_any(reader.tables, {3})


def test_reset_forgets_free_and_held_blocks() -> None:
    kv = make_kv()
    held = compute(kv, range(9))
    kv.reset()

    assert hit_tokens(kv, range(9)) == 0
    free(kv, held)
    assert kv.pool.num_free == kv.pool.num_blocks - 1
