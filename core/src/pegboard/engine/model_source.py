"""What the user named, as a local path: a file, a folder, a hub id, or nothing.

A hub id is first looked for in the hub library's own cache on this machine; the network is asked
only if it is not there, and never when PEGBOARD_OFFLINE is set.
"""

import importlib
import logging
import re
from pathlib import Path
from typing import Any

from pegboard.api.errors import ModelError
from pegboard.config.env import Environment
from pegboard.engine.default_model import find_default_model

__all__ = ["find_in_hub_cache", "hub_cache", "locate_model"]

logger = logging.getLogger(__name__)

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REVISION = re.compile(r"[A-Za-z0-9][\w./-]{0,254}")
#: What a checkpoint needs; pickled weights and code are not fetched.
_PATTERNS = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "*.txt"]


def locate_model(
    model: str | None,
    env: Environment,
    *,
    revision: str | None = None,
    download_dir: str | None = None,
) -> Path:
    """Return the local file or folder of a model, fetching a hub id if need be.

    Args:
        model: a path, a hub id such as "org/name", or None for the default model.
        env: the environment: cache folder, offline or not, where the hub keeps its files.
        revision: branch, tag or commit of a hub id; None for main.
        download_dir: where a hub id is fetched to, instead of the hub's own cache.

    Raises:
        ModelError: there is no such path, or the hub id cannot be had; one line with the mend.
    """
    if model is None:
        return find_default_model(env.cache)
    path = Path(model).expanduser()
    if path.exists():
        return path
    if model.startswith((".", "/", "~")) or path.suffix == ".gguf" or not _HUB_ID.fullmatch(model):
        raise ModelError(f"{model} is no file or folder here, nor a hub id (org/name)")
    if revision is not None and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise ModelError(f"revision {revision!r} is no branch, tag or commit")
    folder = Path(download_dir) if download_dir else hub_cache(env)
    found = find_in_hub_cache(folder, model, revision)
    if found is not None:
        logger.info("model %s found in %s", model, folder)
        return found
    if env.offline:
        raise ModelError(
            f"{model} is neither a path here nor in {folder}, and PEGBOARD_OFFLINE is set; "
            "unset it to fetch the model"
        )
    return _fetch(model, revision, folder)


def hub_cache(env: Environment) -> Path:
    """Return the folder in which the hub's library keeps its files."""
    variables = env.inherited
    if variables.get("HF_HUB_CACHE"):
        return Path(variables["HF_HUB_CACHE"]).expanduser()
    if variables.get("HF_HOME"):
        return Path(variables["HF_HOME"]).expanduser() / "hub"
    base = variables.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "huggingface" / "hub"


def find_in_hub_cache(folder: Path, model: str, revision: str | None = None) -> Path | None:
    """Return the snapshot of a hub id under the hub's cache, None if it is not there whole.

    Whole means a config.json and at least one safetensors file; the loader checks the rest.
    """
    repository = folder / f"models--{model.replace('/', '--')}"
    name = revision or "main"
    try:
        commit = (
            name
            if _COMMIT.fullmatch(name)
            else (repository / "refs" / name).read_text("utf-8").strip()
        )
    except (OSError, UnicodeDecodeError):
        return None
    if not _COMMIT.fullmatch(commit):
        return None
    snapshot = repository / "snapshots" / commit
    if (snapshot / "config.json").is_file() and any(snapshot.glob("*.safetensors")):
        return snapshot
    return None


def _fetch(model: str, revision: str | None, folder: Path) -> Path:
    try:
        hub: Any = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise ModelError(
            f"{model} is no path here; to fetch it as a hub id: pip install huggingface_hub"
        ) from error
    logger.info("fetching %s from the hub into %s", model, folder)
    try:
        path = hub.snapshot_download(
            model, revision=revision, cache_dir=str(folder), allow_patterns=_PATTERNS
        )
    except Exception as error:  # the library and its HTTP client raise many kinds
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(
            f"{model} is no path here and cannot be fetched from the hub: {lines[0]}"
        ) from error
    return Path(path)
