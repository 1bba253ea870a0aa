import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.gguf_files import (
    GgufTensorSource,
    raw_header,
    raw_string,
    raw_tensor,
    write_gguf,
)

from pegboard.api.errors import ModelError
from pegboard_loaders.gguf.reader import TENSOR_TYPES, GgufFile

ALIGNED = 32


def padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % ALIGNED)


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    values = np.random.default_rng().normal(size=(4, 64))
    return write_gguf(
        tmp_path / "sound.gguf",
        "llama",
        {
            "llama.block_count": 3,
            "llama.rope.freq_base": 1e-5,
            "text": "é",
            "words": ["a", "", "ccc"],
            "numbers": [1, 2, 3],
            "flag": True,
        },
        {"first": GgufTensorSource(values), "second": GgufTensorSource(values, "Q8_0")},
    )


def write(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(data)
    return path


def refused(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        GgufFile(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_metadata_and_tensors_come_back_as_written(sound: Path) -> None:
    file = GgufFile(sound)
    assert file.metadata["general.architecture"] == "llama"
    assert file.metadata["llama.block_count"] == 3
    assert file.metadata["llama.rope.freq_base"] == 1e-5
    assert file.metadata["text"] == "é"
    assert file.metadata["words"] == ["a", "", "ccc"]
    assert file.metadata["numbers"].tolist() == [1, 2, 3]
    assert file.metadata["flag"] is True
    expected = {tensor.name: tensor for tensor in gguf.GGUFReader(sound).tensors}
    assert list(file.tensors) == list(expected)
    for name, tensor in file.tensors.items():
        assert tensor.shape == (4, 64)
        stored = file.tensor_bytes(tensor)
        assert stored.tobytes() == expected[name].data.tobytes()


def test_types_have_the_sizes_of_the_format() -> None:
    for number, kind in TENSOR_TYPES.items():
        theirs = gguf.GGMLQuantizationType(number)
        assert theirs.name == kind.name
        assert gguf.constants.GGML_QUANT_SIZES[theirs] == (kind.block_size, kind.block_bytes)


def test_file_cut_anywhere_is_refused(sound: Path, tmp_path: Path) -> None:
    data = sound.read_bytes()
    tensors = GgufFile(sound).tensors.values()
    begin = min(tensor.offset for tensor in tensors)
    end = max(tensor.offset + tensor.num_bytes for tensor in tensors)
    for length in (*range(begin), *range(begin, end, 61), end - 1):
        refused(write(tmp_path, data[:length]))


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_changed_bytes_never_do_worse_than_a_model_error(
    sound: Path, tmp_path: Path, data: st.DataObject
) -> None:
    content = bytearray(sound.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] = data.draw(st.integers(0, 255))
    path = write(tmp_path, bytes(content))
    try:
        file = GgufFile(path)
    except ModelError:
        return
    for tensor in file.tensors.values():
        assert file.tensor_bytes(tensor).nbytes == tensor.num_bytes


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "too short"),
        (b"GGML" + bytes(28), "does not begin with GGUF"),
        (raw_header(version=1) + bytes(8), "version is 1"),
        (raw_header(version=4) + bytes(8), "version is 4"),
        (raw_header(version=3 << 24) + bytes(8), "big-endian"),
        (raw_header(num_keys=2**63) + bytes(64), "keys, more than"),
        (raw_header(num_tensors=2**63) + bytes(64), "tensors, more than"),
        (raw_header(num_keys=1) + struct.pack("<Q", 2**64 - 1) + bytes(64), "a key is"),
        (
            raw_header(num_keys=1) + raw_string("k") + struct.pack("<IQ", 8, 2**63) + bytes(64),
            "past the end",
        ),
        (raw_header(num_keys=1) + raw_string(b"\xff\xfe") + bytes(64), "not UTF-8"),
        (raw_header(num_keys=1) + raw_string("k") + struct.pack("<I", 99) + bytes(64), "type 99"),
        (
            raw_header(num_keys=1) + raw_string("k") + struct.pack("<IIQ", 9, 8, 2**60) + bytes(64),
            "more than there can be",
        ),
        (
            raw_header(num_keys=1)
            + raw_string("k")
            + struct.pack("<IIQ", 9, 10, 2**61)
            + bytes(64),
            "past the end",
        ),
        (
            raw_header(num_keys=1) + raw_string("k") + struct.pack("<IIQ", 9, 9, 1) + bytes(64),
            "unknown type 9",
        ),
        (
            raw_header(num_keys=2) + 2 * (raw_string("k") + struct.pack("<II", 4, 1)) + bytes(64),
            "twice",
        ),
        (
            raw_header(num_keys=1)
            + raw_string("general.alignment")
            + struct.pack("<II", 4, 3)
            + bytes(64),
            "not a power of two",
        ),
        (
            raw_header(num_keys=1)
            + raw_string("general.alignment")
            + struct.pack("<II", 4, 0)
            + bytes(64),
            "not a power of two",
        ),
    ],
)
def test_hostile_header_is_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    assert reason in refused(write(tmp_path, data))


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([raw_tensor("a", [])], "0 dimensions"),
        ([raw_tensor("a", [1] * 5)], "5 dimensions"),
        ([raw_tensor("a", [0, 4])], "impossible shape"),
        ([raw_tensor("a", [2**40, 2**40])], "impossible shape"),
        ([raw_tensor("a", [2**63, 2])], "impossible shape"),
        ([raw_tensor("a", [33], kind=8)], "not a multiple of 32"),
        ([raw_tensor("a", [32], kind=77)], "type 77"),
        ([raw_tensor("a", [8], offset=7)], "not aligned"),
        ([raw_tensor("a", [8], offset=2**63)], "past the end"),
        ([raw_tensor("a", [2**30])], "past the end"),
        ([raw_tensor("a", [8]), raw_tensor("a", [8], offset=32)], "twice"),
        ([raw_tensor("a", [16]), raw_tensor("b", [8], offset=32)], "overlap"),
        ([raw_tensor("n" * 300, [8])], "300 bytes long"),
    ],
)
def test_hostile_tensor_table_is_refused(tmp_path: Path, rows: list[bytes], reason: str) -> None:
    table = padded(raw_header(num_tensors=len(rows)) + b"".join(rows))
    assert reason in refused(write(tmp_path, table + bytes(128)))


def test_missing_file_is_a_model_error(tmp_path: Path) -> None:
    assert "cannot be read" in refused(tmp_path / "absent.gguf")


def test_folder_is_a_model_error(tmp_path: Path) -> None:
    assert "cannot be read" in refused(tmp_path)
