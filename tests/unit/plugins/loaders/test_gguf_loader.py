import logging
import re
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import torch
from tests.support.checkpoints import describe_gguf
from tests.support.gguf_files import GgufTensorSource, write_gguf

from pegboard.api.errors import ModelError
from pegboard.api.models import ModelDescription
from pegboard.api.plugin import ComponentContext
from pegboard_loaders.gguf.architectures import undo_rotary_order
from pegboard_loaders.gguf.loader import GgufLoader
from pegboard_loaders.gguf.reader import GgufFile

FAMILIES = ["llama", "qwen2", "qwen3", "gemma3"]


def loader(cache_dir: Path | None) -> GgufLoader:
    load = SimpleNamespace(
        use_weight_cache=cache_dir is not None, cache_dir=str(cache_dir) if cache_dir else None
    )
    return GgufLoader(ComponentContext(plugin="loaders", config=SimpleNamespace(load=load)))


def converter_order(weights: np.ndarray, num_heads: int) -> np.ndarray:
    """What the converter to GGUF does to queries and keys of the llama family."""
    half = weights.shape[0] // num_heads // 2
    return weights.reshape(num_heads, 2, half, -1).swapaxes(1, 2).reshape(weights.shape)


def tiny(path: Path, family: str, **changes: object) -> tuple[Path, dict[str, np.ndarray]]:
    """Write a random two-layer model; return it with its weights as Hugging Face names them."""
    hidden, heads, kv_heads, head_dim, inner, vocab = 64, 4, 2, 16, 96, 40
    random = np.random.default_rng()
    metadata: dict[str, object] = {
        f"{family}.embedding_length": hidden,
        f"{family}.block_count": 2,
        f"{family}.feed_forward_length": inner,
        f"{family}.attention.head_count": heads,
        f"{family}.attention.head_count_kv": kv_heads,
        f"{family}.attention.key_length": head_dim,
        f"{family}.context_length": 128,
        f"{family}.attention.layer_norm_rms_epsilon": 1e-6,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [f"t{index}" for index in range(vocab)],
        "tokenizer.ggml.merges": ["t t"],
        "tokenizer.ggml.eos_token_id": 3,
    }
    if family == "gemma3":
        metadata["gemma3.attention.sliding_window"] = 32
    metadata.update(changes)
    parts = {
        "attn_q": ("self_attn.q_proj", (heads * head_dim, hidden)),
        "attn_k": ("self_attn.k_proj", (kv_heads * head_dim, hidden)),
        "attn_v": ("self_attn.v_proj", (kv_heads * head_dim, hidden)),
        "attn_output": ("self_attn.o_proj", (hidden, heads * head_dim)),
        "ffn_gate": ("mlp.gate_proj", (inner, hidden)),
        "ffn_up": ("mlp.up_proj", (inner, hidden)),
        "ffn_down": ("mlp.down_proj", (hidden, inner)),
        "attn_norm": ("input_layernorm", (hidden,)),
        "ffn_norm": ("post_attention_layernorm", (hidden,)),
    }
    if family in ("qwen3", "gemma3"):
        parts["attn_q_norm"] = ("self_attn.q_norm", (head_dim,))
        parts["attn_k_norm"] = ("self_attn.k_norm", (head_dim,))
    if family == "gemma3":
        parts["ffn_norm"] = ("pre_feedforward_layernorm", (hidden,))
        parts["post_attention_norm"] = ("post_attention_layernorm", (hidden,))
        parts["post_ffw_norm"] = ("post_feedforward_layernorm", (hidden,))
    names = {
        "token_embd.weight": ("model.embed_tokens.weight", (vocab, hidden)),
        "output_norm.weight": ("model.norm.weight", (hidden,)),
    }
    for layer in range(2):
        for part, (name, shape) in parts.items():
            names[f"blk.{layer}.{part}.weight"] = (f"model.layers.{layer}.{name}.weight", shape)
        if family == "qwen2":
            for letter, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
                names[f"blk.{layer}.attn_{letter}.bias"] = (
                    f"model.layers.{layer}.self_attn.{letter}_proj.bias",
                    (rows * head_dim,),
                )
    weights, tensors = {}, {}
    for stored_name, (name, shape) in names.items():
        values = random.normal(size=shape).astype(np.float32)
        weights[name] = values
        if family == "llama" and ".attn_q." in stored_name:
            values = converter_order(values, heads)
        if family == "llama" and ".attn_k." in stored_name:
            values = converter_order(values, kv_heads)
        if family == "gemma3" and name.endswith("norm.weight"):
            values = values + 1
        tensors[stored_name] = GgufTensorSource(values)
    return write_gguf(path, family, metadata, tensors), weights


def loaded(
    loader: GgufLoader, description: ModelDescription, dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in loader.weights(description, dtype)}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cached", [True, False])
def test_weights_come_back_under_hf_names(tmp_path: Path, family: str, cached: bool) -> None:
    path, expected = tiny(tmp_path / "tiny.gguf", family)
    result = loaded(loader(tmp_path / "cache" if cached else None), describe_gguf(path))
    assert result.keys() == expected.keys()
    for name, values in expected.items():
        torch.testing.assert_close(result[name], torch.from_numpy(values), rtol=0, atol=1e-6)


def test_rotary_order_is_undone_exactly() -> None:
    weights = np.random.default_rng().normal(size=(24, 5))
    assert (undo_rotary_order(converter_order(weights, 3), 3) == weights).all()


def test_default_model_equals_the_formats_own_library(smollm2_gguf: Path) -> None:
    wanted = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.layers.7.mlp.down_proj.weight": "blk.7.ffn_down.weight",
        "model.layers.29.self_attn.v_proj.weight": "blk.29.attn_v.weight",
    }
    weights = loader(None).weights(describe_gguf(smollm2_gguf), torch.float32)
    result = {name: tensor for name, tensor in weights if name in wanted}
    file = GgufFile(smollm2_gguf)
    for name, stored_name in wanted.items():
        tensor = file.tensors[stored_name]
        stored = file.tensor_bytes(tensor).reshape(tensor.shape[0], -1)
        expected = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[tensor.type.name])
        np.testing.assert_array_equal(result[name].numpy(), expected)


def test_second_start_maps_the_cache_and_converts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = tiny(tmp_path / "tiny.gguf", "llama")
    description = describe_gguf(path)
    first = loaded(loader(tmp_path / "cache"), description, torch.bfloat16)
    monkeypatch.setattr("pegboard_loaders.gguf.loader.dequantize", None)
    second = loaded(loader(tmp_path / "cache"), description, torch.bfloat16)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert all(tensor.dtype == torch.bfloat16 for tensor in second.values())


def test_each_dtype_has_its_own_cache(tmp_path: Path) -> None:
    path, _ = tiny(tmp_path / "tiny.gguf", "llama")
    for dtype in (torch.float32, torch.bfloat16, torch.float32):
        result = loaded(loader(tmp_path / "cache"), describe_gguf(path), dtype)
        assert {tensor.dtype for tensor in result.values()} == {dtype}
    assert len(list((tmp_path / "cache" / "weights").glob("*.safetensors"))) == 2


def test_changed_checkpoint_replaces_its_cache(tmp_path: Path) -> None:
    path, old = tiny(tmp_path / "tiny.gguf", "qwen3")
    loaded(loader(tmp_path / "cache"), describe_gguf(path))
    path, new = tiny(tmp_path / "tiny.gguf", "qwen3")
    result = loaded(loader(tmp_path / "cache"), describe_gguf(path))
    name = "model.norm.weight"
    assert torch.equal(result[name], torch.from_numpy(new[name]))
    assert not np.array_equal(old[name], new[name])
    assert len(list((tmp_path / "cache" / "weights").glob("*.safetensors"))) == 1


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flip_weight(data: bytes) -> bytes:
    changed = bytearray(data)
    changed[-5] ^= 0x10
    return bytes(changed)


def zero_page(data: bytes) -> bytes:
    return data[:-4096] + bytes(4096)


def garble_header(data: bytes) -> bytes:
    return data[:8] + b"x" + data[9:]


@pytest.mark.parametrize("damage", [cut, flip_weight, zero_page, garble_header])
def test_damaged_cache_is_made_again_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[bytes], bytes]
) -> None:
    path, expected = tiny(tmp_path / "tiny.gguf", "qwen2")
    description = describe_gguf(path)
    loaded(loader(tmp_path / "cache"), description)
    (cached,) = (tmp_path / "cache" / "weights").glob("*.safetensors")
    cached.write_bytes(damage(cached.read_bytes()))
    with caplog.at_level(logging.WARNING):
        result = loaded(loader(tmp_path / "cache"), description)
    assert [record for record in caplog.records if "damaged" in record.message]
    assert len(caplog.records) == 1
    name = "model.norm.weight"
    assert torch.equal(result[name], torch.from_numpy(expected[name]))


def test_failed_conversion_leaves_nothing_behind(tmp_path: Path) -> None:
    path, _ = tiny(tmp_path / "tiny.gguf", "llama", **{"llama.attention.head_count": 6})
    with pytest.raises(ModelError, match="does not fit the number of heads"):
        loaded(loader(tmp_path / "cache"), describe_gguf(path))
    kept = [file.suffix for file in (tmp_path / "cache" / "weights").iterdir()]
    assert set(kept) <= {".lock"}


def test_what_a_crash_left_is_removed(tmp_path: Path) -> None:
    path, expected = tiny(tmp_path / "tiny.gguf", "llama")
    folder = tmp_path / "cache" / "weights"
    loaded(loader(tmp_path / "cache"), describe_gguf(path))
    (cached,) = folder.glob("*.safetensors")
    cached.rename(cached.with_suffix(".1234567.part"))
    assert loaded(loader(tmp_path / "cache"), describe_gguf(path)).keys() == expected.keys()
    assert {file.suffix for file in folder.iterdir()} == {".lock", ".safetensors"}


def test_full_disk_falls_back_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, expected = tiny(tmp_path / "tiny.gguf", "llama")
    usage = SimpleNamespace(free=1000)
    monkeypatch.setattr("pegboard_loaders.weight_cache.shutil.disk_usage", lambda _: usage)
    result = loaded(loader(tmp_path / "cache"), describe_gguf(path))
    assert result.keys() == expected.keys()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_unwritable_cache_falls_back_with_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, expected = tiny(tmp_path / "tiny.gguf", "llama")
    (tmp_path / "cache").write_text("a file, not a folder")
    result = loaded(loader(tmp_path / "cache"), describe_gguf(path))
    assert result.keys() == expected.keys()
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


def test_loaders_at_once_convert_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, expected = tiny(tmp_path / "tiny.gguf", "llama")
    description = describe_gguf(path)
    results: list[dict[str, torch.Tensor]] = []

    def load() -> None:
        results.append(loaded(loader(tmp_path / "cache"), description))

    with caplog.at_level(logging.INFO):
        threads = [threading.Thread(target=load) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
    assert [result.keys() for result in results] == [expected.keys()] * 4
    assert len([record for record in caplog.records if "converted" in record.message]) == 1


def test_unknown_tensor_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    base, _ = tiny(tmp_path / "tiny.gguf", "llama")
    data = base.read_bytes().replace(b"blk.1.attn_v.weight", b"blk.1.attn_x.weight")
    path.write_bytes(data)
    with pytest.raises(ModelError, match=re.escape("'blk.1.attn_x.weight'")):
        loaded(loader(None), describe_gguf(path))
