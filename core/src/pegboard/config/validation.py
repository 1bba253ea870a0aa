"""Turns msgspec's validation errors into one line: which key, which value, what is needed."""

import difflib
import re
from typing import Any

import msgspec
from msgspec import inspect as mi

__all__ = ["describe_problem", "problem_path", "unwrap"]

_MESSAGE = re.compile(r"(?P<what>.*?)(?: - at `\$(?P<path>[^`]*)`)?", re.DOTALL)
_BOUND = re.compile(r"Expected `(?P<type>[^`]+)` (?P<op>>=|<=|>|<) (?P<bound>\S+)")
_TYPE = re.compile(r"Expected `(?P<want>[^`]+)`, got `(?P<got>[^`]+)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>[^`]+)`")
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]+)`")
_OPS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}
_TYPES = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "nothing",
}


def problem_path(error: msgspec.ValidationError) -> tuple[str, ...]:
    """Return the key path an error is about, list and map positions left out."""
    match = _MESSAGE.fullmatch(str(error))
    path = (match["path"] if match else "") or ""
    keys = tuple(part for part in re.sub(r"\[[^\]]*\]", "", path).split(".") if part)
    unknown = _UNKNOWN.match(str(error)) or _MISSING.match(str(error))
    return (*keys, unknown["name"]) if unknown else keys


def describe_problem(
    struct: type[msgspec.Struct],
    data: Any,  # noqa: ANN401 -- builtins of any form
    error: msgspec.ValidationError,
) -> str:
    """Say what is wrong: `max_num_seqs is 0; at least 1 is needed`.

    Args:
        struct: what `data` was converted to.
        data: the builtins that were converted.
        error: what the conversion raised.
    """
    what = _MESSAGE.fullmatch(str(error))
    text = what["what"] if what else str(error)
    path = problem_path(error)
    key = ".".join(path) or "the table"
    if unknown := _UNKNOWN.match(text):
        names = _field_names(struct, path[:-1])
        match = difflib.get_close_matches(unknown["name"], names, n=1)
        mend = f"did you mean {match[0]}?" if match else f"known are {', '.join(names) or 'none'}"
        return f"{key} is not a known key; {mend}"
    if _MISSING.match(text):
        return f"{key} is missing; it has no default"
    value = _shown(_value_at(data, path))
    if bound := _BOUND.match(text):
        return f"{key} is {value}; {_OPS[bound['op']]} {_number(bound['bound'])} is needed"
    if text.startswith("Invalid enum value"):
        allowed = _allowed(struct, path)
        return f"{key} is {value}; it must be one of {', '.join(allowed)}"
    if typed := _TYPE.match(text):
        wanted = " or ".join(_TYPES.get(t, t) for t in typed["want"].split(" | ") if t != "null")
        return f"{key} is {value}; {wanted} is needed"
    return f"{key} is {value}; {text}"


def _value_at(data: Any, path: tuple[str, ...]) -> Any:  # noqa: ANN401 -- builtins
    for part in path:
        if not isinstance(data, dict) or part not in data:
            break
        data = data[part]
    return data


def _shown(value: Any) -> str:  # noqa: ANN401 -- builtins
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def _number(text: str) -> str:
    return text.removesuffix(".0")


def _type_at(struct: type[msgspec.Struct], path: tuple[str, ...]) -> mi.Type | None:
    current: mi.Type | None = mi.type_info(struct)
    for part in path:
        current = unwrap(current)
        if not isinstance(current, mi.StructType):
            return None
        current = next((f.type for f in current.fields if f.encode_name == part), None)
    return unwrap(current)


def unwrap(kind: mi.Type | None) -> mi.Type | None:
    """Take descriptions and `| None` off a type."""
    while True:
        if isinstance(kind, mi.Metadata):
            kind = kind.type
        elif isinstance(kind, mi.UnionType):
            rest = [t for t in kind.types if not isinstance(t, mi.NoneType)]
            if len(rest) != 1:
                return kind
            kind = rest[0]
        else:
            return kind


def _field_names(struct: type[msgspec.Struct], path: tuple[str, ...]) -> list[str]:
    kind = _type_at(struct, path)
    return [f.encode_name for f in kind.fields] if isinstance(kind, mi.StructType) else []


def _allowed(struct: type[msgspec.Struct], path: tuple[str, ...]) -> list[str]:
    kind = _type_at(struct, path)
    if isinstance(kind, mi.LiteralType):
        return [str(value) for value in kind.values]
    if isinstance(kind, mi.EnumType):
        return [str(member.value) for member in kind.cls]
    return []
