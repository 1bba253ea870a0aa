"""Layers whose queries see every earlier token."""

from collections.abc import Callable, Sequence

from pegboard.api.kv import KVGroupType

__all__ = ["FullGroup"]


class FullGroup(KVGroupType):
    """Needs every block of a prefix; frees nothing before the request ends."""

    def longest_hit(
        self, num_blocks: int, is_cached: Callable[[int], bool]
    ) -> tuple[int, Sequence[int]]:
        """Count cached blocks from the start until one is missing."""
        length = 0
        while length < num_blocks and is_cached(length):
            length += 1
        return length, range(length)

    def first_needed_block(self, num_computed_tokens: int) -> int:
        """Every query sees the first block."""
        del num_computed_tokens
        return 0
