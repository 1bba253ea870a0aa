"""Prefix lookup over all KV groups at once: one group alone, or several that must agree.

With several groups a hit is the longest prefix that every group can serve, found as a fix point:
each group in turn shortens the candidate until all accept the same length.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd, lcm

from pegboard.api.kv import KVGroupType
from pegboard.kv.block import KVCacheBlock
from pegboard.kv.block_pool import BlockPool

__all__ = ["GroupCoordinator", "PrefixHit"]


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """What the cache has of a prefix. Holds no reference: use it before anything else is taken.

    Attributes:
        num_tokens: its length.
        tables: per group, its blocks in order, the null block where no query will look.
    """

    num_tokens: int
    tables: list[list[KVCacheBlock]]


class GroupCoordinator:
    """Finds common prefixes of KV groups that share one pool.

    Attributes:
        hash_block_size: tokens a hash stands for; every group's blocks are whole multiples.
        alignment: a hit's length is a multiple of this, so that it ends a block in every group.
    """

    def __init__(self, group_types: Sequence[KVGroupType], pool: BlockPool) -> None:
        self._types = list(group_types)
        self._pool = pool
        self.block_sizes = [group_type.group.block_size for group_type in group_types]
        self.hash_block_size = gcd(*self.block_sizes)
        self.alignment = lcm(*self.block_sizes)
        self._hashes_a_block = [size // self.hash_block_size for size in self.block_sizes]
        self._suffixes = [index.to_bytes(2, "little") for index in range(len(self._types))]

    def key(self, group: int, index: int, hashes: Sequence[bytes]) -> bytes:
        """Return what a group's block at an index of the chain is cached by."""
        return hashes[(index + 1) * self._hashes_a_block[group] - 1] + self._suffixes[group]

    def no_hit(self) -> PrefixHit:
        """Return the empty prefix."""
        return PrefixHit(0, [[] for _ in self._types])

    def longest_hit(self, hashes: Sequence[bytes], max_tokens: int) -> PrefixHit:
        """Find the longest prefix of at most `max_tokens` that every group has."""
        length = max_tokens // self.alignment * self.alignment
        needed: list[Sequence[int]] = [()] * len(self._types)
        lookups = [self._lookup(group, hashes) for group in range(len(self._types))]
        group = num_agreed = 0
        while length and num_agreed < len(self._types):
            size = self.block_sizes[group]
            num_blocks, needed[group] = self._types[group].longest_hit(
                length // size, lookups[group]
            )
            found = num_blocks * size
            aligned = found // self.alignment * self.alignment
            if aligned == length:
                num_agreed += 1
            else:
                # A shorter prefix: what others accepted before says nothing about it.
                length = aligned
                num_agreed = 1 if aligned == found else 0
            group = (group + 1) % len(self._types)
        if not length:
            return self.no_hit()
        return PrefixHit(length, self._tables(length, needed, hashes))

    def explain_miss(self, hashes: Sequence[bytes], hit_tokens: int, max_tokens: int) -> str:
        """Say in one line why a hit is not longer."""
        if max_tokens - hit_tokens < self.alignment:
            return "no further full block could be hit"
        missing = []
        for group, size in enumerate(self.block_sizes):
            cached = self._lookup(group, hashes)
            for index in range(hit_tokens // size, max_tokens // size):
                if not cached(index):
                    missing.append(
                        f"group {group} ({self._types[group].group.group_type}) lacks block {index}"
                    )
                    break
        return "; ".join(missing) or "the groups agree on no longer prefix"

    def _lookup(self, group: int, hashes: Sequence[bytes]) -> Callable[[int], bool]:
        find, suffix = self._pool.find, self._suffixes[group]
        step = self._hashes_a_block[group]
        return lambda index: find(hashes[(index + 1) * step - 1] + suffix) is not None

    def _tables(
        self, length: int, needed: Sequence[Sequence[int]], hashes: Sequence[bytes]
    ) -> list[list[KVCacheBlock]]:
        tables = []
        for group, size in enumerate(self.block_sizes):
            table = [self._pool.null_block] * (length // size)
            for index in needed[group]:
                block = self._pool.find(self.key(group, index, hashes))
                assert block is not None
                table[index] = block
            tables.append(table)
        return tables
