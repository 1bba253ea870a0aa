"""Options and rules of the whole suite."""

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the file that lists what did not run."""
    parser.addoption(
        "--not-run-file", default=None, help="write what was skipped or needs an accelerator here"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Collect what does not run, if a file is asked for."""
    path = config.getoption("--not-run-file")
    if path is not None:
        config.pluginmanager.register(NotRun(Path(path)))


class NotRun:
    """Collects skipped tests and those that need an accelerator, with the reason."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Note the tests for accelerators before the marker expression drops them."""
        for item in items:
            if item.get_closest_marker("gpu"):
                self.lines.add(f"{item.nodeid}: needs an accelerator")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a skip and its reason."""
        if report.skipped and isinstance(report.longrepr, tuple):
            self.lines.add(f"{report.nodeid}: {report.longrepr[2].removeprefix('Skipped: ')}")

    def pytest_sessionfinish(self) -> None:
        """Write the list."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("".join(f"{line}\n" for line in sorted(self.lines)))
