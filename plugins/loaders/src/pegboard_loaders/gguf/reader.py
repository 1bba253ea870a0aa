"""A GGUF file: header, metadata and the table of tensors, every number checked before use.

The file may be hostile: no length, count, offset or type is believed. Nothing here knows a model
or an architecture. Imports no torch.

Source: the GGUF specification, versions 2 and 3, little-endian.
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pegboard.api.errors import ModelError

__all__ = ["TENSOR_TYPES", "GgufFile", "GgufTensor", "TensorType"]

_HEADER_BYTES = 24
_DEFAULT_ALIGNMENT = 32
_MAX_ALIGNMENT = 1 << 20
_MAX_KEY_BYTES = 1 << 16
_MAX_NAME_BYTES = 256
_MAX_DIMS = 4
_MAX_ARRAY_STRINGS = 1 << 22
_MAX_ELEMENTS = 1 << 48
_LEAST_KEY_BYTES = 8 + 4 + 1
_LEAST_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

_STRING, _ARRAY = 8, 9
_SCALARS: dict[int, struct.Struct] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}


@dataclass(frozen=True, slots=True)
class TensorType:
    """How a tensor is stored: blocks of `block_size` values in `block_bytes` bytes."""

    name: str
    block_size: int
    block_bytes: int


#: Tensor types by their number in a file. Others are refused by number.
TENSOR_TYPES: dict[int, TensorType] = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    30: TensorType("BF16", 1, 2),
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One row of the tensor table.

    Attributes:
        name: as the file spells it.
        type: how it is stored.
        shape: outermost dimension first, as torch has it (the file has it reversed).
        offset: of its first byte, from the start of the file.
        num_bytes: stored size.
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


class GgufFile:
    """A mapped GGUF file whose header, metadata and tensor table have been checked.

    Attributes:
        path: of the file.
        metadata: key to int, float, bool, str, list[str] or a numpy array of numbers.
        tensors: name to its row, in the file's order.
    """

    def __init__(self, path: str | Path) -> None:
        """Map and check the file.

        Raises:
            ModelError: unreadable, truncated, malformed or of an unknown version.
        """
        self.path = Path(path)
        self._map = _map_file(self.path)
        self._position = 0
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, GgufTensor] = {}
        num_tensors, num_keys = self._read_header()
        for _ in range(num_keys):
            self._read_key()
        self._read_tensor_table(num_tensors)

    def tensor_bytes(self, tensor: GgufTensor) -> np.ndarray:
        """Return a tensor's stored bytes as a read-only view, [num_bytes] uint8."""
        return np.frombuffer(self._map, np.uint8, tensor.num_bytes, tensor.offset)

    def forget_pages(self, tensor: GgufTensor) -> None:
        """Tell the system that a tensor's pages are not needed in memory any more."""
        start = tensor.offset - tensor.offset % mmap.PAGESIZE
        self._map.madvise(mmap.MADV_DONTNEED, start, tensor.offset + tensor.num_bytes - start)

    def _fail(self, what: str) -> ModelError:
        return ModelError(
            f"{self.path} is not a sound GGUF file: {what}; fetch or convert it again"
        )

    def _take(self, num_bytes: int, what: str) -> int:
        """Step over `num_bytes` and return where they begin."""
        start = self._position
        if num_bytes > len(self._map) - start:
            raise self._fail(f"{what} at byte {start} runs past the end of the file")
        self._position = start + num_bytes
        return start

    def _read_u32(self, what: str) -> int:
        return _U32.unpack_from(self._map, self._take(4, what))[0]

    def _read_u64(self, what: str) -> int:
        return _U64.unpack_from(self._map, self._take(8, what))[0]

    def _read_string(self, what: str, max_bytes: int | None = None) -> str:
        length = self._read_u64(what)
        if max_bytes is not None and length > max_bytes:
            raise self._fail(f"{what} is {length} bytes long; at most {max_bytes} are allowed")
        start = self._take(length, what)
        try:
            return str(self._map[start : start + length], "utf-8")
        except UnicodeDecodeError as error:
            raise self._fail(f"{what} at byte {start} is not UTF-8") from error

    def _read_header(self) -> tuple[int, int]:
        if self._map[:4] != b"GGUF":
            raise self._fail("it does not begin with GGUF")
        self._position = 4
        version = self._read_u32("the version")
        if version & 0xFFFF == 0:
            raise self._fail("it is big-endian, and only little-endian files are read")
        if version not in (2, 3):
            raise self._fail(f"its version is {version}, and only 2 and 3 are read")
        num_tensors = self._read_u64("the number of tensors")
        num_keys = self._read_u64("the number of keys")
        room = len(self._map) - self._position
        if num_keys > room // _LEAST_KEY_BYTES:
            raise self._fail(f"it promises {num_keys} keys, more than it has room for")
        if num_tensors > room // _LEAST_TENSOR_BYTES:
            raise self._fail(f"it promises {num_tensors} tensors, more than it has room for")
        return num_tensors, num_keys

    def _read_key(self) -> None:
        key = self._read_string("a key", _MAX_KEY_BYTES)
        if key in self.metadata:
            raise self._fail(f"the key {key!r} is there twice")
        self.metadata[key] = self._read_value(self._read_u32(f"the type of {key!r}"), key)

    def _read_value(self, kind: int, key: str) -> Any:  # noqa: ANN401 -- the file says the type
        scalar = _SCALARS.get(kind)
        if scalar is not None:
            (value,) = scalar.unpack_from(self._map, self._take(scalar.size, f"{key!r}"))
            # The decimal number that was meant, such as 1e-05, not its float32 neighbour.
            return float(str(np.float32(value))) if scalar.format == "<f" else value
        if kind == _STRING:
            return self._read_string(f"the value of {key!r}")
        if kind == _ARRAY:
            return self._read_array(key)
        raise self._fail(f"the key {key!r} has the unknown type {kind}")

    def _read_array(self, key: str) -> list[str] | np.ndarray:
        kind = self._read_u32(f"the element type of {key!r}")
        count = self._read_u64(f"the length of {key!r}")
        scalar = _SCALARS.get(kind)
        if scalar is not None:
            start = self._take(count * scalar.size, f"the array {key!r}")
            dtype = np.dtype(np.bool_ if kind == 7 else scalar.format)
            # A copy, so that the map can go while the metadata stays.
            return np.frombuffer(self._map, dtype, count, start).copy()
        if kind != _STRING:
            raise self._fail(f"the array {key!r} has elements of the unknown type {kind}")
        if count > min(_MAX_ARRAY_STRINGS, (len(self._map) - self._position) // 8):
            raise self._fail(f"the array {key!r} promises {count} strings, more than there can be")
        return self._read_strings(count, key)

    def _read_strings(self, count: int, key: str) -> list[str]:
        """Read `count` strings; a vocabulary has a hundred thousand, so this loop is flat."""
        data, end, position = self._map, len(self._map), self._position
        unpack, strings = _U64.unpack_from, []
        for _ in range(count):
            start = position + 8
            position = start + unpack(data, position)[0] if start <= end else end + 1
            if position > end:
                raise self._fail(f"a string of {key!r} runs past the end of the file")
            strings.append(data[start:position])
        self._position = position
        try:
            return [string.decode() for string in strings]
        except UnicodeDecodeError as error:
            raise self._fail(f"a string of {key!r} is not UTF-8") from error

    def _read_tensor_table(self, num_tensors: int) -> None:
        rows = [self._read_tensor_row() for _ in range(num_tensors)]
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if (
            not isinstance(alignment, int)
            or not 1 <= alignment <= _MAX_ALIGNMENT
            or alignment & (alignment - 1)
        ):
            raise self._fail(f"general.alignment is {alignment!r}, not a power of two")
        data_start = -(-self._position // alignment) * alignment
        for name, kind, shape, offset in rows:
            if name in self.tensors:
                raise self._fail(f"the tensor {name!r} is there twice")
            if offset % alignment:
                raise self._fail(f"the tensor {name!r} is not aligned to {alignment} bytes")
            num_bytes = math.prod(shape) // kind.block_size * kind.block_bytes
            if data_start + offset + num_bytes > len(self._map):
                raise self._fail(f"the tensor {name!r} runs past the end of the file")
            self.tensors[name] = GgufTensor(name, kind, shape, data_start + offset, num_bytes)
        self._check_overlaps()

    def _read_tensor_row(self) -> tuple[str, TensorType, tuple[int, ...], int]:
        name = self._read_string("a tensor's name", _MAX_NAME_BYTES)
        num_dims = self._read_u32(f"the number of dimensions of {name!r}")
        if not 1 <= num_dims <= _MAX_DIMS:
            raise self._fail(f"the tensor {name!r} has {num_dims} dimensions; 1 to 4 are allowed")
        dims = [self._read_u64(f"a dimension of {name!r}") for _ in range(num_dims)]
        if not all(dims) or math.prod(dims) > _MAX_ELEMENTS:
            raise self._fail(f"the tensor {name!r} has the impossible shape {dims}")
        number = self._read_u32(f"the type of {name!r}")
        kind = TENSOR_TYPES.get(number)
        if kind is None:
            known = ", ".join(known.name for known in TENSOR_TYPES.values())
            raise ModelError(
                f"{self.path}: the tensor {name!r} has the type {number}, which is not supported; "
                f"supported are {known}"
            )
        if dims[0] % kind.block_size:
            raise self._fail(
                f"rows of {name!r} hold {dims[0]} values, not a multiple of {kind.block_size}"
            )
        return name, kind, tuple(reversed(dims)), self._read_u64(f"the offset of {name!r}")

    def _check_overlaps(self) -> None:
        end, last = 0, ""
        for tensor in sorted(self.tensors.values(), key=lambda tensor: tensor.offset):
            if tensor.offset < end:
                raise self._fail(f"the tensors {last!r} and {tensor.name!r} overlap")
            end, last = tensor.offset + tensor.num_bytes, tensor.name


def _map_file(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < _HEADER_BYTES:
                raise ModelError(f"{path} is {size} bytes long, too short for a GGUF file")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error
