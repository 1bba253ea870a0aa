"""Reads the small JSON files of a checkpoint folder, with errors that name the file."""

import json
from pathlib import Path
from typing import Any

from pegboard.api.errors import ModelError

__all__ = ["read_json_object"]

_MAX_BYTES = 32 << 20


def read_json_object(path: Path) -> dict[str, Any] | None:
    """Return the object in `path`, or None if there is no such file.

    Raises:
        ModelError: it cannot be read, is too large, is no JSON or no object.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ModelError(f"{path} is over {_MAX_BYTES >> 20} MiB, too large for its purpose")
        value = json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON: {error}; fetch it again") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds a {type(value).__name__}, not a JSON object")
    return value
