"""Every hook, option and flag is documented, and links lead somewhere."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def api_docs():
    spec = importlib.util.spec_from_file_location("api_docs", ROOT / "tools/api_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["hooks.md", "configuration.md"])
def test_generated_page_is_current(name: str) -> None:
    written = (ROOT / "sdk_docs" / name).read_text()
    assert written == api_docs().PAGES[name](), "run `make docs`"


@pytest.mark.parametrize(
    "path", sorted([ROOT / "README.md", *ROOT.glob("sdk_docs/**/*.md")]), ids=lambda p: p.name
)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", path.read_text()):
        assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_every_option_has_a_description() -> None:
    for page in ("hooks.md", "configuration.md"):
        for line in (ROOT / "sdk_docs" / page).read_text().splitlines():
            if line.startswith("| `"):
                assert line.rstrip(" |").count("|") >= 3, line
                assert line.rstrip().rstrip("|").rpartition("|")[2].strip(), f"undescribed: {line}"
