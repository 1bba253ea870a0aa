"""The block pool: order of reuse, references, keys, and a state machine against a plain model."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pegboard.api.errors import ConfigError
from pegboard.kv.block import KVCacheBlock
from pegboard.kv.block_pool import BlockPool


def ids(blocks: list[KVCacheBlock]) -> list[int]:
    return [block.block_id for block in blocks]


def test_null_block_is_never_given_out() -> None:
    pool = BlockPool(5)

    assert ids(pool.allocate(4)) == [1, 2, 3, 4]
    assert pool.num_free == 0
    with pytest.raises(IndexError, match="1 blocks were asked for; 0 are free"):
        pool.allocate(1)


def test_too_small_pool_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 2 are needed"):
        BlockPool(1)


def test_freed_cached_blocks_are_reused_last_and_tail_first() -> None:
    pool = BlockPool(7)
    table = pool.allocate(3)
    for index, block in enumerate(table):
        pool.register(block, bytes([index]))

    pool.free(reversed(table))

    assert ids(pool.allocate(6)) == [4, 5, 6, 3, 2, 1]
    assert pool.num_cached == 0


def test_freed_block_without_key_is_reused_first() -> None:
    pool = BlockPool(5)
    table = pool.allocate(2)

    pool.free(reversed(table))

    assert ids(pool.allocate(1)) == [1]


def test_least_recently_freed_prefix_is_evicted_first() -> None:
    pool = BlockPool(4)
    a, b, c = pool.allocate(3)
    for block in (a, b, c):
        pool.register(block, bytes([block.block_id]))
    pool.free([b])
    pool.free([a])
    pool.touch([b])
    pool.free([c])
    pool.free([b])

    assert ids(pool.allocate(1)) == [a.block_id]
    assert pool.find(bytes([b.block_id])) is b


def test_touched_free_block_leaves_the_free_list() -> None:
    pool = BlockPool(3)
    (block,) = pool.allocate(1)
    pool.register(block, b"k")
    pool.free([block])

    pool.touch([block, pool.null_block])

    assert pool.num_free == 1
    assert ids(pool.allocate(1)) == [2]
    assert pool.find(b"k") is block


def test_equal_block_takes_the_place_of_an_evicted_one() -> None:
    pool = BlockPool(4)
    first, second, third = pool.allocate(3)
    for block in (first, second, third):
        pool.register(block, b"same")
    pool.free([first])

    assert pool.allocate(1) == [first]
    assert pool.find(b"same") in (second, third)
    pool.forget(second)
    assert pool.find(b"same") is third
    pool.forget(third)
    assert pool.find(b"same") is None
    assert pool.num_cached == 0


def test_forget_all_keeps_held_blocks_held() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    pool.register(blocks[0], b"a")
    pool.register(blocks[1], b"a")

    pool.forget_all()

    assert pool.find(b"a") is None
    assert pool.num_free == 1
    assert pool.audit({1: 1, 2: 1}) == []


def test_audit_names_a_leak() -> None:
    pool = BlockPool(4)
    pool.allocate(1)

    assert any("block" in line.lower() for line in pool.audit({}))


class PoolMachine(RuleBasedStateMachine):
    """The pool against a plain model: a list as free order, a dict of counts, a dict of keys."""

    @initialize(num_blocks=st.integers(2, 12))
    def start(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.blocks: dict[int, KVCacheBlock] = {}
        self.free = list(range(1, num_blocks))
        self.refs: dict[int, int] = {}
        self.keys: dict[int, bytes] = {}

    @rule(count=st.integers(1, 5))
    def allocate(self, count: int) -> None:
        if count > len(self.free):
            with pytest.raises(IndexError):
                self.pool.allocate(count)
            return
        taken = self.pool.allocate(count)
        assert ids(taken) == self.free[:count]
        del self.free[:count]
        for block in taken:
            assert block.key is None
            self.keys.pop(block.block_id, None)
            self.blocks[block.block_id] = block
            self.refs[block.block_id] = 1

    @precondition(lambda self: self.refs)
    @rule(data=st.data(), key=st.integers(0, 3))
    def register(self, data: st.DataObject, key: int) -> None:
        block_id = data.draw(st.sampled_from(sorted(self.refs)))
        if block_id not in self.keys:
            self.pool.register(self.blocks[block_id], bytes([key]))
            self.keys[block_id] = bytes([key])

    @precondition(lambda self: self.keys)
    @rule(data=st.data())
    def hit(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.keys.values())))
        block = self.pool.find(key)
        assert block is not None
        self.pool.touch([block])
        if block.block_id in self.free:
            self.free.remove(block.block_id)
        self.refs[block.block_id] = self.refs.get(block.block_id, 0) + 1

    @precondition(lambda self: self.refs)
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(sorted(self.refs)))
        self.pool.free([self.blocks[block_id]])
        self.refs[block_id] -= 1
        if self.refs[block_id] == 0:
            del self.refs[block_id]
            self.free.insert(len(self.free) if block_id in self.keys else 0, block_id)

    @precondition(lambda self: self.keys)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        block_id = data.draw(st.sampled_from(sorted(self.keys)))
        self.pool.forget(self.blocks[block_id])
        del self.keys[block_id]

    @rule()
    def forget_all(self) -> None:
        self.pool.forget_all()
        self.keys.clear()

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "pool"):
            return
        assert self.pool.num_free == len(self.free)
        assert self.pool.audit(self.refs) == []
        for key in (bytes([number]) for number in range(4)):
            holders = [block_id for block_id, other in self.keys.items() if other == key]
            found = self.pool.find(key)
            assert (found.block_id in holders) if found else not holders
        assert self.pool.num_cached == len(set(self.keys.values()))


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
