"""Blocks for requests: prefix hits, growth, registration in the prefix cache, return.

Knows tokens and positions of one request at a time; what a step is, and when a block may go
back while steps are in flight, is the scheduler's business.
"""

import sys
from collections.abc import Sequence

from pegboard.api.kv import KVGroup, KVGroupType
from pegboard.kv.block import KVCacheBlock
from pegboard.kv.block_hash import BlockHasher, HashExtras
from pegboard.kv.block_pool import BlockPool
from pegboard.kv.coordinator import GroupCoordinator, PrefixHit
from pegboard.kv.planning import longest_sequence

__all__ = ["BlockTables", "KVCacheManager", "RequestKV"]

_NEVER = sys.maxsize
_FAR = 2**31

BlockTables = list[list[KVCacheBlock]]


class RequestKV:
    """One request's part of the cache. Made and changed by the manager only.

    Attributes:
        tables: per group, its blocks in order.
        capacity: tokens that the tables have slots for.
        next_register: computed tokens at which a further block can be registered.
        next_trim: computed tokens at which a further block falls out of a window.
        hashes: of the sequence's full blocks so far; tokens never change, so neither do they.
        extras: what its KV depends on besides tokens; None for nothing.
        can_read: whether it may use cached prefixes.
    """

    __slots__ = (
        "can_read",
        "capacity",
        "extras",
        "first_live",
        "hashes",
        "next_register",
        "next_trim",
        "num_registered",
        "tables",
    )

    def __init__(self, num_groups: int, *, extras: HashExtras | None, can_read: bool) -> None:
        self.extras = extras or None
        self.can_read = can_read
        self.hashes: list[bytes] = []
        self.tables: BlockTables = [[] for _ in range(num_groups)]
        self.capacity = 0
        self.num_registered = [0] * num_groups
        self.next_register = 0
        self.first_live = [0] * num_groups
        self.next_trim = 0


class KVCacheManager:
    """Gives blocks to requests and takes them back.

    Attributes:
        groups, group_types: as they were given.
        pool: the blocks.
        prefix_queries_tokens, prefix_hits_tokens: prompt tokens that were looked up, and found.
    """

    def __init__(
        self,
        groups: Sequence[KVGroup],
        num_blocks: int,
        group_types: Sequence[KVGroupType],
        *,
        enable_prefix_caching: bool = True,
    ) -> None:
        """Make a pool of `num_blocks` blocks for groups with their policies, in the same order.

        Raises:
            ConfigError: the pool is too small to give out a block.
        """
        assert len(groups) == len(group_types) > 0
        self.groups = list(groups)
        self.enable_prefix_caching = enable_prefix_caching
        self.prefix_queries_tokens = 0
        self.prefix_hits_tokens = 0
        self.pool = BlockPool(num_blocks)
        self.group_types = list(group_types)
        self._coordinator = GroupCoordinator(group_types, self.pool)
        self._block_sizes = self._coordinator.block_sizes
        self._hasher = BlockHasher(self._coordinator.hash_block_size)
        # Groups whose blocks fall out of sight before the request ends.
        self._trimmed = [
            i for i, kind in enumerate(group_types) if kind.first_needed_block(_FAR) > 0
        ]

    def new_request(self, extras: HashExtras | None = None, *, can_read: bool = True) -> RequestKV:
        """Return the state of a request that holds nothing yet.

        Args:
            extras: what its KV depends on besides tokens.
            can_read: False to compute the whole prompt anew; its blocks are still cached.
        """
        kv = RequestKV(
            len(self.groups), extras=extras, can_read=can_read and self.enable_prefix_caching
        )
        self._reset(kv)
        return kv

    def lookup(self, kv: RequestKV, token_ids: Sequence[int]) -> PrefixHit:
        """Find what is cached of a sequence, short of its last token, which must be computed."""
        if not kv.can_read:
            return self._coordinator.no_hit()
        limit = len(token_ids) - 1
        self._hasher.extend(kv.hashes, token_ids, limit, kv.extras)
        return self._coordinator.longest_hit(kv.hashes, limit)

    def explain_miss(self, kv: RequestKV, token_ids: Sequence[int], hit: PrefixHit) -> str:
        """Say in one line why a hit of `lookup` is not longer."""
        if not self.enable_prefix_caching:
            return "prefix caching is off"
        if not kv.can_read:
            return "the request asked not to read the cache, or for prompt logprobs"
        return self._coordinator.explain_miss(kv.hashes, hit.num_tokens, len(token_ids) - 1)

    def count_lookup(self, num_tokens: int, hit: PrefixHit) -> None:
        """Count a first admission's lookup; recomputation after preemption is not counted."""
        self.prefix_queries_tokens += num_tokens
        self.prefix_hits_tokens += hit.num_tokens

    def can_admit(
        self, hit: PrefixHit, num_tokens: int, max_tokens_in_flight: int, num_kept: int
    ) -> bool:
        """Whether a whole sequence fits beside `num_kept` blocks that must stay free.

        Cached blocks that nobody holds count as free, but for those the hit itself takes.
        """
        need = num_kept
        for group_type, table in zip(self.group_types, hit.tables, strict=True):
            most = group_type.max_blocks(num_tokens, max_tokens_in_flight)
            num_hit = 0
            for block in table:
                if block is not self.pool.null_block:
                    num_hit += 1
                    need += block.ref_count == 0
            need += max(0, most - num_hit)
        return need <= self.pool.num_free

    def num_missing(self, kv: RequestKV, num_tokens: int, max_tokens_in_flight: int) -> int:
        """Return how many more blocks a request takes until `num_tokens` are computed."""
        missing = 0
        for group_type, table in zip(self.group_types, kv.tables, strict=True):
            most = group_type.max_blocks(num_tokens, max_tokens_in_flight)
            held = sum(block is not self.pool.null_block for block in table)
            missing += max(0, most - held)
        return missing

    def max_sequence_tokens(self, limit: int, max_tokens_in_flight: int) -> int:
        """Return the longest sequence, up to `limit`, that fits in the pool alone."""
        num_blocks = self.pool.num_blocks - 1
        return longest_sequence(self.group_types, num_blocks, limit, max_tokens_in_flight)

    def adopt(self, kv: RequestKV, hit: PrefixHit) -> None:
        """Hold a hit's blocks as the start of an empty request's tables."""
        assert kv.capacity == 0
        if not hit.num_tokens:
            return
        for group, table in enumerate(hit.tables):
            self.pool.touch(table)
            kv.tables[group] = table
            kv.num_registered[group] = len(table)
        kv.capacity = hit.num_tokens
        self._set_next_register(kv)

    def grow(self, kv: RequestKV, num_tokens: int) -> list[list[int]] | None:
        """Take the blocks that slots for `num_tokens` lack.

        Returns:
            Per group the new block ids; None, with nothing taken, if they are not free.
        """
        counts = [
            max(0, -(-num_tokens // size) - len(table))
            for size, table in zip(self._block_sizes, kv.tables, strict=True)
        ]
        if sum(counts) > self.pool.num_free:
            return None
        new_ids = []
        capacity = _NEVER
        for count, size, table in zip(counts, self._block_sizes, kv.tables, strict=True):
            blocks = self.pool.allocate(count) if count else []
            table.extend(blocks)
            new_ids.append([block.block_id for block in blocks])
            capacity = min(capacity, len(table) * size)
        kv.capacity = capacity
        return new_ids

    def num_lacking(self, kv: RequestKV, num_tokens: int) -> int:
        """Return how many blocks `grow` would take."""
        return sum(
            max(0, -(-num_tokens // size) - len(table))
            for size, table in zip(self._block_sizes, kv.tables, strict=True)
        )

    def register(self, kv: RequestKV, token_ids: Sequence[int], num_computed_tokens: int) -> None:
        """Make the blocks that `num_computed_tokens` fill hittable. Call from `next_register` on.

        Later steps may read them: a step that computes them and is in flight runs before.
        """
        if not self.enable_prefix_caching:
            return
        self._hasher.extend(kv.hashes, token_ids, num_computed_tokens, kv.extras)
        for group, size in enumerate(self._block_sizes):
            table = kv.tables[group]
            num_full = num_computed_tokens // size
            for index in range(kv.num_registered[group], num_full):
                block = table[index]
                if block is not self.pool.null_block and block.key is None:
                    self.pool.register(block, self._coordinator.key(group, index, kv.hashes))
            kv.num_registered[group] = max(num_full, kv.num_registered[group])
        self._set_next_register(kv)

    def trim(self, kv: RequestKV, num_computed_tokens: int) -> None:
        """Free blocks that no query from `num_computed_tokens` on sees. Call from `next_trim` on.

        No step in flight may begin before `num_computed_tokens`.
        """
        next_trim = _NEVER
        for group in self._trimmed:
            group_type, table = self.group_types[group], kv.tables[group]
            first = min(group_type.first_needed_block(num_computed_tokens), len(table))
            old = kv.first_live[group]
            if first > old:
                self.pool.free(reversed(table[old:first]))
                table[old:first] = [self.pool.null_block] * (first - old)
                kv.first_live[group] = first
            next_trim = min(next_trim, self._next_trim(group_type, num_computed_tokens))
        kv.next_trim = next_trim

    def forget(self, tables: BlockTables, num_computed_tokens: int) -> set[int]:
        """Make blocks unhittable that a failed step may have written, from a position on.

        Returns:
            Ids of those that other tables hold as well.
        """
        shared = set()
        for size, table in zip(self._block_sizes, tables, strict=True):
            for block in table[num_computed_tokens // size :]:
                self.pool.forget(block)
                if block.ref_count > 1:
                    shared.add(block.block_id)
        return shared

    def holds_any(self, tables: BlockTables, block_ids: set[int]) -> bool:
        """Whether tables have one of these blocks."""
        return any(block.block_id in block_ids for table in tables for block in table)

    def take(self, kv: RequestKV) -> BlockTables:
        """Empty a request's tables without freeing; give the result to `release` later."""
        tables = kv.tables
        self._reset(kv)
        return tables

    def release(self, tables: BlockTables) -> None:
        """Free the blocks of tables, tails first."""
        for table in tables:
            self.pool.free(reversed(table))

    def num_freed_by(self, tables: BlockTables) -> int:
        """Return how many blocks become free when these tables are released."""
        return sum(self.pool.num_solely_held(table) for table in tables)

    def block_ids(self, kv: RequestKV) -> list[list[int]]:
        """Return a request's block table of each group."""
        return [[block.block_id for block in table] for table in kv.tables]

    def reset(self) -> None:
        """Forget every cached prefix. Blocks that are held stay held."""
        self.pool.forget_all()

    def _reset(self, kv: RequestKV) -> None:
        num_groups = len(self.groups)
        kv.tables = [[] for _ in range(num_groups)]
        kv.capacity = 0
        kv.num_registered = [0] * num_groups
        kv.first_live = [0] * num_groups
        kv.next_trim = 0 if self._trimmed else _NEVER
        self._set_next_register(kv)

    def _set_next_register(self, kv: RequestKV) -> None:
        if not self.enable_prefix_caching:
            kv.next_register = _NEVER
            return
        kv.next_register = min(
            (count + 1) * size
            for count, size in zip(kv.num_registered, self._block_sizes, strict=True)
        )

    def _next_trim(self, group_type: KVGroupType, num_computed_tokens: int) -> int:
        """Return the least count of computed tokens at which a further block can go."""
        now = group_type.first_needed_block(num_computed_tokens)
        step = 1
        while group_type.first_needed_block(num_computed_tokens + step) == now:
            if step > _FAR:
                return _NEVER
            step *= 2
        low, high = step // 2, step
        while high - low > 1:
            middle = (low + high) // 2
            if group_type.first_needed_block(num_computed_tokens + middle) == now:
                low = middle
            else:
                high = middle
        return num_computed_tokens + high
