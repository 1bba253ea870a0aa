"""Rules of the distributions: versions, requirements, what a plugin's entry module imports."""

import ast
import re
import shutil
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYPROJECTS = sorted(
    p
    for p in [
        ROOT / "pyproject.toml",
        *ROOT.glob("*/pyproject.toml"),
        *ROOT.glob("plugins/*/pyproject.toml"),
    ]
)
PLUGINS = sorted(ROOT.glob("plugins/*/src/*/plugin.py"))
SOURCES = sorted([*ROOT.glob("core/src/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")])


def project(path: Path) -> dict:
    return tomllib.loads(path.read_text())["project"]


def test_every_distribution_has_the_same_version() -> None:
    assert {project(p)["version"] for p in PYPROJECTS} == {project(PYPROJECTS[0])["version"]}


def test_only_the_root_pins_pegboard_exactly() -> None:
    for path in PYPROJECTS:
        own = [d for d in project(path).get("dependencies", []) if d.startswith("pegboard")]
        for requirement in own:
            assert ("==" in requirement) == (path == ROOT / "pyproject.toml"), (path, requirement)
            assert "<" not in requirement, f"{path}: {requirement} has an upper bound"


def test_the_root_requires_every_distribution() -> None:
    root = project(ROOT / "pyproject.toml")
    named = {d.partition("==")[0] for d in root["dependencies"]}
    for extra in root.get("optional-dependencies", {}).values():
        named |= {d.partition("==")[0] for d in extra}
    others = {project(p)["name"] for p in PYPROJECTS} - {root["name"]}
    assert others <= named, f"not required by the root: {sorted(others - named)}"


def test_torch_has_one_lower_bound_and_one_tested_version() -> None:
    for path in PYPROJECTS:
        for requirement in project(path).get("dependencies", []):
            if re.match(r"torch\b", requirement):
                assert requirement == "torch>=2.11", path
    assert "torch==2.13.0\n" in (ROOT / "requirements-dev.txt").read_text()


def test_no_file_names_an_index() -> None:
    for path in [*PYPROJECTS, *ROOT.glob("requirements*.txt"), ROOT / "Makefile"]:
        text = path.read_text()
        assert "index-url" not in text, path
        assert "--find-links" not in text, path


@pytest.mark.parametrize("path", PLUGINS, ids=lambda p: p.parent.name)
def test_entry_module_imports_only_the_api_and_is_short(path: Path) -> None:
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            assert name == "pegboard.api" or name.startswith("pegboard.api."), f"imports {name}"
    assert len(path.read_text().splitlines()) <= 120


@pytest.mark.parametrize("path", PLUGINS, ids=lambda p: p.parent.name)
def test_entry_point_is_named_like_the_plugin(path: Path) -> None:
    declared = project(path.parents[2] / "pyproject.toml")["entry-points"]["pegboard.plugins"]
    owner = path.parents[2].name
    assert declared == {owner: f"{path.parent.name}.plugin"}


def test_nothing_is_pickled_evaluated_or_loaded_unsafely() -> None:
    banned_calls = {"eval", "exec", "__import__"}
    banned_modules = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in banned_calls, f"{path}:{node.lineno} {node.func.id}"
            if isinstance(node, ast.Import):
                assert not {a.name for a in node.names} & banned_modules, f"{path}:{node.lineno}"
            if isinstance(node, ast.ImportFrom):
                assert node.module not in banned_modules, f"{path}:{node.lineno}"
            if isinstance(node, ast.Attribute) and node.attr == "load":
                assert ast.unparse(node) != "torch.load", f"{path}:{node.lineno}"
            if isinstance(node, ast.Attribute):
                name = ast.unparse(node)
                assert name not in ("os.environ", "os.getenv") or path.name == "env.py", (
                    f"{path}:{node.lineno} reads the environment"
                )


def test_no_module_has_a_name_that_says_nothing_or_hides_another() -> None:
    nothing = {"utils.py", "util.py", "helpers.py", "common.py", "misc.py"}
    hides = {"queue.py", "types.py", "platform.py"}
    for path in [*SOURCES, *ROOT.glob("tests/**/*.py")]:
        assert path.name not in nothing, path
        assert path.name not in hides, path


def test_kernel_library_is_there_when_a_compiler_is() -> None:
    if shutil.which("c++") is None and shutil.which("g++") is None:
        pytest.skip("no C++ compiler on this machine")
    from pegboard_kernels import load

    load()  # raises with the reason if it is not there
