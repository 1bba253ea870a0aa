"""A small valid checkpoint of each format, for the conformance kit."""

import json
import struct
from pathlib import Path

import torch

from pegboard.api.loaders import LoaderExample
from pegboard.api.models import ModelDescription

__all__ = ["gguf", "safetensors"]

_ALIGNMENT = 32


def _tensors() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(7)
    shapes = {"model.embed_tokens.weight": (40, 32), "model.norm.weight": (32,)}
    return {name: torch.randn(shape, generator=random) for name, shape in shapes.items()}


def _description(path: Path, loader: str) -> ModelDescription:
    config = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
    return ModelDescription(
        path=str(path),
        format="hf" if loader == "safetensors" else loader,
        architectures=("LlamaForCausalLM",),
        config={"model_type": "llama", "num_hidden_layers": 1, **config},
        dtype="float32",
        vocab_size=40,
        max_model_len=64,
        loader=loader,
        tokenizer="hf",
    )


def safetensors(folder: Path) -> LoaderExample:
    """Write two shards and their index."""
    tensors = _tensors()
    index: dict[str, str] = {}
    for i, (name, tensor) in enumerate(tensors.items(), start=1):
        index[name] = f"model-0000{i}-of-00002.safetensors"
        (folder / index[name]).write_bytes(_safetensors_file(name, tensor))
    text = json.dumps({"metadata": {}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(text)
    return LoaderExample(description=_description(folder, "safetensors"), tensors=tensors)


def gguf(folder: Path) -> LoaderExample:
    """Write a GGUF file with a Q8_0 and an F32 tensor."""
    tensors = _tensors()
    embedding, norm = tensors.values()
    blocks = embedding.reshape(-1, 32)
    scales = (blocks.abs().amax(1, keepdim=True) / 127).half()
    quants = (blocks / scales.float()).round().clamp(-127, 127).to(torch.int8)
    q8_0 = b"".join(
        s.numpy().tobytes() + q.numpy().tobytes() for s, q in zip(scales, quants, strict=True)
    )
    stored = [
        ("token_embd.weight", (32, 40), 8, q8_0),
        ("output_norm.weight", (32,), 0, norm.numpy().tobytes()),
    ]
    path = folder / "example.gguf"
    path.write_bytes(_gguf_file(stored))
    return LoaderExample(
        description=_description(path, "gguf"),
        tensors=tensors,
        tolerance=(scales.max() * 0.51).item(),
    )


def _safetensors_file(name: str, tensor: torch.Tensor) -> bytes:
    """Lay out one float32 tensor: header length, JSON header, data."""
    data = tensor.numpy().tobytes()
    entry = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [0, len(data)]}
    header = json.dumps({name: entry}).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data


def _gguf_file(stored: list[tuple[str, tuple[int, ...], int, bytes]]) -> bytes:
    """Lay out version 3: header, one key, tensor infos, padding, data.

    Source: the GGUF specification (ggml, docs/gguf.md).
    """

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    string_type = 8
    head = b"GGUF" + struct.pack("<IQQ", 3, len(stored), 1)
    head += text("general.architecture") + struct.pack("<I", string_type) + text("llama")
    data = b""
    for name, shape, kind, raw in stored:
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        head += text(name) + dims + struct.pack("<IQ", kind, len(data))
        data += raw + bytes(-len(raw) % _ALIGNMENT)
    return head + bytes(-len(head) % _ALIGNMENT) + data
