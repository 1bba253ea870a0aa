"""A block's state, and the order in which free blocks are taken.

Knows nothing of hashes' meaning, requests or groups.
"""

from collections.abc import Iterator
from typing import Self

__all__ = ["NULL_BLOCK_ID", "FreeBlocks", "KVCacheBlock"]

#: Stands in a block table where no query looks any more; it is never written and never freed.
NULL_BLOCK_ID = 0


class KVCacheBlock:
    """One block of the pool.

    Attributes:
        block_id: its place in every cache tensor.
        ref_count: how many block tables hold it; 0 means it is free.
        key: what the prefix cache finds it by; None while it is not full, or not cached.
        next_free, prev_free: neighbours in the free list; None while it is held.
    """

    __slots__ = ("block_id", "key", "next_free", "prev_free", "ref_count")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.key: bytes | None = None
        self.next_free: Self | None = None
        self.prev_free: Self | None = None

    def __repr__(self) -> str:
        return f"KVCacheBlock({self.block_id}, ref_count={self.ref_count}, key={self.key!r})"


class FreeBlocks:
    """Free blocks as a doubly linked list through the blocks themselves: O(1) everywhere.

    Blocks are taken from the front. What is worth keeping goes to the back, so that the cached
    block that was freed longest ago is taken first.
    """

    __slots__ = ("_head", "count")

    def __init__(self) -> None:
        head = KVCacheBlock(-1)
        head.next_free = head
        head.prev_free = head
        self._head = head
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[KVCacheBlock]:
        block = self._head.next_free
        while block is not None and block is not self._head:
            yield block
            block = block.next_free

    def push_front(self, block: KVCacheBlock) -> None:
        """Add a block that is taken next."""
        self._insert_after(self._head, block)

    def push_back(self, block: KVCacheBlock) -> None:
        """Add a block that is taken last."""
        last = self._head.prev_free
        assert last is not None
        self._insert_after(last, block)

    def pop_front(self) -> KVCacheBlock:
        """Take the next block.

        Raises:
            IndexError: none is left.
        """
        block = self._head.next_free
        if block is None or block is self._head:
            raise IndexError("no free block is left")
        self.remove(block)
        return block

    def remove(self, block: KVCacheBlock) -> None:
        """Take this very block out, wherever it is in the list."""
        before, after = block.prev_free, block.next_free
        assert before is not None
        assert after is not None
        before.next_free = after
        after.prev_free = before
        block.prev_free = block.next_free = None
        self.count -= 1

    def _insert_after(self, before: KVCacheBlock, block: KVCacheBlock) -> None:
        assert block.next_free is None, "the block is in the list already"
        after = before.next_free
        assert after is not None
        block.prev_free = before
        block.next_free = after
        before.next_free = block
        after.prev_free = block
        self.count += 1
