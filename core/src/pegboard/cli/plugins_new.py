"""`platform plugins new`: a small package that installs, lists, and passes its own test."""

import re
from pathlib import Path

from pegboard import __version__
from pegboard.api.errors import ConfigError
from pegboard.api.version import API_VERSION
from pegboard.cli.output import line

__all__ = ["write_package"]

_NAME = re.compile(r"[a-z][a-z0-9_]*")

_PYPROJECT = """\
[build-system]
requires = ["hatchling>=1.25"]
build-backend = "hatchling.build"

[project]
name = "{distribution}"
version = "0.1.0"
description = "A Pegboard plugin"
requires-python = ">=3.11"
dependencies = ["pegboard-core>={core}"]

[project.entry-points."pegboard.plugins"]
{name} = "{name}.plugin"

[tool.hatch.build.targets.wheel]
packages = ["src/{name}"]
"""

_INIT = '''\
"""The plugin {name}: what Pegboard needs to know of it stands in `plugin`."""
'''

_PLUGIN = '''\
"""Declares the plugin. Imports only pegboard.api, so that listing it costs nothing."""

from pegboard.api import PluginInfo, hookimpl
from pegboard.api.sampling import LogitsProcessorSpec

PLUGIN = PluginInfo(
    name="{name}",
    version="0.1.0",
    api="{api}",
    summary="A logits processor that forbids one token where a request asks for it.",
    config="{name}.options:Options",
)


@hookimpl
def logits_processors() -> list[LogitsProcessorSpec]:
    """One component: selected by name with --logits-processors {name}_forbid."""
    return [
        LogitsProcessorSpec(
            name="{name}_forbid",
            target="{name}.processor:ForbidToken",
            summary="Forbids the token id in the request's extra argument.",
        )
    ]
'''

_OPTIONS = '''\
"""The plugin's options: `[plugins.{name}]`, or --plugin-config {name}.argument=..."""

from typing import Annotated

import msgspec
from msgspec import Meta


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Checked before any device work."""

    argument: Annotated[
        str, Meta(min_length=1, description="Extra argument that holds the token id.")
    ] = "forbid_token_id"
'''

_PROCESSOR = '''\
"""The implementation; imported when it is selected, in the processes that need it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pegboard.api import ComponentContext
from pegboard.api.errors import InvalidRequest
from pegboard.api.sampling import LogitsProcessor, LogitsProcessorConfig
from pegboard.api.sampling_params import SamplingParams

if TYPE_CHECKING:
    import torch


class ForbidToken(LogitsProcessor):
    """Sets one token's logit to minus infinity in the rows that ask for it."""

    def __init__(self, context: ComponentContext, config: LogitsProcessorConfig) -> None:
        super().__init__(context, config)
        self.argument: str = context.plugin_config.argument
        self.tokens: dict[int, int] = {{}}

    def add_row(
        self, row: int, params: SamplingParams, token_ids: Sequence[int], num_prompt_tokens: int
    ) -> bool:
        """Remember the row's token; False if the request names none."""
        token = (params.extra_args or {{}}).get(self.argument)
        if token is None:
            return False
        if not isinstance(token, int) or not 0 <= token < self.config.vocab_size:
            raise InvalidRequest(f"{{self.argument}} is {{token!r}}; a token id is needed")
        self.tokens[row] = token
        return True

    def remove_row(self, row: int) -> None:
        """Forget the row."""
        self.tokens.pop(row, None)

    def apply(self, logits: "torch.Tensor", rows: "torch.Tensor", batch: Any) -> None:
        """Change the logits in place."""
        for line, row in enumerate(rows.tolist()):
            token = self.tokens.get(row)
            if token is not None:
                logits[line, token] = float("-inf")
'''

_TEST = '''\
"""The plugin's own test: what it declares is what Pegboard will find."""

from {name} import plugin
from {name}.options import Options
from {name}.processor import ForbidToken


def test_declares_its_component():
    (spec,) = plugin.logits_processors()
    assert spec.name == "{name}_forbid"
    assert spec.target == f"{{ForbidToken.__module__}}:{{ForbidToken.__name__}}"


def test_options_have_defaults():
    assert Options().argument
'''

_README = """\
# {distribution}

A Pegboard plugin.

    pip install -e .
    platform plugins inspect {name}
    platform plugins doctor --deep
    platform plugins test {name}
    platform serve MODEL --plugins {name} --logits-processors {name}_forbid
"""


def write_package(name: str, directory: str) -> int:
    """Write the package `name` under `directory`.

    Raises:
        ConfigError: the name cannot be a plugin's, or the folder is there already.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"plugin name {name!r} must match {_NAME.pattern}, such as myorg_attn")
    distribution = name.replace("_", "-")
    root = Path(directory) / distribution
    if root.exists():
        raise ConfigError(f"{root} is there already; choose another name or --directory")
    values = {
        "name": name,
        "distribution": distribution,
        "api": API_VERSION,
        "core": ".".join(__version__.split(".")[:2]),
    }
    files = {
        "pyproject.toml": _PYPROJECT,
        "README.md": _README,
        f"src/{name}/__init__.py": _INIT,
        f"src/{name}/plugin.py": _PLUGIN,
        f"src/{name}/options.py": _OPTIONS,
        f"src/{name}/processor.py": _PROCESSOR,
        "tests/test_plugin.py": _TEST,
    }
    try:
        for path, template in files.items():
            target = root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(template.format(**values), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{root} cannot be written: {error.strerror or error}") from error
    line(f"wrote {root}; next: pip install -e {root} && platform plugins inspect {name}")
    return 0
