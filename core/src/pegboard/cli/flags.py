"""Flags derived from the configuration structs, and the way back to options.

add_engine_flags(parser)            declares one flag an option, grouped by concern
engine_options(args, environment)   what the user gave, as `EngineOptions`
"""

import argparse
import json
from collections.abc import Iterable
from typing import Any

import msgspec

from pegboard.api.errors import ConfigError
from pegboard.cli.parser import CommandParser
from pegboard.config.engine import EngineOptions
from pegboard.config.env import Environment
from pegboard.config.fields import OptionField, coerce, engine_groups, fields_of
from pegboard.config.load import load_options
from pegboard.config.validation import describe_problem, problem_path

__all__ = [
    "add_engine_flags",
    "add_plugin_flags",
    "add_struct_flags",
    "engine_flags",
    "engine_options",
    "struct_options",
]

_METAVARS = {"int": "N", "float": "X", "str": "TEXT", "list": "A,B", "dict": "JSON"}
_PLUGIN_DESTS = ("plugins", "only_plugins", "plugin_config", "plugins.on_error")


def add_engine_flags(parser: argparse.ArgumentParser, *, positional: bool = True) -> None:
    """Declare a flag for each option of `EngineOptions`, and the flags on plugins.

    Args:
        parser: of the subcommand.
        positional: take MODEL as a positional argument too.
    """
    for group in engine_groups():
        if group.name == "plugins":
            continue
        section = parser.add_argument_group(group.title, f"[{group.name}] in the config file")
        for field in group.fields:
            if positional and field.path == "model.model":
                parser.add_argument("model_positional", metavar="MODEL", nargs="?", help=field.help)
            _add_flag(section, field, dest=field.path)
        if group.flags:
            section.add_argument(
                *group.flags,
                dest=group.name,
                metavar="JSON",
                help=f"several of these at once; {group.flags[-1]}.KEY VALUE sets one",
            )
    parser.add_argument(
        "--set", dest="settings", action="append", metavar="KEY=VALUE", help=argparse.SUPPRESS
    )
    if isinstance(parser, CommandParser):
        parser.dotted |= _dotted_prefixes()
    add_plugin_flags(parser)


def add_plugin_flags(parser: argparse.ArgumentParser) -> None:
    """Declare --config and the flags that say which plugins are there."""
    section = parser.add_argument_group("Plugins", "[plugins] in the config file")
    section.add_argument(
        "--config", metavar="FILE.toml", help="read options from here; flags win over it"
    )
    section.add_argument(
        "--plugins",
        action="append",
        metavar="A,B,-C",
        help="plugins that must be there and whose routes, stat loggers and observers act; -NAME "
        "leaves one out; a path or module:attr loads an uninstalled one",
    )
    section.add_argument(
        "--only-plugins",
        dest="only_plugins",
        action="append",
        metavar="A,B",
        help="load just these and the core's own",
    )
    section.add_argument(
        "--plugin-config",
        dest="plugin_config",
        action="append",
        metavar="NAME.KEY=VALUE",
        help="an option of a plugin; see `platform plugins inspect NAME`",
    )
    section.add_argument(
        "--plugins-on-error",
        dest="plugins.on_error",
        metavar="{fail,warn}",
        help="what an installed plugin that does not import does to the start (default: fail)",
    )


def add_struct_flags(
    parser: argparse.ArgumentParser, struct: type[msgspec.Struct], title: str, prefix: str
) -> None:
    """Declare a plugin's options as plain flags; names that are taken keep --plugin-config only."""
    section = parser.add_argument_group(title, f"[plugins.{prefix}] in the config file")
    taken = {flag for action in parser._actions for flag in action.option_strings}
    for field in fields_of(struct):
        if field.flag not in taken:
            _add_flag(section, field, dest=f"{prefix}:{field.name}")
        if field.kind == "dict" and isinstance(parser, CommandParser):
            parser.dotted[field.flag] = f"plugins.options.{prefix}.{field.name}"


def engine_flags(args: argparse.Namespace) -> dict[str, Any]:
    """Return the flags that were given, in the form that `load_options` takes.

    Raises:
        ConfigError: MODEL and --model were both given and differ.
    """
    given = {key: value for key, value in vars(args).items() if value is not None}
    fields = {field.path: field for group in engine_groups() for field in group.fields}
    groups = {group.name for group in engine_groups() if group.flags}
    flags = {
        key: _joined(fields[key], value) if key in fields else value
        for key, value in given.items()
        if key in fields or key in groups or key in _PLUGIN_DESTS
    }
    model = given.get("model_positional")
    if model is not None and flags.setdefault("model.model", model) != model:
        raise ConfigError(f"MODEL is {model} and --model is {flags['model.model']}; drop one")
    for setting in given.get("settings", ()):
        key, _, value = setting.partition("=")
        flags[key] = value
    return flags


def engine_options(args: argparse.Namespace, environment: Environment) -> EngineOptions:
    """Return what flags, environment and config file say together.

    Raises:
        ConfigError: one line that names the key, the value, what is needed, and the flag.
    """
    return load_options(engine_flags(args), getattr(args, "config", None), environment)


def struct_options(
    args: argparse.Namespace,
    struct: type[msgspec.Struct],
    prefix: str,
    table: dict[str, Any],
) -> dict[str, Any]:
    """Return a plugin's table of the configuration with its plain flags laid over it.

    Raises:
        ConfigError: a flag's value is wrong.
    """
    given = vars(args)
    fields = {field.name: field for field in fields_of(struct)}
    merged = dict(table)
    for name, field in fields.items():
        value = given.get(f"{prefix}:{name}")
        if value is not None:
            merged[name] = coerce(field, _joined(field, value))
    typed = {k: coerce(fields[k], v) if k in fields else v for k, v in merged.items()}
    try:
        msgspec.convert(typed, struct)
    except msgspec.ValidationError as error:
        path = problem_path(error)
        if path and given.get(f"{prefix}:{path[0]}") is not None:
            text = describe_problem(struct, typed, error)
            raise ConfigError(f"{text} ({fields[path[0]].flag})") from error
    return typed


def _add_flag(section: Any, field: OptionField, dest: str) -> None:  # noqa: ANN401 -- argparse's
    text = (field.help + _default(field)).replace("%", "%%")
    if field.kind == "bool":
        section.add_argument(
            *field.flags, dest=dest, action=argparse.BooleanOptionalAction, help=text
        )
        return
    metavar = f"{{{','.join(field.choices)}}}" if field.choices else _METAVARS[field.kind]
    section.add_argument(
        *field.flags,
        dest=dest,
        metavar=metavar,
        help=text,
        **({"action": "append"} if field.kind == "list" else {}),
    )


def _joined(field: OptionField, value: Any) -> Any:  # noqa: ANN401 -- as argparse gave it
    if field.kind != "list" or not isinstance(value, list):
        return value
    return [item for text in value for item in coerce(field, text)]


def _default(field: OptionField) -> str:
    if "Default:" in field.help or field.default in (None, [], (), {}, ""):
        return ""
    if isinstance(field.default, bool):
        return f" (default: {'on' if field.default else 'off'})"
    if isinstance(field.default, list | tuple):
        return f" (default: {','.join(map(str, field.default))})"
    if isinstance(field.default, dict):
        return f" (default: {json.dumps(field.default)})"
    return f" (default: {field.default})"


def _dotted_prefixes() -> dict[str, str]:
    prefixes: dict[str, str] = {}
    for group in engine_groups():
        for flag in (f"--{group.name}", *group.flags):
            prefixes[flag] = group.name
        for field in group.fields:
            if field.kind == "dict":
                prefixes |= _each(field.flags, field.path)
    return prefixes


def _each(flags: Iterable[str], path: str) -> dict[str, str]:
    return dict.fromkeys(flags, path)
