"""A safetensors file: its header, every number checked before use, and its tensors as views.

The file may be hostile. Imports no torch until a tensor is asked for.

Source: the safetensors format: eight bytes of header length, a JSON header, then the data.
"""

import json
import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pegboard.api.errors import ModelError

if TYPE_CHECKING:
    import torch

__all__ = ["DTYPES", "SafetensorsFile", "StoredTensor"]

#: A value read from JSON, of any type until it is checked.
Json = Any

_LENGTH = struct.Struct("<Q")
_MAX_HEADER_BYTES = 100_000_000
_MAX_DIMS = 16

#: The format's dtype name to (torch's name, bytes a value).
DTYPES: dict[str, tuple[str, int]] = {
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "I64": ("int64", 8),
    "I32": ("int32", 4),
    "I16": ("int16", 2),
    "I8": ("int8", 1),
    "U8": ("uint8", 1),
    "BOOL": ("bool", 1),
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One entry of the header.

    Attributes:
        name: of the tensor.
        dtype: the format's name, a key of `DTYPES`.
        shape: outermost dimension first.
        offset: of its first byte, from the start of the file.
        num_bytes: stored size.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


class SafetensorsFile:
    """A mapped safetensors file whose header has been checked against its size.

    Attributes:
        path: of the file.
        metadata: the header's text to text section.
        tensors: name to entry, in the order of the data.
    """

    def __init__(self, path: str | Path) -> None:
        """Map and check the file.

        Raises:
            ModelError: missing, truncated or malformed; one line that names it.
        """
        self.path = Path(path)
        self._map = self._open()
        header, data_start = self._read_header()
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict):
            raise self._fail("its metadata is no object")
        self.metadata: dict[str, Any] = metadata
        entries = [self._entry(name, fields, data_start) for name, fields in header.items()]
        entries.sort(key=lambda entry: (entry.offset, entry.num_bytes))
        self._check_layout(entries, data_start)
        self.tensors = {entry.name: entry for entry in entries}

    def tensor(self, entry: StoredTensor) -> "torch.Tensor":
        """Return a tensor that is a view of the mapped file (private: writes stay in memory)."""
        import torch

        dtype = getattr(torch, DTYPES[entry.dtype][0])
        if not entry.num_bytes:
            return torch.empty(entry.shape, dtype=dtype)
        values = torch.frombuffer(
            self._map, dtype=torch.uint8, count=entry.num_bytes, offset=entry.offset
        )
        if entry.offset % dtype.itemsize:
            values = values.clone()  # a view of another dtype must be aligned
        return values.view(dtype).reshape(entry.shape)

    def forget_pages(self, entry: StoredTensor) -> None:
        """Tell the system that a tensor's pages need not stay in memory; they can be read again.

        Pages that were written to would lose it; nothing here writes.
        """
        start = entry.offset - entry.offset % mmap.PAGESIZE
        if entry.num_bytes:
            self._map.madvise(mmap.MADV_DONTNEED, start, entry.offset + entry.num_bytes - start)

    def _fail(self, what: str) -> ModelError:
        return ModelError(
            f"{self.path} is not a sound safetensors file: {what}; fetch or convert it again"
        )

    def _open(self) -> mmap.mmap:
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
                if size < _LENGTH.size + 2:
                    raise self._fail(f"it is {size} bytes long")
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError as error:
            raise ModelError(f"{self.path} cannot be read: {error.strerror or error}") from error

    def _read_header(self) -> tuple[dict[str, Any], int]:
        (length,) = _LENGTH.unpack_from(self._map, 0)
        end = _LENGTH.size + length
        if length > _MAX_HEADER_BYTES or end > len(self._map):
            raise self._fail(f"its header of {length} bytes runs past the end of the file")
        try:
            header = json.loads(
                self._map[_LENGTH.size : end], object_pairs_hook=_object_without_repeats
            )
        except (ValueError, RecursionError) as error:
            raise self._fail(f"its header is no JSON ({error})") from error
        if not isinstance(header, dict):
            raise self._fail("its header is no JSON object")
        return header, end

    def _entry(self, name: str, fields: Json, data_start: int) -> StoredTensor:
        try:
            dtype, shape = fields["dtype"], tuple(fields["shape"])
            begin, end = fields["data_offsets"]
            whole = all(type(number) is int and number >= 0 for number in (*shape, begin, end))
        except (KeyError, TypeError, ValueError) as error:
            raise self._fail(f"the entry of {name!r} is malformed") from error
        if not whole or begin > end or len(shape) > _MAX_DIMS:
            raise self._fail(f"the entry of {name!r} holds an impossible number")
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise ModelError(
                f"{self.path}: the tensor {name!r} has the dtype {dtype!r}, which is not "
                f"supported; supported are {', '.join(DTYPES)}"
            )
        if math.prod(shape) * DTYPES[dtype][1] != end - begin:
            raise self._fail(f"the tensor {name!r} has {end - begin} bytes, not what it needs")
        return StoredTensor(name, dtype, shape, data_start + begin, end - begin)

    def _check_layout(self, entries: list[StoredTensor], data_start: int) -> None:
        position = data_start
        for entry in entries:
            if entry.offset != position:
                raise self._fail(f"the tensor {entry.name!r} leaves a gap or overlaps another")
            position += entry.num_bytes
        if position != len(self._map):
            raise self._fail(
                f"it is {len(self._map)} bytes long, and its header promises {position}"
            )


def _object_without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name is there twice")
    return fields
