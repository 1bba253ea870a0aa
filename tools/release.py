"""Set the version of every distribution, in lock step: `python tools/release.py 0.2.0`."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def version_files(root: Path = ROOT) -> list[Path]:
    """Return every file that states the version."""
    return [
        root / "pyproject.toml",
        root / "core/pyproject.toml",
        root / "csrc/pyproject.toml",
        *sorted(root.glob("plugins/*/pyproject.toml")),
        root / "core/src/pegboard/__init__.py",
        root / "core/src/pegboard/builtin/plugin.py",
        *sorted(root.glob("plugins/*/src/*/plugin.py")),
    ]


def set_version(text: str, version: str) -> str:
    """Return `text` with its own version, and the pins of the root distribution, set."""
    text = re.sub(r'(?m)^(version = )"[^"]+"', rf'\1"{version}"', text)
    text = re.sub(r'(?m)^(__version__ = )"[^"]+"', rf'\1"{version}"', text)
    text = re.sub(r'(?m)^(    version=)"[^"]+"', rf'\1"{version}"', text)
    return re.sub(r'("pegboard-[a-z]+)==[^"]+"', rf'\1=={version}"', text)


def main() -> int:
    """Set the version that was asked for everywhere."""
    if len(sys.argv) != 2 or not re.fullmatch(r"\d+\.\d+\.\d+", sys.argv[1]):
        print("usage: release.py MAJOR.MINOR.PATCH", file=sys.stderr)
        return 2
    for path in version_files():
        path.write_text(set_version(path.read_text(), sys.argv[1]))
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
