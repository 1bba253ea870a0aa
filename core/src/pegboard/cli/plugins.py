"""`platform plugins`: list, inspect, explain, doctor, test, new. Imports no torch."""

import argparse
from collections.abc import Callable

from pegboard.api.frontends import CliCommand
from pegboard.cli.flags import add_engine_flags, add_plugin_flags
from pegboard.cli.parser import CommandParser

__all__ = ["Plugins"]


class Plugins(CliCommand):
    """Looks at plugins, makes one, tests one."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the actions; each takes --json and the flags on plugins."""
        actions = parser.add_subparsers(
            dest="action",
            metavar="ACTION",
            required=True,
            parser_class=CommandParser,
        )
        add_plugin_flags(_action(actions, "list", "installed plugins and what they offer", _list))
        inspect = _action(actions, "inspect", "all that one plugin declares", _inspect)
        inspect.add_argument("name", metavar="NAME", help="the plugin")
        add_plugin_flags(inspect)
        explain = _action(
            actions, "explain", "what would be chosen, and why every other candidate lost", _explain
        )
        explain.add_argument(
            "kinds", metavar="KIND", nargs="*", help="such as platforms, attention, ops"
        )
        add_engine_flags(explain, positional=False)
        doctor = _action(
            actions, "doctor", "examine each plugin; exit status 1 on a fault", _doctor
        )
        doctor.add_argument(
            "--deep", action="store_true", help="import every implementation, in a child process"
        )
        add_plugin_flags(doctor)
        test = _action(actions, "test", "run the conformance kit on a plugin", _test, json=False)
        test.add_argument("name", metavar="NAME", help="the plugin; a path or module:attr works")
        test.add_argument("--kind", action="append", help="only components of this kind")
        test.add_argument("--component", action="append", help="only this component")
        new = _action(
            actions, "new", "write a small plugin package to start from", _new, json=False
        )
        new.add_argument("name", metavar="NAME", help="the plugin's name, such as myorg_attn")
        new.add_argument("--directory", metavar="DIR", default=".", help="where to write it")

    def run(self, args: argparse.Namespace) -> int:
        """Do the action that was named."""
        return args.run_action(args)


def _action(
    actions: "argparse._SubParsersAction[CommandParser]",
    name: str,
    summary: str,
    run: Callable[[argparse.Namespace], int],
    *,
    json: bool = True,
) -> CommandParser:
    parser = actions.add_parser(name, help=summary, description=f"{summary.capitalize()}.")
    parser.refuses_unknown = True
    parser.set_defaults(run_action=run)
    if json:
        parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _list(args: argparse.Namespace) -> int:
    from pegboard.cli.plugins_show import show_list

    return show_list(args.invocation.catalog, as_json=args.json)


def _inspect(args: argparse.Namespace) -> int:
    from pegboard.cli.plugins_show import show_plugin

    return show_plugin(args.invocation.catalog, args.name, as_json=args.json)


def _explain(args: argparse.Namespace) -> int:
    from pegboard.cli.plugins_explain import explain

    return explain(args)


def _doctor(args: argparse.Namespace) -> int:
    from pegboard.cli.plugins_show import show_findings

    return show_findings(args.invocation.plugins, deep=args.deep, as_json=args.json)


def _test(args: argparse.Namespace) -> int:
    from pegboard.cli.plugins_test import run_kit

    return run_kit(args.name, kinds=args.kind or [], components=args.component or [])


def _new(args: argparse.Namespace) -> int:
    from pegboard.cli.plugins_new import write_package

    return write_package(args.name, args.directory)
