"""The tokenizer of a Hugging Face folder: tokenizer.json with its two side files.

Only the tokenizers library reads it; no transformers, no torch, no code from the checkpoint.
"""

import json
from pathlib import Path
from typing import Any

import tokenizers

from pegboard.api.errors import ModelError
from pegboard.api.fast_tokenizer import FastTokenizer
from pegboard.api.models import ModelDescription
from pegboard.api.plugin import ComponentContext

__all__ = ["HfTokenizer"]

_ROLES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "sep_token",
    "cls_token",
    "mask_token",
)
_MAX_FILE_BYTES = 256 << 20


class HfTokenizer(FastTokenizer):
    """Reads tokenizer.json, and the special tokens' roles from tokenizer_config.json."""

    def __init__(self, context: ComponentContext, description: ModelDescription) -> None:
        """Read the tokenizer of the folder that the description, or the configuration, names.

        Raises:
            ModelError: a file is missing or unreadable; one line that names it.
        """
        folder = _folder(context, description)
        backend = _read_backend(folder / "tokenizer.json")
        roles = _read_roles(folder)
        backend.add_special_tokens(
            [
                tokenizers.AddedToken(text, normalized=False, special=True)
                for text in dict.fromkeys(roles.values())
                if backend.token_to_id(text) is not None
            ]
        )
        super().__init__(context, description, backend, roles)


def _folder(context: ComponentContext, description: ModelDescription) -> Path:
    """Return where the tokenizer is: the configuration's tokenizer_path, or the checkpoint."""
    model = getattr(context.config, "model", None)
    path = Path(getattr(model, "tokenizer_path", None) or description.path)
    return path.parent if path.name == "tokenizer.json" else path


def _read_backend(path: Path) -> tokenizers.Tokenizer:
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise ModelError(f"{path} is over {_MAX_FILE_BYTES >> 20} MiB; no tokenizer is")
        return tokenizers.Tokenizer.from_file(str(path))
    except FileNotFoundError as error:
        raise ModelError(
            f"{path.parent} has no tokenizer.json; add it, or name a folder that has one "
            "(--tokenizer)"
        ) from error
    except ModelError:
        raise
    except Exception as error:  # the library raises bare Exception for what it cannot parse
        raise ModelError(f"{path} is not a tokenizer: {_first_line(error)}") from error


def _read_roles(folder: Path) -> dict[str, str]:
    """Return roles to token text; tokenizer_config.json outranks special_tokens_map.json."""
    roles: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        fields = _read_object(folder / name)
        for role in _ROLES:
            value = fields.get(role)
            if isinstance(value, dict):
                value = value.get("content")
            if isinstance(value, str) and value:
                roles[role] = value
    return roles


def _read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in `path`, {} if there is no such file."""
    try:
        fields = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {_first_line(error)}") from error
    if not isinstance(fields, dict):
        raise ModelError(f"{path} holds a {type(fields).__name__}, not a JSON object")
    return fields


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
