"""Block tables: per KV group, the block ids of every row, on the device.

Block 0 is the null block: entries past a row's blocks are 0 and lead nowhere that is read.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pegboard.api.kv import KVGroup
from pegboard.api.ops import OpTable
from pegboard.worker.row_writes import RowWrites

__all__ = ["BlockTable"]


class BlockTable:
    """The block table of one KV group.

    Attributes:
        block_size: tokens a block.
        slots: [max_num_tokens] int64; a step's slot mapping is its leading part.
    """

    __slots__ = (
        "_gathered",
        "_num_blocks",
        "_slot_mapping",
        "_table",
        "_writes",
        "block_size",
        "slots",
    )

    def __init__(
        self,
        group: KVGroup,
        *,
        max_num_rows: int,
        max_num_tokens: int,
        max_model_len: int,
        device: torch.device,
        ops: OpTable,
    ) -> None:
        """Allocate for the longest sequence, and one token that a step may run ahead."""
        width = max_model_len // group.block_size + 1
        self.block_size = group.block_size
        self._table = torch.zeros((max_num_rows, width), dtype=torch.int32, device=device)
        self._writes = RowWrites(self._table)
        self._gathered = torch.zeros(max_num_rows * width, dtype=torch.int32, device=device)
        self._num_blocks: NDArray[np.int64] = np.zeros(max_num_rows, np.int64)
        self.slots = torch.zeros(max_num_tokens, dtype=torch.int64, device=device)
        self._slot_mapping = ops["slot_mapping"]

    def clear(self, row: int) -> None:
        """Forget a row's blocks."""
        used = int(self._num_blocks[row])
        if used:
            self._writes.write(row, 0, 0, used)
            self._num_blocks[row] = 0

    def append(self, row: int, block_ids: Sequence[int]) -> None:
        """Add blocks behind a row's last one."""
        if not block_ids:
            return
        start = int(self._num_blocks[row])
        end = start + len(block_ids)
        if end > self._table.shape[1]:
            raise ValueError(
                f"row {row} would have {end} blocks; its table holds {self._table.shape[1]}"
            )
        self._writes.write(row, start, block_ids)
        self._num_blocks[row] = end

    def flush(self) -> None:
        """Queue the changes since the last step; before anything on the device reads the table."""
        self._writes.flush()

    def gather(self, rows: Tensor, max_seq_len: int) -> Tensor:
        """Return the step's table: [num_reqs, blocks of the longest sequence] int32, contiguous.

        A view of a persistent buffer, valid until the next call.

        Args:
            rows: [num_reqs] int64 on the device.
            max_seq_len: host upper bound over the step's sequences.
        """
        self.flush()
        width = min(-(-max_seq_len // self.block_size), self._table.shape[1])
        num_reqs = rows.shape[0]
        out = self._gathered[: num_reqs * width].view(num_reqs, width)
        return torch.index_select(self._table[:, :width], 0, rows, out=out)

    def gather_whole(self, rows: Tensor) -> Tensor:
        """Return the tables of `rows` at full width, for graph capture: reads the device alone.

        Args:
            rows: [n] int64 on the device; lines of -1 are padding and get any row's table.
        """
        num_reqs, width = rows.shape[0], self._table.shape[1]
        out = self._gathered[: num_reqs * width].view(num_reqs, width)
        return torch.index_select(self._table, 0, rows.clamp(min=0), out=out)

    def map_slots(self, table: Tensor, requests: Tensor, positions: Tensor) -> Tensor:
        """Return the step's slot mapping: [num_tokens] int64, a view of `slots`."""
        slots = self.slots[: positions.shape[0]]
        self._slot_mapping(table, requests, positions, self.block_size, slots)
        return slots
