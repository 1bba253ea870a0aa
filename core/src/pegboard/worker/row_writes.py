"""Changes of a device matrix, collected on the host and sent in one copy when a step needs them.

Copies do not wait for the device: where its work runs beside the host they come from pinned
memory, which torch keeps until they are done.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["RowWrites", "upload"]


def upload(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """Return a new tensor on the device with an array's content; does not wait for the device."""
    tensor = torch.from_numpy(array)
    if device.type != "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class RowWrites:
    """What the host wants written into a matrix: per row one range, of its own copy of it.

    The device may write the matrix too: only ranges that were written here are ever sent.
    """

    __slots__ = ("_dirty", "_flat", "_mirror")

    def __init__(self, target: Tensor) -> None:
        """Watch nothing yet.

        Args:
            target: [rows, width] int32, contiguous, zero; on any device.
        """
        self._flat = target.view(-1)
        self._mirror: NDArray[np.int32] = np.zeros(tuple(target.shape), np.int32)
        self._dirty: dict[int, tuple[int, int]] = {}

    def write(self, row: int, start: int, values: Sequence[int] | int, count: int = 1) -> None:
        """Write values from `start` on; one number is repeated `count` times."""
        end = start + (count if isinstance(values, int) else len(values))
        self._mirror[row, start:end] = values
        if row in self._dirty:
            first, last = self._dirty[row]
            start, end = min(first, start), max(last, end)
        self._dirty[row] = (start, end)

    def forget(self, row: int) -> None:
        """Drop what has not been sent of a row."""
        self._dirty.pop(row, None)

    def flush(self) -> None:
        """Queue what was written since the last call, in one copy and one scatter."""
        if not self._dirty:
            return
        width = self._mirror.shape[1]
        ranges = [(row, start, end) for row, (start, end) in self._dirty.items() if end > start]
        self._dirty.clear()
        total = sum(end - start for _, start, end in ranges)
        packed = np.empty((2, total), np.int64)
        at = 0
        for row, start, end in ranges:
            upto = at + end - start
            packed[0, at:upto] = np.arange(row * width + start, row * width + end)
            packed[1, at:upto] = self._mirror[row, start:end]
            at = upto
        sent = upload(packed, self._flat.device)
        self._flat.scatter_(0, sent[0], sent[1].to(self._flat.dtype))
