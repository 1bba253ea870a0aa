"""Layers whose queries see the last `window` tokens, themselves included."""

from collections.abc import Callable, Sequence

from pegboard.api.errors import ConfigError
from pegboard.api.kv import KVGroup, KVGroupType

__all__ = ["SlidingWindowGroup"]


class SlidingWindowGroup(KVGroupType):
    """Needs only the blocks in the window before a prefix's end; frees what falls out of it."""

    def __init__(self, group: KVGroup) -> None:
        """Keep the group.

        Raises:
            ConfigError: it has no window.
        """
        super().__init__(group)
        if group.window is None or group.window < 1:
            raise ConfigError(
                f"sliding-window layers {group.layers} have window {group.window}; the model's "
                "configuration must give at least 1"
            )
        self.window = group.window

    def longest_hit(
        self, num_blocks: int, is_cached: Callable[[int], bool]
    ) -> tuple[int, Sequence[int]]:
        """Look from the end for the last run of cached blocks that fills a window."""
        end = first = num_blocks
        needed = self._first_block(end)
        while first > needed:
            if is_cached(first - 1):
                first -= 1
            else:
                end = first = first - 1
                needed = self._first_block(end)
        return end, range(first, end)

    def first_needed_block(self, num_computed_tokens: int) -> int:
        """Return the block of the oldest token that the next query sees."""
        return max(0, num_computed_tokens - self.window + 1) // self.group.block_size

    def max_blocks(self, num_tokens: int, max_tokens_in_flight: int) -> int:
        """Return the blocks of a window and all tokens in flight, wherever they begin."""
        size = self.group.block_size
        held_tokens = self.window - 1 + max_tokens_in_flight
        return min(-(-num_tokens // size), -(-held_tokens // size) + 1)

    def _first_block(self, num_blocks: int) -> int:
        return self.first_needed_block(num_blocks * self.group.block_size)
