"""The kit under pytest: `--plugin NAME` makes each check of each of its components a test.

Loaded by pytest wherever pegboard-core is installed, so it imports nothing heavy until asked.
"""

import secrets
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pegboard.conformance.kit import Check, Outcome, Subject

__all__ = ["KitReport", "pytest_addoption", "pytest_configure", "pytest_generate_tests"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the kit's options."""
    group = parser.getgroup("pegboard", "Pegboard's conformance kit")
    group.addoption("--plugin", action="append", default=[], help="plugin to run the kit on")
    group.addoption("--kind", action="append", default=[], help="only components of this kind")
    group.addoption("--component", action="append", default=[], help="only these components")


def pytest_configure(config: pytest.Config) -> None:
    """Collect outcomes for the table."""
    if config.getoption("--plugin"):
        config.pluginmanager.register(KitReport(), "pegboard-kit-report")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give the kit's one test function a case for each check of each component."""
    if "kit_case" not in metafunc.fixturenames:
        return
    cases = _cases(metafunc.config)
    ids = [f"{subject.spec.name}-{check.name}" for check, subject in cases]
    metafunc.parametrize("kit_case", cases, ids=ids)


def _cases(config: pytest.Config) -> "list[tuple[Check, Subject]]":
    from pegboard.catalog import build_catalog
    from pegboard.config.plugins import PluginsConfig
    from pegboard.conformance.kit import KINDS, Subject, checks_of

    plugins: list[str] = config.getoption("--plugin") or []
    if not plugins:
        return []
    kinds, components = config.getoption("--kind"), config.getoption("--component")
    named = tuple(p for p in plugins if p != "builtin")
    catalog = build_catalog(PluginsConfig(enabled=named))
    names = {p.rpartition("/")[2].removesuffix(".py") for p in plugins}
    seed = secrets.randbits(31)
    return [
        (check, Subject(catalog, entry, seed))
        for kind in KINDS
        if not kinds or kind in kinds
        for entry in catalog.entries(kind)
        if entry.plugin in names and (not components or entry.spec.name in components)
        for check in checks_of(kind)
    ]


class KitReport:
    """Prints the table at the end of a run of the kit."""

    def __init__(self) -> None:
        """Start with no outcome."""
        self.outcomes: list[Outcome] = []

    def add(self, outcome: "Outcome") -> None:
        """Keep an outcome for the table."""
        self.outcomes.append(outcome)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table."""
        from pegboard.conformance.report import markdown_table

        if self.outcomes:
            terminalreporter.section("conformance")
            terminalreporter.write_line(markdown_table(self.outcomes))
