"""`platform collect-env`: what a bug report needs, and no secrets."""

import argparse
import importlib.metadata
import platform as host
import sys
from typing import Any

from pegboard import __version__
from pegboard.api.errors import PegboardError
from pegboard.api.frontends import CliCommand
from pegboard.api.platforms import PlatformQuery
from pegboard.api.version import API_VERSION
from pegboard.catalog.explain import verdict_rows
from pegboard.cli.flags import add_plugin_flags
from pegboard.cli.output import line, show_json, table

__all__ = ["CollectEnv"]

_PACKAGES = (
    "torch",
    "msgspec",
    "pluggy",
    "pyzmq",
    "numpy",
    "tokenizers",
    "jinja2",
    "transformers",
    "safetensors",
    "triton",
)


class CollectEnv(CliCommand):
    """Prints versions, plugins and what each platform finds on this machine."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare its arguments."""
        parser.add_argument("--json", action="store_true", help="print JSON")
        add_plugin_flags(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Print the report."""
        report = _report(args)
        if args.json:
            show_json(report)
            return 0
        table([[key, str(value)] for key, value in report["host"].items()])
        line("packages")
        table([[name, version] for name, version in report["packages"].items()], indent=2)
        line("plugins")
        table([[p["name"], p["version"], p["path"]] for p in report["plugins"]], indent=2)
        line("platforms")
        table(report["platforms"], indent=2)
        if report["problem"]:
            line(f"problem: {report['problem']}")
        return 0


def _report(args: argparse.Namespace) -> dict[str, Any]:
    report: dict[str, Any] = {
        "host": {
            "pegboard": f"{__version__} (API {API_VERSION})",
            "python": f"{host.python_version()} ({sys.executable})",
            "system": host.platform(),
            "processor": _processor(),
            "memory": _memory(),
        },
        "packages": {name: _version(name) for name in _PACKAGES},
        "plugins": [],
        "platforms": [],
        "problem": None,
    }
    try:
        catalog = args.invocation.catalog
    except PegboardError as error:
        report["problem"] = str(error)
        return report
    report["plugins"] = [
        {key: plugin[key] for key in ("name", "version", "api", "distribution", "path")}
        for plugin in catalog.report()["plugins"]
    ]
    report["platforms"] = verdict_rows(catalog.explain("platforms", PlatformQuery()))
    return report


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    return next(iter(_proc_values("/proc/cpuinfo", "model name")), host.processor() or "unknown")


def _memory() -> str:
    return next(iter(_proc_values("/proc/meminfo", "MemTotal")), "unknown")


def _proc_values(path: str, key: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            pairs = [text.partition(":") for text in file]
    except OSError:
        return []
    return [value.strip() for name, _, value in pairs if name.strip() == key]
