"""A Hugging Face folder's configuration as a model description. Imports no torch.

Read are config.json, generation_config.json and the chat template; code in a checkpoint
(`auto_map`) is never run and never looked at.
"""

from pathlib import Path
from typing import Any

from pegboard.api.errors import ModelError
from pegboard.api.models import ConfigReader, ModelDescription
from pegboard_loaders.hf_defaults import complete
from pegboard_loaders.json_file import read_json_object
from pegboard_loaders.sizes import check_sizes

__all__ = ["HfConfigReader"]

#: A value read from JSON, of any type until it is checked.
Json = Any

_DTYPES = ("float32", "bfloat16", "float16")
_REQUIRED = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
    "max_position_embeddings",
)
#: A wrapper of several modalities to the architecture of its text model.
_TEXT_MODELS = {"Gemma3ForConditionalGeneration": "Gemma3ForCausalLM"}
_MAX_TEMPLATE_BYTES = 1 << 20


class HfConfigReader(ConfigReader):
    """Reads a folder with config.json."""

    def recognises(self, path: str) -> str | None:
        """Return None if `path` is a folder with config.json, else one line why not."""
        folder = Path(path)
        if not folder.is_dir():
            return "it is a file, not a folder with config.json"
        return None if (folder / "config.json").is_file() else "it has no config.json"

    def read(self, path: str) -> ModelDescription:
        """Read the description.

        Raises:
            ModelError: unreadable, truncated or inconsistent; one line that names the file.
        """
        folder = Path(path)
        source = folder / "config.json"
        outer = read_json_object(source)
        if outer is None:
            raise ModelError(f"{folder} has no config.json; name a folder with a model")
        architectures, config = _text_model(outer, source)
        complete(config, source)
        _check(config, source)
        generation = read_json_object(folder / "generation_config.json") or {}
        ends = generation.get("eos_token_id", config.get("eos_token_id"))
        return ModelDescription(
            path=str(folder),
            format="hf",
            architectures=architectures,
            config=config,
            dtype=_dtype(outer, config, source),
            vocab_size=config["vocab_size"],
            max_model_len=_positions(config),
            loader="safetensors",
            tokenizer="hf",
            chat_template=_chat_template(folder),
            generation=generation,
            eos_token_ids=_token_ids(ends, source),
            bos_token_id=next(iter(_token_ids(config.get("bos_token_id"), source)), None),
            quantization=_quantization(outer, config, source),
        )


def _text_model(outer: dict[str, Any], source: Path) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the architectures, the preferred first, and the text model's configuration."""
    names = outer.get("architectures")
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        raise ModelError(
            f"{source}: architectures is {names!r}; a list with the model's class is needed"
        )
    inner = outer.get("text_config")
    if not isinstance(inner, dict):
        return tuple(names), dict(outer)
    text_names = [_TEXT_MODELS[name] for name in names if name in _TEXT_MODELS]
    shared = ("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings")
    config = {key: outer[key] for key in shared if key in outer}
    config.update(inner)
    config["model_type"] = inner.get("model_type", outer.get("model_type"))
    return (*names, *text_names), config


def _check(config: dict[str, Any], source: Path) -> None:
    missing = [key for key in _REQUIRED if config.get(key) is None]
    if missing:
        raise ModelError(f"{source} has no {', '.join(missing)}; it is incomplete")
    check_sizes(config, str(source))


def _dtype(outer: dict[str, Any], config: dict[str, Any], source: Path) -> str:
    for fields in (outer, config):
        for key in ("dtype", "torch_dtype"):
            value = fields.get(key)
            if value is None:
                continue
            name = str(value).removeprefix("torch.")
            if name not in _DTYPES:
                raise ModelError(
                    f"{source}: {key} is {value!r}; supported are {', '.join(_DTYPES)}"
                )
            return name
    return "float32"


def _positions(config: dict[str, Any]) -> int:
    """Return the positions the model serves; YaRN stretches those it was first made for."""
    positions = config["max_position_embeddings"]
    rope = config["rope_parameters"]
    if rope.get("rope_type") == "yarn":
        original = rope.get("original_max_position_embeddings") or positions
        positions = max(positions, int(original * rope["factor"]))
    return positions


def _token_ids(value: Json, source: Path) -> tuple[int, ...]:
    if value is None:
        return ()
    ids = value if isinstance(value, list) else [value]
    if not all(type(index) is int and index >= 0 for index in ids):
        raise ModelError(f"{source.parent}: {value!r} is no token id, or list of token ids")
    return tuple(ids)


def _quantization(
    outer: dict[str, Any], config: dict[str, Any], source: Path
) -> dict[str, Any] | None:
    section = config.get("quantization_config", outer.get("quantization_config"))
    if section is not None and not isinstance(section, dict):
        raise ModelError(f"{source}: quantization_config is no JSON object")
    return section


def _chat_template(folder: Path) -> str | None:
    """Return the template's source: a file of its own, or a key of tokenizer_config.json."""
    path = folder / "chat_template.jinja"
    try:
        if path.stat().st_size > _MAX_TEMPLATE_BYTES:
            raise ModelError(f"{path} is over 1 MiB; no chat template is")
        return path.read_text("utf-8")
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    for name in ("chat_template.json", "tokenizer_config.json"):
        template = (read_json_object(folder / name) or {}).get("chat_template")
        if isinstance(template, list):
            template = _default_of(template)
        if isinstance(template, str):
            return template
        if template is not None:
            raise ModelError(f"{folder / name}: chat_template is neither text nor a list of texts")
    return None


def _default_of(templates: list[Any]) -> Json:
    """Return the template called default, or the first, of a list of named ones."""
    named = {
        entry.get("name"): entry.get("template") for entry in templates if isinstance(entry, dict)
    }
    return named.get("default", next(iter(named.values()), None))
