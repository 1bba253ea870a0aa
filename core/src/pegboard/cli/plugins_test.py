"""`platform plugins test`: the conformance kit through pytest, in a process of its own."""

import importlib.util
import subprocess
import sys
from collections.abc import Sequence

from pegboard.api.errors import ConfigError

__all__ = ["run_kit"]


def run_kit(name: str, *, kinds: Sequence[str], components: Sequence[str]) -> int:
    """Run the kit on one plugin and return pytest's exit status.

    Raises:
        ConfigError: pytest is not installed.
    """
    if importlib.util.find_spec("pytest") is None:
        raise ConfigError("the conformance kit runs under pytest; pip install pytest")
    command = [sys.executable, "-m", "pytest", "--pyargs", "pegboard.conformance", "-q"]
    command += ["-p", "no:cacheprovider", "--plugin", name]
    for kind in kinds:
        command += ["--kind", kind]
    for component in components:
        command += ["--component", component]
    return subprocess.run(command, check=False).returncode
