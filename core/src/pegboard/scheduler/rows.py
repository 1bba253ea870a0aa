"""Which rows of the persistent batch are free."""

import heapq

__all__ = ["RowPool"]


class RowPool:
    """Gives out the lowest free row, so that the batch stays dense."""

    __slots__ = ("_free",)

    def __init__(self, num_rows: int) -> None:
        self._free = list(range(num_rows))

    @property
    def num_free(self) -> int:
        """Rows that can be taken."""
        return len(self._free)

    def take(self) -> int:
        """Take the lowest free row.

        Raises:
            IndexError: none is free.
        """
        return heapq.heappop(self._free)

    def give(self, row: int) -> None:
        """Make a row free again."""
        heapq.heappush(self._free, row)
