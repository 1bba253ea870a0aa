"""The argument parser of `platform`: dashes or underscores, dotted keys, one-line errors."""

import argparse
import difflib
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from pegboard.api.errors import ConfigError

__all__ = ["CommandParser", "UsageError"]


class UsageError(ConfigError):
    """The command line itself is wrong."""


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the description's lines, and shows a switch's two forms as one."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, argparse.BooleanOptionalAction):
            return ", ".join(f for f in action.option_strings if not f.startswith("--no-"))
        if action.option_strings and action.nargs != 0:
            metavar = self._format_args(action, action.dest.upper())
            return f"{', '.join(action.option_strings)} {metavar}"
        return super()._format_action_invocation(action)


class CommandParser(argparse.ArgumentParser):
    """An argparse parser that writes no usage on an error and knows the nearest flag.

    Attributes:
        dotted: prefixes of flags that may be followed by ".key": "--hf-overrides.rope_theta 1e6"
            reads as the hidden flag "--set hf_overrides.rope_theta=1e6".
        refuses_unknown: even `parse_known_args` raises on an unknown flag; for the parsers of
            actions, which know their flags better than the parser above them.
    """

    def __init__(self, prog: str, **kwargs: Any) -> None:  # noqa: ANN401 -- argparse's own
        """Make a parser that abbreviates nothing."""
        width = min(100, shutil.get_terminal_size((100, 24)).columns)
        super().__init__(
            prog=prog,
            allow_abbrev=False,
            formatter_class=lambda prog: _HelpFormatter(prog, max_help_position=34, width=width),
            **kwargs,
        )
        self.dotted: dict[str, str] = {}
        self.refuses_unknown = False

    def format_help_about(self, word: str) -> str:
        """Return help on the groups that `word` names, and on the flags that mention it."""
        wanted = word.lower().replace("_", "-")
        formatter = self._get_formatter()
        found = False
        for group in self._action_groups:
            about = f"{group.title} {group.description}".lower()
            whole = wanted in about
            actions = [a for a in group._group_actions if whole or _mentions(a, wanted)]
            if actions:
                found = True
                formatter.start_section(group.title)
                formatter.add_text(group.description)
                formatter.add_arguments(actions)
                formatter.end_section()
        if not found:
            raise UsageError(f"no flag of {self.prog} is about {word!r} (see {self.prog} --help)")
        return formatter.format_help()

    def parse_known_args(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        namespace: argparse.Namespace | None = None,
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse after bringing flags into the form that they are declared in."""
        for arg in args or ():
            if self.add_help and self._subparsers is None and arg.startswith("--help="):
                self._print_message(self.format_help_about(arg.partition("=")[2]), sys.stdout)
                self.exit()
        target = namespace if namespace is not None else argparse.Namespace()
        result, unknown = super().parse_known_args(self.normalise(args or ()), target)
        if unknown and self.refuses_unknown:
            raise UsageError(self._unknown(unknown[0]))
        return result, unknown

    def parse_args(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        namespace: argparse.Namespace | None = None,
    ) -> argparse.Namespace:
        """Parse everything.

        Raises:
            UsageError: an unknown flag, with the nearest known one; a missing value.
        """
        result, unknown = self.parse_known_args(args, namespace)
        if unknown:
            raise UsageError(self._unknown(unknown[0]))
        return result

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing usage and leaving.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"{message[0].lower()}{message[1:]} (see {self.prog} --help)")

    def normalise(self, args: Iterable[str]) -> list[str]:
        """Turn underscores of flags into dashes, and dotted flags into `--set`."""
        result: list[str] = []
        rest = iter(args)
        for arg in rest:
            if arg == "--":
                return [*result, arg, *rest]
            if arg == "--plugins":  # its value may start with a dash: a plugin to remove
                result.append(f"{arg}={next(rest, '')}")
                continue
            if not arg.startswith("-") or arg.lstrip("-")[:1].isdigit():
                result.append(arg)
                continue
            flag, equals, value = arg.partition("=")
            head, dot, key = flag.partition(".")
            head = head.replace("_", "-")
            if dot and head in self.dotted:
                value = value if equals else next(rest, "")
                result += ["--set", f"{self.dotted[head]}.{key}={value}"]
            elif arg.startswith("--"):
                result.append(f"{head}{dot}{key}{equals}{value}")
            else:
                result.append(arg)
        return result

    def _unknown(self, word: str) -> str:
        flags = (flag for action in self._actions for flag in action.option_strings)
        known = {flag.lstrip("-"): flag for flag in flags}
        if not word.startswith("-"):
            return f"unexpected argument {word!r} (see {self.prog} --help)"
        flag = word.partition("=")[0]
        match = difflib.get_close_matches(flag.lstrip("-"), known, n=1)
        mend = f"; did you mean {known[match[0]]}?" if match else ""
        return f"unknown flag {flag}{mend} (see {self.prog} --help)"


def _mentions(action: argparse.Action, word: str) -> bool:
    if action.help == argparse.SUPPRESS:
        return False
    texts = (*action.option_strings, action.help or "", str(action.metavar or ""))
    return any(word in text.lower() for text in texts)
