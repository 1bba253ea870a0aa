"""The few environment variables that Pegboard reads; nothing else reads the environment.

PEGBOARD_PLUGINS     as --plugins: names to enable, -name to leave one out, comma-separated
PEGBOARD_CONFIG      as --config: path of a TOML file
PEGBOARD_CACHE       folder for fetched models and converted weights (default ~/.cache/pegboard)
PEGBOARD_API_KEY     as --api-key
PEGBOARD_LOG_LEVEL   as --log-level
PEGBOARD_OFFLINE     1: a hub id is never fetched
"""

import os
from pathlib import Path

import msgspec

__all__ = ["Environment", "read_environment"]


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The environment as it was read; empty strings count as unset."""

    plugins: str | None
    config: str | None
    cache: Path
    api_key: str | None
    log_level: str | None
    offline: bool
    inherited: dict[str, str]


def read_environment() -> Environment:
    """Read the variables above, and the whole environment for child processes."""
    get = os.environ.get  # noqa: TID251 -- the one place that reads it
    xdg = get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Environment(
        plugins=get("PEGBOARD_PLUGINS") or None,
        config=get("PEGBOARD_CONFIG") or None,
        cache=Path(get("PEGBOARD_CACHE") or Path(xdg) / "pegboard"),
        api_key=get("PEGBOARD_API_KEY") or None,
        log_level=get("PEGBOARD_LOG_LEVEL") or None,
        offline=(get("PEGBOARD_OFFLINE") or "0") not in ("", "0"),
        inherited=dict(os.environ),  # noqa: TID251 -- handed to children
    )
