"""Token ids that some rows carry, joined for a step: the shape behind biases, masks and lists."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["JoinedTokens", "RowTokens"]


class JoinedTokens:
    """The entries of a step's rows, one after the other, on the device.

    Attributes:
        lines: [m] int64; which line of the step's logits an entry is for.
        token_ids: [m] int64.
        values: [m] float32.
        owners: [k] int64; the lines that have entries, each once.
    """

    __slots__ = ("lines", "owners", "token_ids", "values")

    def __init__(
        self, parts: list[tuple[int, NDArray[np.int64], NDArray[np.float32]]], device: torch.device
    ) -> None:
        """Join (line, token ids, values)."""
        lines = np.repeat([p[0] for p in parts], [len(p[1]) for p in parts]).astype(np.int64)
        self.lines = torch.from_numpy(lines).to(device)
        self.token_ids = torch.from_numpy(np.concatenate([p[1] for p in parts])).to(device)
        self.values = torch.from_numpy(np.concatenate([p[2] for p in parts])).to(device)
        self.owners = torch.tensor([p[0] for p in parts], dtype=torch.int64, device=device)


class RowTokens:
    """Rows' lists of (token id, value); the joined form is kept while the step's rows stay."""

    __slots__ = ("_device", "_joined", "_key", "_rows")

    def __init__(self, device: torch.device) -> None:
        """Start with no rows."""
        self._device = device
        self._rows: dict[int, tuple[NDArray[np.int64], NDArray[np.float32]]] = {}
        self._key: tuple[tuple[int, int], ...] | None = None
        self._joined: JoinedTokens | None = None

    def __bool__(self) -> bool:
        """Whether any row has entries."""
        return bool(self._rows)

    def __contains__(self, row: int) -> bool:
        """Whether a row has entries."""
        return row in self._rows

    def set_row(
        self, row: int, token_ids: Sequence[int], values: Sequence[float] | None = None
    ) -> None:
        """Give a row its entries; none removes it."""
        self.remove_row(row)
        if token_ids:
            ids = np.asarray(token_ids, np.int64)
            numbers = np.zeros(len(ids)) if values is None else np.asarray(values)
            self._rows[row] = (ids, numbers.astype(np.float32))

    def remove_row(self, row: int) -> None:
        """Forget a row; unknown rows are ignored."""
        if self._rows.pop(row, None) is not None:
            self._key = None

    def joined(self, rows: Sequence[int]) -> JoinedTokens | None:
        """Return the entries of a step's rows, or None where none of them has any.

        Args:
            rows: the batch row of each line of the step's logits.
        """
        if not self._rows:
            return None
        key = tuple((line, row) for line, row in enumerate(rows) if row in self._rows)
        if not key:
            return None
        if key != self._key or self._joined is None:
            self._joined = JoinedTokens(
                [(line, *self._rows[row]) for line, row in key], self._device
            )
            self._key = key
        return self._joined
