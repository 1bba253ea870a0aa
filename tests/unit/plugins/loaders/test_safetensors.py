import contextlib
import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from pegboard.api.errors import ModelError
from pegboard.api.models import ModelDescription
from pegboard.api.plugin import ComponentContext
from pegboard_loaders.safetensors_file import DTYPES, SafetensorsFile
from pegboard_loaders.safetensors_loader import SafetensorsLoader


def description(path: Path) -> ModelDescription:
    return ModelDescription(
        path=str(path),
        format="hf",
        architectures=("A",),
        config={},
        dtype="float32",
        vocab_size=8,
        max_model_len=8,
        loader="safetensors",
        tokenizer="hf",
    )


def loaded(path: Path) -> dict[str, torch.Tensor]:
    loader = SafetensorsLoader(ComponentContext(plugin="loaders"))
    return {
        name: tensor.clone() for name, tensor in loader.weights(description(path), torch.float32)
    }


def refused(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        loaded(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def random_tensors() -> dict[str, torch.Tensor]:
    return {
        "b": torch.randn(3, 5),
        "a": torch.randn(7).to(torch.bfloat16),
        "c": torch.randint(-9, 9, (2, 1, 4)),
        "scalar": torch.tensor(1.5),
        "empty": torch.empty(0, 4),
        "odd": torch.randint(0, 2, (5,), dtype=torch.bool),
        "half": torch.randn(3).half(),
    }


def write(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def sharded(folder: Path) -> dict[str, torch.Tensor]:
    first, second = {"a": torch.randn(3), "b": torch.randn(4)}, {"c": torch.randn(5)}
    save_file(first, folder / "model-00001-of-00002.safetensors")
    save_file(second, folder / "model-00002-of-00002.safetensors")
    index = dict.fromkeys(first, "model-00001-of-00002.safetensors")
    index["c"] = "model-00002-of-00002.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return {**first, **second}


def test_single_file_comes_back_as_written(tmp_path: Path) -> None:
    tensors = random_tensors()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    result = loaded(tmp_path)
    assert result.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert result[name].dtype == tensor.dtype
        assert torch.equal(result[name], tensor)


def test_unaligned_data_comes_back_as_written(tmp_path: Path) -> None:
    values = torch.randn(3)
    header = {
        "byte": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "float": {"dtype": "F32", "shape": [3], "data_offsets": [1, 13]},
    }
    write(tmp_path / "model.safetensors", header, b"\7" + values.numpy().tobytes())
    assert torch.equal(loaded(tmp_path)["float"], values)


def test_tensors_are_views_of_the_file(tmp_path: Path) -> None:
    save_file({"a": torch.randn(1 << 20)}, tmp_path / "model.safetensors")
    file = SafetensorsFile(tmp_path / "model.safetensors")
    first, second = file.tensor(file.tensors["a"]), file.tensor(file.tensors["a"])
    assert first.data_ptr() == second.data_ptr()
    kept = first.clone()
    file.forget_pages(file.tensors["a"])
    assert torch.equal(first, kept)


def test_dtypes_are_torchs() -> None:
    for name, size in DTYPES.values():
        assert getattr(torch, name).itemsize == size


def test_shards_come_back_whole(tmp_path: Path) -> None:
    tensors = sharded(tmp_path)
    result = loaded(tmp_path)
    assert result.keys() == tensors.keys()
    assert all(torch.equal(result[name], tensors[name]) for name in tensors)


def test_missing_shard_is_named_before_anything_is_loaded(tmp_path: Path) -> None:
    sharded(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    loader = SafetensorsLoader(ComponentContext(plugin="loaders"))
    with pytest.raises(ModelError, match="model-00002-of-00002"):
        next(iter(loader.weights(description(tmp_path), torch.float32)))


def test_truncated_shard_is_named_before_anything_is_loaded(tmp_path: Path) -> None:
    sharded(tmp_path)
    shard = tmp_path / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-4])
    loader = SafetensorsLoader(ComponentContext(plugin="loaders"))
    with pytest.raises(ModelError, match=r"model-00002-of-00002.*promises"):
        next(iter(loader.weights(description(tmp_path), torch.float32)))


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ("{", "no index"),
        ("[]", "no index"),
        ("{}", "no index"),
        ('{"weight_map": {}}', "empty or malformed"),
        ('{"weight_map": {"a": 7}}', "not a file beside it"),
        ('{"weight_map": {"a": "../outside.safetensors"}}', "not a file beside it"),
        ('{"weight_map": {"a": "/etc/passwd"}}', "not a file beside it"),
        ('{"weight_map": {"z": "model-00001-of-00002.safetensors"}}', "lacks 'z'"),
    ],
)
def test_wrong_index_is_refused(tmp_path: Path, index: str, reason: str) -> None:
    sharded(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(index)
    assert reason in refused(tmp_path)


def test_pickled_weights_are_refused_with_the_mend(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"cposix\nsystem\n")
    assert "convert them to safetensors" in refused(tmp_path)


def test_folder_without_weights_says_so(tmp_path: Path) -> None:
    assert "holds no *.safetensors" in refused(tmp_path)


F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"{", "no JSON"),
        (b"[]", "no JSON object"),
        (b"\xff\xff", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b'{"a": {}, "a": {}}', "twice"),
        ({"a": 7}, "malformed"),
        ({"a": {}}, "malformed"),
        ({"a": {**F32, "shape": 7}}, "malformed"),
        ({"a": {**F32, "data_offsets": [0]}}, "malformed"),
        ({"a": {**F32, "shape": [-2]}}, "impossible"),
        ({"a": {**F32, "shape": [2.0]}}, "impossible"),
        ({"a": {**F32, "shape": [True, 2]}}, "impossible"),
        ({"a": {**F32, "shape": [1] * 20 + [2]}}, "impossible"),
        ({"a": {**F32, "data_offsets": [8, 0]}}, "impossible"),
        ({"a": {**F32, "shape": [3]}}, "not what it needs"),
        ({"a": {**F32, "dtype": "F31"}}, "'F31'"),
        ({"a": {**F32, "dtype": ["F32"]}}, "['F32']"),
        ({"a": F32, "b": F32}, "gap or overlaps"),
        ({"a": {**F32, "data_offsets": [4, 12]}}, "gap or overlaps"),
        ({"a": {"dtype": "U8", "shape": [2**40], "data_offsets": [0, 2**40]}}, "promises"),
        ({"__metadata__": [], "a": F32}, "metadata"),
        ({}, "promises"),
    ],
)
def test_hostile_header_is_refused(tmp_path: Path, header: Any, reason: str) -> None:
    path = write(tmp_path / "model.safetensors", header, bytes(8))
    message = refused(tmp_path)
    assert reason in message
    assert str(path) in message


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 200_000_000, 1000])
def test_header_longer_than_the_file_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", length) + b"{}" + bytes(64))
    assert re.search("past the end|no JSON", refused(tmp_path))


@pytest.mark.parametrize("cut", [lambda n: 0, lambda n: 7, lambda n: n // 2, lambda n: n - 1])
def test_truncated_file_is_refused(tmp_path: Path, cut: Callable[[int], int]) -> None:
    path = tmp_path / "model.safetensors"
    save_file(random_tensors(), path)
    data = path.read_bytes()
    path.write_bytes(data[: cut(len(data))])
    assert str(path) in refused(tmp_path)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_changed_header_bytes_never_do_worse_than_a_model_error(
    tmp_path: Path, data: st.DataObject
) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(4), "b": torch.ones(2, 2)}, path)
    content = bytearray(path.read_bytes())
    length = struct.unpack_from("<Q", content)[0]
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, 7 + length))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    with contextlib.suppress(ModelError):
        loaded(tmp_path)
