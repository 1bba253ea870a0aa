"""The owner of all blocks: which are free, which are held and how often, which are cached.

A free block keeps its contents and its key until it is taken, so a freed prefix stays hittable.
Knows nothing of requests, groups or tokens: keys are opaque bytes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pegboard.api.errors import ConfigError
from pegboard.kv.block import NULL_BLOCK_ID, FreeBlocks, KVCacheBlock

__all__ = ["BlockPool"]


class BlockPool:
    """All blocks of the cache. Block 0 is the null block and belongs to nobody.

    Attributes:
        null_block: placeholder in block tables.
        num_blocks: all blocks, the null block included.
    """

    def __init__(self, num_blocks: int) -> None:
        """Make every block but the null block free, lowest ids first.

        Raises:
            ConfigError: there would be no block to give out.
        """
        if num_blocks < 2:
            raise ConfigError(
                f"the KV pool has {num_blocks} block(s); at least 2 are needed, since block 0 is "
                "reserved (--kv-cache-memory-bytes)"
            )
        self.num_blocks = num_blocks
        self._blocks = [KVCacheBlock(block_id) for block_id in range(num_blocks)]
        self.null_block = self._blocks[NULL_BLOCK_ID]
        self._free = FreeBlocks()
        for block in self._blocks[1:]:
            self._free.push_back(block)
        self._cached: dict[bytes, KVCacheBlock] = {}
        # Equal blocks that different requests computed side by side; mostly empty.
        self._duplicates: dict[bytes, list[KVCacheBlock]] = {}

    @property
    def num_free(self) -> int:
        """Blocks that can be taken now, cached ones included."""
        return self._free.count

    @property
    def num_cached(self) -> int:
        """Distinct keys that can be hit."""
        return len(self._cached)

    @property
    def usage(self) -> float:
        """Fraction of the pool that is held."""
        return 1.0 - self._free.count / (self.num_blocks - 1)

    def find(self, key: bytes) -> KVCacheBlock | None:
        """Return a block with this key, held or free."""
        return self._cached.get(key)

    def allocate(self, count: int) -> list[KVCacheBlock]:
        """Take blocks, each held once; their cached contents are forgotten.

        Raises:
            IndexError: fewer than `count` are free; nothing was taken.
        """
        if count > self._free.count:
            raise IndexError(f"{count} blocks were asked for; {self._free.count} are free")
        taken = []
        for _ in range(count):
            block = self._free.pop_front()
            if block.key is not None:
                self.forget(block)
            block.ref_count = 1
            taken.append(block)
        return taken

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Hold cached blocks once more; the null block is passed over."""
        for block in blocks:
            if block is self.null_block:
                continue
            if block.ref_count == 0:
                self._free.remove(block)
            block.ref_count += 1

    def free(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Let go of blocks once each; the null block is passed over.

        Give a table's blocks in reverse, so that the tail of a sequence is taken before the
        prefix that others may share.
        """
        for block in blocks:
            if block is self.null_block:
                continue
            assert block.ref_count > 0, f"block {block.block_id} is freed twice"
            block.ref_count -= 1
            if block.ref_count == 0:
                if block.key is None:
                    self._free.push_front(block)
                else:
                    self._free.push_back(block)

    def register(self, block: KVCacheBlock, key: bytes) -> None:
        """Make a full, held block hittable. An equal block may be cached already."""
        assert block.key is None, f"block {block.block_id} has a key already"
        assert block.ref_count > 0, f"block {block.block_id} is free"
        block.key = key
        if self._cached.setdefault(key, block) is not block:
            self._duplicates.setdefault(key, []).append(block)

    def forget(self, block: KVCacheBlock) -> None:
        """Make a block unhittable; an equal one takes its place."""
        key = block.key
        if key is None:
            return
        block.key = None
        equals = self._duplicates.get(key)
        if self._cached[key] is not block:
            assert equals is not None
            equals.remove(block)
        elif equals:
            self._cached[key] = equals.pop()
        else:
            del self._cached[key]
        if equals is not None and not equals:
            del self._duplicates[key]

    def forget_all(self) -> None:
        """Make every block unhittable. Held blocks stay held."""
        for block in self._cached.values():
            block.key = None
        for equals in self._duplicates.values():
            for block in equals:
                block.key = None
        self._cached.clear()
        self._duplicates.clear()

    def num_solely_held(self, blocks: Sequence[KVCacheBlock]) -> int:
        """Return how many of `blocks` become free if their table lets go of them."""
        return sum(block.ref_count == 1 for block in blocks)

    def audit(self, holders: Mapping[int, int]) -> list[str]:
        """Return one line for everything that is wrong; empty if nothing is.

        Args:
            holders: block id to how many tables hold it, for all that are held.
        """
        wrong = [
            f"{block} is held by {holders.get(block.block_id, 0)} table(s)"
            for block in self._blocks
            if block.ref_count != holders.get(block.block_id, 0)
        ]
        free = [block.block_id for block in self._free]
        if len(free) != self._free.count or len(set(free)) != len(free):
            wrong.append(f"the free list counts {self._free.count} and has {free}")
        if set(free) != set(range(1, self.num_blocks)) - holders.keys():
            wrong.append(f"{len(free)} blocks are free, {len(holders)} held of {self.num_blocks}")
        keyed = Counter(block.key for block in self._blocks if block.key is not None)
        found = Counter({key: 1 + len(self._duplicates.get(key, ())) for key in self._cached})
        if keyed != found:
            wrong.append(f"{keyed.total()} blocks have a key, {found.total()} can be found")
        return wrong
