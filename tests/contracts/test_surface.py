"""Rules of the public packages: a complete `__all__`, docstrings, and a surface that CI watches."""

import importlib
import inspect
import json
import pkgutil
from pathlib import Path

import pytest

from pegboard.conformance.kit import KINDS, checks_of

SNAPSHOT = Path(__file__).with_name("public_surface.json")
PUBLIC = ("pegboard.api", "pegboard.layers", "pegboard.ops", "pegboard.conformance")
#: The kit's checks are run by name, not imported.
CHECKS = {check.name for kind in KINDS for check in checks_of(kind)}


def public_modules() -> list[str]:
    names = []
    for package in PUBLIC:
        module = importlib.import_module(package)
        names.append(package)
        names += [
            m.name
            for m in pkgutil.walk_packages(module.__path__, f"{package}.")
            if not m.name.rpartition(".")[2].startswith(("_", "test_"))
        ]
    return sorted(names)


def surface() -> dict[str, dict[str, str]]:
    """Module to exported name to its signature (functions, classes' own members) or type."""
    return {
        name: {exported: describe(getattr(module, exported)) for exported in sorted(module.__all__)}
        for name in public_modules()
        for module in [importlib.import_module(name)]
    }


def describe(value: object) -> str:
    if inspect.isclass(value):
        fields = getattr(value, "__struct_fields__", None)
        if fields is not None:
            defaults = dict(
                zip(reversed(fields), reversed(value.__struct_defaults__), strict=False)
            )
            shown = [f if f not in defaults else f"{f}=…" for f in fields]
            return f"struct({', '.join(shown)})"
        members = sorted(
            f"{n}{signature(m)}"
            for n, m in vars(value).items()
            if not n.startswith("_") and callable(getattr(value, n, None))
        )
        return f"class({'; '.join(members)})"
    if callable(value):
        return f"function{signature(value)}"
    return type(value).__name__


def signature(value: object) -> str:
    value = inspect.unwrap(getattr(value, "__func__", value))
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return "(…)"
    return f"({', '.join(map(shown, parameters))})"


def shown(parameter: inspect.Parameter) -> str:
    keyword = "*" if parameter.kind == parameter.KEYWORD_ONLY else ""
    return f"{keyword}{parameter.name}{'' if parameter.default is parameter.empty else '=…'}"


@pytest.mark.parametrize("name", public_modules())
def test_all_is_complete_sorted_and_documented(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__, "a module opens with what it owns"
    exported = module.__all__
    defined = {
        n
        for n, v in vars(module).items()
        if not n.startswith("_")
        and getattr(v, "__module__", None) == name
        and (inspect.isclass(v) or inspect.isfunction(v))
        and n not in CHECKS
    }
    assert defined <= set(exported), f"not in __all__: {sorted(defined - set(exported))}"
    assert len(exported) == len(set(exported))
    for item in exported:
        value = getattr(module, item)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), f"{item} has no docstring"


def test_public_surface_is_the_declared_one() -> None:
    """A change needs the snapshot (`python tools/surface.py`), the changelog and API_VERSION."""
    assert surface() == json.loads(SNAPSHOT.read_text()), (
        "the public surface changed: run tools/surface.py, and say so in CHANGELOG.md"
    )
