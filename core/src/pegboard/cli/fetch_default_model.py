"""Brings the default model into the cache folder: `python -m pegboard.cli.fetch_default_model`."""

import sys

from pegboard.api.errors import PegboardError
from pegboard.config.env import read_environment
from pegboard.engine.default_model import (
    DEFAULT_MODEL_NAME,
    default_model_path,
    fetch_default_model,
)

__all__ = ["main"]


def main() -> int:
    """Fetch it if it is not there; return 0, or 1 after one line that says why not."""
    env = read_environment()
    there = default_model_path(env.cache).is_file()
    if not there:
        sys.stdout.write(f"fetching the default model, {DEFAULT_MODEL_NAME} (98 MB) …\n")
        sys.stdout.flush()
    try:
        path = fetch_default_model(env.cache, offline=env.offline)
    except (PegboardError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(f"default model: {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
