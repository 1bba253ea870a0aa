"""Write the pages of sdk_docs that come from the source: hooks.md and configuration.md."""

import inspect
import sys
from collections.abc import Iterable
from pathlib import Path

from pegboard.api.hookspecs import COMPONENT_HOOKS, LIFECYCLE_HOOKS, HookSpecs
from pegboard.config.fields import OptionField, engine_groups, fields_of
from pegboard_cpu.config import CpuConfig
from pegboard_server.config import ServerConfig

ROOT = Path(__file__).resolve().parent.parent


def hooks_page() -> str:
    """Return the page that lists every hook."""
    lines = [
        "# Hooks",
        "",
        "Written by `make docs` from `pegboard.api.hookspecs`; the specs' fields are documented in `pegboard.api`.",
        "",
        "## Component hooks",
        "",
        "| hook | spec | loaded in | stability | meaning |",
        "|---|---|---|---|---|",
    ]
    for name, info in COMPONENT_HOOKS.items():
        doc = inspect.getdoc(getattr(HookSpecs, name)) or ""
        spec = info.spec
        where = f"`{spec.__module__}.{spec.__name__}`" if spec else ""
        extra = " Acts only if the plugin is enabled by name." if info.acts_unselected else ""
        lines.append(
            f"| `{name}` | {where} | {', '.join(info.processes)} | {info.stability} | {doc}{extra} |"
        )
    lines += ["", "## Lifecycle hooks", "", "| hook | called in | meaning |", "|---|---|---|"]
    for name, info in LIFECYCLE_HOOKS.items():
        doc = inspect.getdoc(getattr(HookSpecs, name)) or ""
        lines.append(f"| `{name}` | {', '.join(info.processes)} | {doc} |")
    return "\n".join([*lines, ""])


def configuration_page() -> str:
    """Return the page that lists every option: the engine's, then each first-party plugin's."""
    lines = [
        "# Configuration",
        "",
        "Written by `make docs` from the structs in `pegboard.config`. Each option is a key of its table in the TOML file and a flag of `platform serve` (dashes or underscores); booleans also have `--no-…`. Flags win over `PEGBOARD_*` variables, which win over the file (`--config`, `PEGBOARD_CONFIG`). Integers take `8k` (8000) and `8K` (8192).",
    ]
    for group in engine_groups():
        lines += section(f"[{group.name}]", group.title, group.fields)
    for name, struct in (("server", ServerConfig), ("cpu", CpuConfig)):
        doc = (inspect.getdoc(struct) or "").splitlines()[0]
        lines += section(f"[plugins.{name}]", doc, fields_of(struct), plugin=name)
    return "\n".join([*lines, ""])


def section(title: str, doc: str, fields: Iterable[OptionField], plugin: str = "") -> list[str]:
    """Return the table of one struct's options."""
    lines = [
        "",
        f"## `{title}`",
        "",
        doc,
        "",
        "| key | flag | type | default | meaning |",
        "|---|---|---|---|---|",
    ]
    for field in fields:
        flags = ", ".join(f"`{flag}`" for flag in field.flags)
        if plugin not in ("", "server"):
            flags = f"`--plugin-config {plugin}.{field.name}=…`"
        kind = ", ".join(field.choices) if field.choices else field.kind
        default = "" if field.default is None else f"`{field.default}`"
        meaning = field.help.replace("|", "\\|")
        lines.append(f"| `{field.name}` | {flags} | {kind} | {default} | {meaning} |")
    return lines


PAGES = {"hooks.md": hooks_page, "configuration.md": configuration_page}


def main() -> int:
    """Write the pages."""
    for name, page in PAGES.items():
        (ROOT / "sdk_docs" / name).write_text(page())
        print(f"sdk_docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
