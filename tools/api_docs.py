"""Write the pages of sdk_docs that come from the source: hooks.md and configuration.md."""

import inspect
import sys
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from pegboard.api.hookspecs import COMPONENT_HOOKS, LIFECYCLE_HOOKS, HookSpecs
from pegboard.config.engine import EngineOptions

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
    from pegboard_server.options import ServerOptions

    lines = [
        "# Configuration",
        "",
        "Written by `make docs` from the structs in `pegboard.config`. Each field is a TOML key in its table and a flag of `platform serve` (dashes or underscores). Flags win over `PEGBOARD_*` variables, which win over the file (`--config`, `PEGBOARD_CONFIG`).",
    ]
    for table, hint in get_type_hints(EngineOptions).items():
        lines += section(f"[{table}]", hint)
    lines += section("[plugins.server]", ServerOptions)
    return "\n".join([*lines, ""])


def section(title: str, struct: type) -> list[str]:
    """Return the table of one struct's fields."""
    doc = (inspect.getdoc(struct) or "").splitlines()[0]
    lines = [
        "",
        f"## `{title}`",
        "",
        doc,
        "",
        "| key | flag | type | default | meaning |",
        "|---|---|---|---|---|",
    ]
    hints = get_type_hints(struct, include_extras=True)
    for field in msgspec.structs.fields(struct):
        kind, meaning = describe(hints[field.name])
        default = field.default
        if default is msgspec.NODEFAULT:
            default = (
                field.default_factory() if field.default_factory is not msgspec.NODEFAULT else ""
            )
        flag = f"`--{field.name.replace('_', '-')}`"
        lines.append(f"| `{field.name}` | {flag} | {kind} | `{default}` | {meaning} |")
    return lines


def describe(hint: Any) -> tuple[str, str]:
    """Return a field's type as words, and its description."""
    meaning = ""
    while get_origin(hint) is Annotated:
        hint, *notes = get_args(hint)
        for note in notes:
            meaning = meaning or (getattr(note, "description", None) or "")
    name = getattr(hint, "__name__", None) if not get_args(hint) else None
    text = name or str(hint).replace("typing.", "").replace("NoneType", "None")
    return text.replace("|", "or"), meaning.replace("|", "\\|")


PAGES = {"hooks.md": hooks_page, "configuration.md": configuration_page}


def main() -> int:
    """Write the pages."""
    for name, page in PAGES.items():
        (ROOT / "sdk_docs" / name).write_text(page())
        print(f"sdk_docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
