"""GGUF files made on the spot, whole or with one byte or number wrong."""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

_TYPES = gguf.GGMLQuantizationType


class GgufTensorSource:
    """A tensor to write: values in float32, and the type to store them in."""

    def __init__(self, values: np.ndarray, type_name: str = "F32") -> None:
        self.values = values.astype(np.float32)
        self.type_name = type_name


def write_gguf(
    path: Path,
    architecture: str,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, GgufTensorSource],
) -> Path:
    """Write a GGUF file with the format's own library."""
    writer = gguf.GGUFWriter(str(path), architecture)
    for key, value in metadata.items():
        _add(writer, key, value)
    for name, tensor in tensors.items():
        kind = _TYPES[tensor.type_name]
        writer.add_tensor(name, gguf.quants.quantize(tensor.values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def raw_string(text: str | bytes) -> bytes:
    """Return a string as the file spells it."""
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def raw_header(num_tensors: int = 0, num_keys: int = 0, version: int = 3) -> bytes:
    """Return the first 24 bytes."""
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_keys)


def raw_tensor(name: str, dims: Sequence[int], kind: int = 0, offset: int = 0) -> bytes:
    """Return a row of the tensor table."""
    return (
        raw_string(name)
        + struct.pack("<I", len(dims))
        + b"".join(struct.pack("<Q", dim) for dim in dims)
        + struct.pack("<IQ", kind, offset)
    )
