"""Sampling parameters as columns: one entry a row, on the host and on the device.

The host's copy says what a step needs at all; the device's is what the ops read. Changes are
written to the host at once and cross to the device in one copy when a step next reads them.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pegboard.api.sampling_params import SamplingParams

__all__ = ["SamplingColumns"]

_FLOATS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
_INTS = ("top_k", "seed")


class SamplingColumns:
    """The scalar sampling parameters of every row.

    Attributes:
        floats: [6, max_num_rows] float32 on the host, in the order of `_FLOATS`.
        ints: [2, max_num_rows] int64 on the host, in the order of `_INTS`.
    """

    __slots__ = ("_device_floats", "_device_ints", "_stale", "floats", "ints")

    def __init__(self, max_num_rows: int, device: torch.device) -> None:
        """Make the columns; an unused row is greedy."""
        self.floats: NDArray[np.float32] = np.zeros((len(_FLOATS), max_num_rows), np.float32)
        self.ints: NDArray[np.int64] = np.zeros((len(_INTS), max_num_rows), np.int64)
        self._device_floats = torch.zeros(self.floats.shape, dtype=torch.float32, device=device)
        self._device_ints = torch.zeros(self.ints.shape, dtype=torch.int64, device=device)
        self._stale = False

    def set_row(self, row: int, params: SamplingParams, seed: int) -> None:
        """Take a row's parameters; `seed` is the row's, whatever `params.seed` says."""
        self.floats[:, row] = [getattr(params, name) for name in _FLOATS]
        self.ints[:, row] = (params.top_k, seed)
        self._stale = True

    def host(self, name: str, rows: NDArray[np.int64]) -> NDArray[np.float32] | NDArray[np.int64]:
        """Return a column of some rows: [n], on the host."""
        if name in _FLOATS:
            return self.floats[_FLOATS.index(name)][rows]
        return self.ints[_INTS.index(name)][rows]

    def device(self, name: str, rows: Tensor) -> Tensor:
        """Return a column of some rows: [n], on the device.

        Args:
            name: a scalar parameter of `SamplingParams`.
            rows: [n] int64 on the device.
        """
        if self._stale:
            self._device_floats.copy_(torch.from_numpy(self.floats), non_blocking=True)
            self._device_ints.copy_(torch.from_numpy(self.ints), non_blocking=True)
            self._stale = False
        if name in _FLOATS:
            return self._device_floats[_FLOATS.index(name)].index_select(0, rows)
        return self._device_ints[_INTS.index(name)].index_select(0, rows)
