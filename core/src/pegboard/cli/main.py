"""The entry of the command `platform`. Imports nothing heavy; a subcommand imports what it needs.

Errors that Pegboard raises on purpose are one line on standard error; --log-level debug adds the
traceback.
"""

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from functools import cached_property

from pegboard import __version__
from pegboard.api.errors import PegboardError
from pegboard.api.frontends import CliCommand, CliCommandQuery
from pegboard.catalog import Catalog, build_catalog
from pegboard.cli.flags import add_plugin_flags
from pegboard.cli.parser import CommandParser, UsageError
from pegboard.config.env import Environment, read_environment
from pegboard.config.load import load_options
from pegboard.config.plugins import PluginsConfig

__all__ = ["Invocation", "main"]

_DESCRIPTION = "Pegboard serves language models; every interesting part of it is a plugin."
_EXAMPLES = """\
examples:
  platform serve                          the built-in default model on http://127.0.0.1:8000
  platform serve MODEL                    a folder, a .gguf file or a hub id
  platform serve MODEL --plugins a,b      with plugins whose routes and observers act
  platform plugins list                   what is installed, and what it offers
  platform plugins explain                which component would be chosen, and why not the others

environment:
  PEGBOARD_PLUGINS      as --plugins          PEGBOARD_CONFIG      as --config
  PEGBOARD_API_KEY      as --api-key          PEGBOARD_LOG_LEVEL   as --log-level
  PEGBOARD_CACHE        folder of fetched models and converted weights
  PEGBOARD_OFFLINE=1    never fetch a hub id

`platform COMMAND --help` tells more of each command."""


class Invocation:
    """One run of the command: its arguments, its environment, and the plugins it names.

    Subcommands of the core find it as `args.invocation`.
    """

    def __init__(self, argv: Sequence[str], environment: Environment) -> None:
        """Keep what was given; reads nothing yet."""
        self.argv = list(argv)
        self.environment = environment

    @cached_property
    def plugins(self) -> PluginsConfig:
        """What flags, environment and config file say of plugins.

        Raises:
            ConfigError: the file or a flag is wrong.
        """
        parser = CommandParser("platform", add_help=False)
        add_plugin_flags(parser)
        args, _ = parser.parse_known_args(self.argv)
        flags = {
            key: value for key, value in vars(args).items() if key != "config" and value is not None
        }
        return load_options(flags, args.config, self.environment).plugins

    @cached_property
    def catalog(self) -> Catalog:
        """All that the plugins offer.

        Raises:
            PluginError: a plugin is missing or broken.
            ConfigError: the settings are wrong.
        """
        return build_catalog(self.plugins)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    environment = read_environment()
    try:
        return _run(arguments, environment)
    except UsageError as error:
        _complain(error, arguments, environment)
        return 2
    except PegboardError as error:
        _complain(error, arguments, environment)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output left; do not complain at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # the outermost boundary: a fault of ours is one line too
        _complain(error, arguments, environment, prefix="internal error: ")
        return 70


def _run(argv: list[str], environment: Environment) -> int:
    invocation = Invocation(argv[1:], environment)
    name = argv[0] if argv else "--help"
    if name in ("--version", "-V", "version"):
        sys.stdout.write(f"pegboard {__version__}\n")
        return 0
    if name in ("-h", "--help", "help"):
        sys.stdout.write(_help(environment))
        return 0
    command, summary = _command(name, invocation)
    parser = CommandParser(f"platform {name}", description=summary)
    parser.set_defaults(invocation=invocation)
    command.add_arguments(parser)
    return command.run(parser.parse_args(argv[1:]))


def _command(name: str, invocation: Invocation) -> tuple[CliCommand, str]:
    """Find a subcommand: the core's own need no other plugin to work."""
    if name.startswith("-"):
        raise UsageError(f"unknown flag {name}; a command comes first (see platform --help)")
    catalog = build_catalog(PluginsConfig(enabled=(), only=[]))
    if not any(entry.answers_to(name) for entry in catalog.entries("cli_commands")):
        catalog = invocation.catalog
    known = [entry.name for entry in catalog.entries("cli_commands")]
    if not any(entry.answers_to(name) for entry in catalog.entries("cli_commands")):
        from pegboard.catalog.discovery import nearest

        raise UsageError(
            f"there is no command {name!r}{nearest(name, known)} "
            f"(commands: {', '.join(known)}; see platform --help)"
        )
    entry = catalog.select("cli_commands", CliCommandQuery(name=name)).entry
    return catalog.create(entry), entry.spec.summary


def _help(environment: Environment) -> str:
    try:
        catalog = Invocation([], environment).catalog
    except PegboardError:  # help must work when a plugin does not; `plugins doctor` tells more
        catalog = build_catalog(PluginsConfig(enabled=(), only=[]))
    parser = argparse.ArgumentParser(
        prog="platform",
        usage="platform COMMAND [ARGUMENTS]",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    commands = parser.add_argument_group("commands")
    for entry in catalog.entries("cli_commands"):
        owner = "" if entry.plugin == "builtin" else f" (plugin {entry.plugin})"
        commands.add_argument(entry.name, nargs="?", help=f"{entry.spec.summary}{owner}")
    general = parser.add_argument_group("general")
    general.add_argument("--help", "-h", action="store_true", help="show this")
    general.add_argument("--version", "-V", action="store_true", help="show the version")
    return parser.format_help()


def _complain(
    error: Exception, argv: Sequence[str], environment: Environment, *, prefix: str = ""
) -> None:
    if _wants_traceback(argv, environment):
        traceback.print_exception(error)
    text = " ".join(str(error).split())
    if not isinstance(error, PegboardError):
        frames = traceback.extract_tb(error.__traceback__)
        where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        text = f"{prefix}{type(error).__name__}: {text}{where} (--log-level debug tells more)"
    sys.stderr.write(f"platform: error: {text}\n")


def _wants_traceback(argv: Sequence[str], environment: Environment) -> bool:
    flags = " ".join(argv).replace("_", "-")
    wanted = "--log-level debug" in flags or "--log-level=debug" in flags
    return wanted or environment.log_level == "debug"


if __name__ == "__main__":
    sys.exit(main())
