"""The model's half of resolution: where it is, what it says of itself, its default sampling."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from pegboard.api.errors import ConfigError, InvalidRequest, ModelError, SelectionError
from pegboard.api.models import ConfigReader, ConfigReaderQuery, ModelDescription
from pegboard.api.sampling_params import SamplingParams
from pegboard.catalog.catalog import Catalog
from pegboard.catalog.selection import Entry
from pegboard.config.model import ModelOptions

__all__ = ["apply_options", "default_sampling", "describe_model"]

logger = logging.getLogger(__name__)

#: Keys of a generation_config.json that are default sampling values, and our names for them.
_GENERATION_KEYS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


def describe_model(path: str, options: ModelOptions, catalog: Catalog) -> ModelDescription:
    """Read a local checkpoint's description with the reader that recognises it.

    Raises:
        ModelError: it is not there, or no reader recognises it; says what each looked for.
    """
    if not Path(path).exists():
        raise ModelError(
            f"model {path} does not exist; give a folder, a .gguf file or a hub id (org/name)"
        )
    wanted = None if options.config_format == "auto" else options.config_format
    query = ConfigReaderQuery(path=path, format=wanted)
    reasons: list[str] = []
    for entry in catalog.entries("config_readers"):
        against = entry.spec.reasons_against(query)
        if not against:
            reader: ConfigReader = catalog.create(entry)
            reason = reader.recognises(path)
            if reason is None:
                return apply_options(_read(reader, entry, path), options)
            against = [reason]
        reasons.append(f"{entry.name}: {'; '.join(against)}")
    looked = "; ".join(reasons) or "no plugin that reads checkpoints is installed"
    raise ModelError(f"model {path} is of no known format ({looked})")


def _read(reader: ConfigReader, entry: Entry, path: str) -> ModelDescription:
    try:
        return reader.read(path)
    except (ModelError, ConfigError, SelectionError):
        raise
    except Exception as error:
        raise ModelError(
            f"model {path} could not be read by {entry.name} of plugin {entry.plugin}: "
            f"{type(error).__name__}: {error}"
        ) from error


def apply_options(description: ModelDescription, options: ModelOptions) -> ModelDescription:
    """Return the description with the user's overrides and chat template in it."""
    changes: dict[str, Any] = {}
    if options.hf_overrides:
        config = _merged(description.config, options.hf_overrides)
        changes["config"] = config
        if "vocab_size" in options.hf_overrides:
            changes["vocab_size"] = int(config["vocab_size"])
        if "max_position_embeddings" in options.hf_overrides:
            changes["max_model_len"] = int(config["max_position_embeddings"])
        if "architectures" in options.hf_overrides:
            changes["architectures"] = tuple(config["architectures"])
    if options.chat_template is not None:
        changes["chat_template"] = _template(options.chat_template)
    return msgspec.structs.replace(description, **changes) if changes else description


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        known = result.get(key)
        if isinstance(value, Mapping) and isinstance(known, Mapping):
            result[key] = _merged(known, value)
        else:
            result[key] = value
    return result


def _template(option: str) -> str:
    """Return Jinja source: a file's, or the option itself where it can be no path."""
    if "{" in option or "\n" in option:
        return option
    try:
        return Path(option).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"chat_template {option} is no readable file and no Jinja source: {error} "
            "(--chat-template)"
        ) from error


def default_sampling(description: ModelDescription, options: ModelOptions) -> dict[str, Any]:
    """Return the sampling values of requests that bring none, under `SamplingParams`' names.

    Raises:
        ConfigError: the named file cannot be read, is no JSON object, or holds a value that
            every request would be refused for.
    """
    if options.generation_config == "auto":
        source: Mapping[str, Any] = description.generation
    elif options.generation_config == "none":
        source = {}
    else:
        source = _generation_file(options.generation_config)
    values = {**source, **options.override_generation_config}
    defaults = {
        name: values[key] for key, name in _GENERATION_KEYS.items() if values.get(key) is not None
    }
    try:
        SamplingParams(**defaults)
    except InvalidRequest as error:
        raise ConfigError(
            f"the default sampling values do not fit: {error} (--override-generation-config; "
            "--generation-config none leaves the checkpoint's out)"
        ) from error
    return defaults


def _generation_file(option: str) -> dict[str, Any]:
    path = Path(option)
    if path.is_dir():
        path /= "generation_config.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(
            f"generation_config {path} cannot be read: {error} (--generation-config)"
        ) from error
