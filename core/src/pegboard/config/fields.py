"""Every option as the structs declare it: path, flag, type, bounds, default and help.

Nothing is declared here twice; what the structs cannot say (short forms, other names of a flag)
stands in the small tables at the top.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect as mi

from pegboard.config.engine import EngineOptions
from pegboard.config.validation import unwrap

__all__ = ["OptionField", "OptionGroup", "coerce", "engine_groups", "fields_of", "parse_integer"]

#: Flags that are not the field's name with dashes.
_FLAGS = {
    "ops.priority": "--ops",
    "plugins.enabled": "--plugins",
    "plugins.disabled": "--plugins=-NAME",
    "plugins.only": "--only-plugins",
    "plugins.on_error": "--plugins-on-error",
    "plugins.options": "--plugin-config",
}
#: Other names of a flag, as the field knows them.
_ALIASES = {
    "parallel.tensor_parallel_size": ("-tp",),
    "cache.gpu_memory_utilization": ("--device-memory-utilization",),
}
#: Short forms of whole groups: JSON, or dotted for one key.
_GROUP_FLAGS = {
    "attention": ("--attention-config", "-ac"),
}
_SIZES = {"k": 1, "m": 2, "g": 3, "t": 4}
_INTEGER = re.compile(r"(?P<number>[+-]?\d[\d_]*(?:\.\d+)?)(?P<unit>[kmgtKMGT]?)")


class OptionField(msgspec.Struct, frozen=True, kw_only=True):
    """One option.

    Attributes:
        group: its table of the TOML file, such as "scheduler"; "" inside a plugin's own struct.
        name: the field's name.
        kind: "int", "float", "str", "bool", "list", "dict" or "choice".
        choices: allowed values of a "choice".
        default: the value where none is given; None for no value.
        help: one line.
    """

    group: str
    name: str
    kind: str
    choices: tuple[str, ...] = ()
    default: Any = None
    required: bool = False
    help: str = ""

    @property
    def path(self) -> str:
        """TOML key, such as "scheduler.max_num_seqs"."""
        return f"{self.group}.{self.name}" if self.group else self.name

    @property
    def flag(self) -> str:
        """The flag, such as "--max-num-seqs"."""
        return _FLAGS.get(self.path, "--" + self.name.replace("_", "-"))

    @property
    def flags(self) -> tuple[str, ...]:
        """The flag and its other names."""
        return (self.flag, *_ALIASES.get(self.path, ()))


class OptionGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One concern: a struct, its table, and flags that set several of its fields at once."""

    name: str
    title: str
    flags: tuple[str, ...]
    fields: tuple[OptionField, ...]


@cache
def engine_groups() -> tuple[OptionGroup, ...]:
    """Return every option of `EngineOptions`, by concern."""
    root = mi.type_info(EngineOptions)
    assert isinstance(root, mi.StructType)
    groups = []
    for field in root.fields:
        inner = unwrap(field.type)
        assert isinstance(inner, mi.StructType)
        groups.append(
            OptionGroup(
                name=field.name,
                title=_title(inner.cls),
                flags=_GROUP_FLAGS.get(field.name, ()),
                fields=tuple(_fields(inner, field.name)),
            )
        )
    return tuple(groups)


def fields_of(struct: type[msgspec.Struct]) -> tuple[OptionField, ...]:
    """Return the options of a plugin's own struct."""
    info = mi.type_info(struct)
    assert isinstance(info, mi.StructType)
    return tuple(_fields(info, ""))


def coerce(field: OptionField, value: Any) -> Any:  # noqa: ANN401 -- builtins
    """Turn text into the field's type where it can be; anything else stays as it is.

    What stays text although it should not be is refused when the struct is filled, with the
    field's name and bounds.
    """
    if not isinstance(value, str):
        return value
    text = value.strip()
    if field.kind == "int":
        return parse_integer(text)
    if field.kind == "float":
        return _parse_float(text)
    if field.kind == "bool":
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), value)
    if field.kind == "list":
        parsed = _parse_json(text) if text.startswith("[") else None
        return parsed if isinstance(parsed, list) else [p for p in text.split(",") if p]
    if field.kind == "dict":
        return _parse_json(text)
    return value


def parse_integer(text: str) -> int | str:
    """Read an integer with an optional unit: 8k is 8000, 8K is 8192; other text is returned.

    Units are k, m, g, t (powers of 1000) and K, M, G, T (powers of 1024).
    """
    match = _INTEGER.fullmatch(text)
    if match is None:
        return text
    unit = match["unit"]
    if not unit:
        return text if "." in match["number"] else int(match["number"])
    scale = (1000 if unit.islower() else 1024) ** _SIZES[unit.lower()]
    return round(float(match["number"].replace("_", "")) * scale)


def _parse_float(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _parse_json(text: str) -> Any:  # noqa: ANN401 -- builtins
    try:
        return json.loads(text)
    except ValueError:
        return text


def _fields(info: mi.StructType, group: str) -> Iterator[OptionField]:
    for field in info.fields:
        kind, choices = _kind(unwrap(field.type))
        default = field.default
        if default is msgspec.NODEFAULT:
            default = None
            if field.default_factory is not msgspec.NODEFAULT:
                default = field.default_factory()
        yield OptionField(
            group=group,
            name=field.encode_name,
            kind=kind,
            choices=choices,
            default=default,
            required=field.required,
            help=_help(field.type),
        )


def _kind(info: mi.Type | None) -> tuple[str, tuple[str, ...]]:
    if isinstance(info, mi.LiteralType):
        return "choice", tuple(str(value) for value in info.values)
    for cls, name in (
        (mi.IntType, "int"),
        (mi.FloatType, "float"),
        (mi.BoolType, "bool"),
        (mi.ListType, "list"),
        (mi.VarTupleType, "list"),
        (mi.SetType, "list"),
        (mi.DictType, "dict"),
        (mi.StructType, "dict"),
    ):
        if isinstance(info, cls):
            return name, ()
    return "str", ()


def _help(info: mi.Type) -> str:
    while isinstance(info, mi.Metadata | mi.UnionType):
        if isinstance(info, mi.UnionType):
            inner = [t for t in info.types if isinstance(t, mi.Metadata)]
            if not inner:
                return ""
            info = inner[0]
            continue
        text = (info.extra_json_schema or {}).get("description")
        if text:
            return str(text)
        info = info.type
    return ""


def _title(cls: type) -> str:
    first = (cls.__doc__ or cls.__name__).strip().splitlines()[0]
    return first.split(";")[0].rstrip(".")
