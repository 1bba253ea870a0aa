"""What may be imported where: no torch before it is needed, and a core that stands alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "numpy", "zmq", "tokenizers", "jinja2", "pydantic", "starlette")
LIGHT = [
    "pegboard",
    "pegboard.api.hookspecs",
    "pegboard.builtin.plugin",
    "pegboard.catalog.catalog",
    "pegboard.catalog.discovery",
    "pegboard.cli.main",
    "pegboard.conformance.pytest_plugin",
    "pegboard.config.engine",
    "pegboard.engine.async_llm",
    "pegboard.engine.resolve",
    "pegboard_cpu.plugin",
    "pegboard_loaders.plugin",
    "pegboard_models.plugin",
    "pegboard_server.plugin",
    "pegboard_server.frontend",
]


def run(code: str, *, path: Path | None = None) -> str:
    flags = (
        ["-c", code]
        if path is None
        else ["-S", "-c", f"import sys; sys.path.insert(0, {str(path)!r}); {code}"]
    )
    done = subprocess.run([sys.executable, *flags], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("module", LIGHT)
def test_importing_this_imports_no_torch(module: str) -> None:
    heavy = run(
        f"import sys, {module}; "
        "print([m for m in ('torch', 'transformers', 'numpy.f2py') if m in sys.modules])"
    )
    assert heavy.strip() == "[]"


def test_listing_plugins_imports_nothing_heavy() -> None:
    out = run(
        "import sys; from pegboard.cli.main import main\n"
        "try: main(['plugins', 'list', '--json'])\n"
        "except SystemExit as e: assert not e.code, e.code\n"
        f"print([m for m in {HEAVY} if m in sys.modules])"
    )
    assert out.strip().splitlines()[-1] == "[]"


@pytest.fixture(scope="module")
def core_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site folder with every installed package but Pegboard's plugins, and the core's source."""
    site = tmp_path_factory.mktemp("site")
    for folder in map(Path, sys.path):
        if folder.name != "site-packages" or not folder.is_dir():
            continue
        for entry in folder.iterdir():
            plugin = entry.name.startswith(("pegboard", "_pegboard", "__editable__"))
            if not plugin and not (site / entry.name).exists():
                (site / entry.name).symlink_to(entry)
    (site / "pegboard").symlink_to(ROOT / "core/src/pegboard")
    return site


def test_core_alone_imports_and_lists(core_alone: Path) -> None:
    out = run(
        "import pegboard; from pegboard.cli.main import main\n"
        "try: main(['plugins', 'list', '--json'])\n"
        "except SystemExit as e: assert not e.code, e.code",
        path=core_alone,
    )
    listed = json.loads(out)
    assert [p["name"] for p in listed["plugins"]] == ["builtin"]


def test_core_alone_explains_what_is_missing(core_alone: Path) -> None:
    out = run(
        "from pegboard.cli.main import main\n"
        "try: main(['plugins', 'explain', 'platforms', '--json'])\n"
        "except SystemExit as e: assert not e.code, e.code",
        path=core_alone,
    )
    assert "platforms" in out
