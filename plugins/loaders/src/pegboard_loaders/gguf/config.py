"""GGUF metadata as a model description under Hugging Face's keys. Imports no torch."""

from collections import Counter
from pathlib import Path
from typing import Any

from pegboard.api.errors import ModelError
from pegboard.api.models import ConfigReader, ModelDescription
from pegboard_loaders.gguf.architectures import Architecture, architecture_of
from pegboard_loaders.gguf.reader import GgufFile
from pegboard_loaders.gguf.rope import rope_parameters
from pegboard_loaders.gguf.vocabulary import read_special_ids
from pegboard_loaders.sizes import check_sizes

__all__ = ["GgufConfigReader", "describe"]

_REQUIRED = object()

#: Hugging Face's key, the file's key after the architecture's name, and the default.
_KEYS: tuple[tuple[str, str, Any], ...] = (
    ("hidden_size", "embedding_length", _REQUIRED),
    ("num_hidden_layers", "block_count", _REQUIRED),
    ("intermediate_size", "feed_forward_length", _REQUIRED),
    ("num_attention_heads", "attention.head_count", _REQUIRED),
    ("num_key_value_heads", "attention.head_count_kv", None),
    ("head_dim", "attention.key_length", None),
    ("max_position_embeddings", "context_length", _REQUIRED),
    ("rms_norm_eps", "attention.layer_norm_rms_epsilon", _REQUIRED),
)


class GgufConfigReader(ConfigReader):
    """Reads the metadata of one .gguf file."""

    def recognises(self, path: str) -> str | None:
        """Return None if `path` is a file that begins with GGUF, else one line why not."""
        try:
            with Path(path).open("rb") as file:
                magic = file.read(4)
        except IsADirectoryError:
            return "it is a folder, not a .gguf file"
        except OSError as error:
            return f"it cannot be read: {error.strerror or error}"
        return None if magic == b"GGUF" else "it does not begin with GGUF"

    def read(self, path: str) -> ModelDescription:
        """Read the description.

        Raises:
            ModelError: unreadable, truncated or inconsistent; one line that names the file.
        """
        return describe(GgufFile(path))


def describe(file: GgufFile) -> ModelDescription:
    """Say what an open file holds.

    Raises:
        ModelError: its architecture is unknown, or a key is missing or absurd.
    """
    parts = file.metadata.get("split.count", 1)
    if parts != 1:
        raise ModelError(
            f"{file.path} is one of {parts} parts of a model; join them into one file first "
            "(llama-gguf-split --merge)"
        )
    architecture = architecture_of(file)
    config = _config(file, architecture)
    roles, ends = read_special_ids(file)
    template = file.metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise ModelError(f"{file.path}: tokenizer.chat_template is not text")
    config["bos_token_id"] = roles.get("bos_token")
    config["eos_token_id"] = list(ends)
    return ModelDescription(
        path=str(file.path),
        format="gguf",
        architectures=(architecture.name,),
        config=config,
        dtype=_dtype(file),
        vocab_size=config["vocab_size"],
        max_model_len=config["max_position_embeddings"],
        loader="gguf",
        tokenizer="gguf",
        chat_template=template,
        eos_token_ids=ends,
        bos_token_id=roles.get("bos_token"),
    )


def _config(file: GgufFile, architecture: Architecture) -> dict[str, Any]:
    config: dict[str, Any] = {"model_type": architecture.model_type}
    for name, key, default in _KEYS:
        config[name] = _number(file, f"{architecture.prefix}.{key}", default)
    heads = config["num_attention_heads"]
    config["num_key_value_heads"] = config["num_key_value_heads"] or heads
    if config["head_dim"] is None:
        config["head_dim"] = config["hidden_size"] // max(1, heads)
    config["vocab_size"] = _vocab_size(file)
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    config["mlp_bias"] = "blk.0.ffn_up.bias" in file.tensors
    config.update(architecture.constants)
    check_sizes(config, str(file.path))
    config["rope_parameters"] = rope_parameters(file, architecture.prefix, config["head_dim"])
    if architecture.adjust is not None:
        architecture.adjust(file, config)
    return config


def _number(file: GgufFile, key: str, default: Any) -> Any:  # noqa: ANN401 -- int, float or None
    value = file.metadata.get(key)
    if value is None:
        if default is _REQUIRED:
            raise ModelError(f"{file.path} has no {key}; convert the model again")
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ModelError(
            f"{file.path}: {key} is a {type(value).__name__}; one number for all layers is needed"
        )
    return value


def _vocab_size(file: GgufFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelError(f"{file.path} has no token_embd.weight with two dimensions")
    return embedding.shape[0]


def _dtype(file: GgufFile) -> str:
    """Return the dtype that most matrices are stored in, or what quantised ones expand to."""
    kinds = Counter(
        tensor.type.name for tensor in file.tensors.values() if len(tensor.shape) > 1
    ).most_common(1)
    name = kinds[0][0] if kinds else "F32"
    return {"F32": "float32", "F16": "float16"}.get(name, "bfloat16")
