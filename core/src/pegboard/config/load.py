"""What the user gave — a TOML file, PEGBOARD_* variables, flags — as one `EngineOptions`.

Flags win over the environment, the environment over the file, the file over defaults. It checks
each value by itself; what must fit together, `pegboard.engine.resolve` checks.
"""

import difflib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from pegboard.api.errors import ConfigError
from pegboard.config.engine import EngineOptions
from pegboard.config.env import Environment
from pegboard.config.fields import OptionField, coerce, engine_groups
from pegboard.config.plugins import PluginsConfig
from pegboard.config.validation import describe_problem, problem_path

__all__ = ["load_options"]

_PLUGIN_KEYS = frozenset(PluginsConfig.__struct_fields__)


def load_options(
    flags: Mapping[str, Any] | None = None,
    config_file: str | Path | None = None,
    environment: Environment | None = None,
) -> EngineOptions:
    """Merge and check all that the user gave.

    Args:
        flags: option names ("max_num_seqs") or paths ("scheduler.max_num_seqs",
            "model.hf_overrides.rope_theta") to values; text is read as the option's type. Whole
            tables ("attention") take a mapping. Three names are lists in the form of their
            flags: "plugins" (["a", "-b"]), "only_plugins" and "plugin_config"
                (["a.key=value"], or {"a": {"key": value}}).
            A value of None counts as not given.
        config_file: a TOML file with one table a concern; the environment's if None.
        environment: as `read_environment` returned it.

    Raises:
        ConfigError: one line that names the key, the value, what is needed, and the flag.
    """
    merge = _Merge()
    path = config_file or (environment.config if environment else None)
    if path is not None:
        merge.add_file(Path(path))
    if environment is not None:
        merge.add_environment(environment)
    merge.add_flags(flags or {})
    return merge.options()


class _Merge:
    """The tables so far, and where each value came from."""

    def __init__(self) -> None:
        self._data: dict[str, dict[str, Any]] = {}
        self._origin: dict[str, str] = {}
        self._groups = {group.name: group for group in engine_groups()}
        self._by_path = {f.path: f for group in engine_groups() for f in group.fields}
        self._by_name = {f.name: f for f in self._by_path.values() if f.group != "plugins"}
        self._by_name |= {
            f.flag.removeprefix("--").replace("-", "_"): f for f in self._by_path.values()
        }

    def add_file(self, path: Path) -> None:
        tables = _read_toml(path)
        for name, table in tables.items():
            if name not in self._groups:
                raise ConfigError(
                    f"{path}: [{name}] is not a known table{_mend(name, self._groups)}"
                )
            if not isinstance(table, dict):
                raise ConfigError(f"{path}: {name} is {table!r}; [{name}] must be a table")
            for key, value in _normalised(name, table, str(path)).items():
                self._set(f"{name}.{key}", value, str(path))

    def add_environment(self, environment: Environment) -> None:
        if environment.plugins is not None:
            self._name_plugins(environment.plugins.split(","), "PEGBOARD_PLUGINS")
        if environment.log_level is not None:
            self._set("observability.log_level", environment.log_level, "PEGBOARD_LOG_LEVEL")

    def add_flags(self, flags: Mapping[str, Any]) -> None:
        for key, value in flags.items():
            if value is None:
                continue
            if key == "plugins":
                self._name_plugins(value, "--plugins")
            elif key == "only_plugins":
                self._set("plugins.only", _words(value), "")
            elif key == "plugin_config":
                self._configure_plugins(value)
            else:
                self._add_flag(key, value)

    def options(self) -> EngineOptions:
        """Fill the structs.

        Raises:
            ConfigError: a value is of the wrong type or out of bounds.
        """
        try:
            return msgspec.convert(self._data, EngineOptions)
        except msgspec.ValidationError as error:
            raise self._problem(error) from error

    def _add_flag(self, key: str, value: Any) -> None:  # noqa: ANN401 -- as given
        if key in self._groups and key not in self._by_name:
            table = coerce(OptionField(group="", name=key, kind="dict"), value)
            if not isinstance(table, Mapping):
                flag = (*self._groups[key].flags, f"--{key}")[0]
                raise ConfigError(f"{flag} is {value!r}; a JSON object is needed")
            for name, inner in table.items():
                self._set(f"{key}.{name}", inner, "")
            return
        path = self._by_name[key].path if key in self._by_name else key
        head, _, rest = path.partition(".")
        if head in self._by_name and rest and head not in self._groups:
            path = f"{self._by_name[head].path}.{rest}"
        elif head == "ops" and rest and rest.partition(".")[0] != "priority":
            path = f"ops.priority.{rest}"
        if path.partition(".")[0] not in self._groups:
            raise ConfigError(f"{key} is not a known option{_mend(key, self._by_name)}")
        self._set(path, value, "")

    def _set(self, path: str, value: Any, origin: str) -> None:  # noqa: ANN401 -- as given
        group, name, *inner = path.split(".")
        field = self._by_path.get(f"{group}.{name}")
        table = self._data.setdefault(group, {})
        self._origin[f"{group}.{name}"] = origin
        if not inner:
            table[name] = coerce(field, value) if field else value
            return
        if field is None or field.kind != "dict":
            raise ConfigError(
                f"{path} is not a known option; {group}.{name} has no keys of its own"
            )
        target = dict(table.get(name) or {})
        table[name] = target
        for part in inner[:-1]:
            target[part] = dict(target.get(part) or {})
            target = target[part]
        target[inner[-1]] = _words(value) if group == "ops" else _literal(value)

    def _name_plugins(self, words: Iterable[str] | str, origin: str) -> None:
        table = self._data.setdefault("plugins", {})
        enabled = list(table.get("enabled", PluginsConfig().enabled))
        disabled = list(table.get("disabled", []))
        for word in _words(words):
            if word.startswith("-"):
                name = word[1:]
                enabled = [n for n in enabled if n != name]
                disabled = [*(n for n in disabled if n != name), name]
            else:
                disabled = [n for n in disabled if n != word]
                enabled = [*(n for n in enabled if n != word), word]
        self._set("plugins.enabled", enabled, origin)
        self._set("plugins.disabled", disabled, origin)

    def _configure_plugins(self, settings: Iterable[str] | Mapping[str, Any]) -> None:
        if isinstance(settings, Mapping):
            known = self._data.setdefault("plugins", {}).get("options") or {}
            merged = {name: {**known.get(name, {}), **own} for name, own in settings.items()}
            self._set("plugins.options", {**known, **merged}, "")
            return
        for setting in settings:
            self._configure_plugin(setting)

    def _configure_plugin(self, setting: str) -> None:
        key, equals, value = setting.partition("=")
        name, dot, option = key.partition(".")
        if not (name and dot and option and equals):
            raise ConfigError(f"--plugin-config {setting!r} must read name.key=value")
        options = dict(self._data.setdefault("plugins", {}).get("options") or {})
        target = options[name] = dict(options.get(name) or {})
        *outer, last = option.split(".")
        for part in outer:
            target[part] = dict(target.get(part) or {})
            target = target[part]
        target[last] = _literal(value) if outer else value  # the plugin's struct says its type
        self._set("plugins.options", options, "")

    def _problem(self, error: msgspec.ValidationError) -> ConfigError:
        path = problem_path(error)
        key = ".".join(path[:2])
        field = self._by_path.get(key)
        origin = self._origin.get(key) or self._origin.get(".".join(path[:3]), "")
        text = describe_problem(EngineOptions, self._data, error)
        prefix = f"{origin}: " if origin and not origin.startswith("--") else ""
        return ConfigError(f"{prefix}{text}" + (f" ({field.flag})" if field else ""))


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(
            f"config file {path} cannot be read: {error.strerror or error} (--config)"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path} is not TOML: {error} (--config)") from error


def _normalised(group: str, table: dict[str, Any], origin: str) -> dict[str, Any]:
    """Bring the two tables whose keys are open into the form of their structs."""
    if group == "ops":
        named = {key: value for key, value in table.items() if key != "priority"}
        priority = table.get("priority", {})
        return {"priority": named | priority if isinstance(priority, dict) else priority}
    if group == "plugins":
        own = {key: value for key, value in table.items() if key in _PLUGIN_KEYS}
        others = {key: value for key, value in table.items() if key not in _PLUGIN_KEYS}
        for key, value in others.items():
            if not isinstance(value, dict):
                raise ConfigError(
                    f"{origin}: plugins.{key} is not a known key{_mend(key, _PLUGIN_KEYS)}; "
                    f"a plugin's options are a table, [plugins.{key}]"
                )
        if others:
            own["options"] = {**own.get("options", {}), **others}
        return own
    return table


def _words(value: Iterable[str] | str) -> list[str]:
    parts: Sequence[str] = [value] if isinstance(value, str) else list(value)
    return [word.strip() for part in parts for word in part.split(",") if word.strip()]


def _literal(value: Any) -> Any:  # noqa: ANN401 -- builtins
    """Read text as JSON where it is, else keep it: 8 is a number, fcfs is text."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value


def _mend(word: str, known: Iterable[str]) -> str:
    names = list(known)
    match = difflib.get_close_matches(word, names, n=1)
    if match:
        return f"; did you mean {match[0]}?"
    return f"; known are {', '.join(sorted(names))}" if len(names) <= 16 else ""
