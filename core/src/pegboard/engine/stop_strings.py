"""Finds stop strings in text that grows, and holds back what may yet become one."""

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["StopMatch", "StopStrings"]


class StopMatch(NamedTuple):
    """A stop string that ended the text.

    Attributes:
        stop: the string.
        text: what the client still gets, the stop string included if that was asked for.
    """

    stop: str
    text: str


class StopStrings:
    """The stop strings of one sequence.

    Of several matches the one that is complete first wins, and of those the longest; so the
    result does not depend on how the text was cut into pieces.
    """

    __slots__ = ("_held", "_hold", "_include", "_longest", "_seen", "_stops")

    def __init__(self, stops: Sequence[str], *, include_in_output: bool = False) -> None:
        """Look for `stops`, none of which is empty."""
        self._stops = tuple(dict.fromkeys(stops))
        self._longest = max(map(len, self._stops), default=1)
        self._include = include_in_output
        self._hold = 0 if include_in_output else self._longest - 1
        self._seen = ""  # the last characters, as far back as a match may start
        self._held = ""  # those that are not out yet

    def push(self, text: str, *, may_stop: bool = True) -> str | StopMatch:
        """Take a piece of text and return what is certain, or how the text ends.

        Args:
            text: behind all that came before.
            may_stop: False while the sequence is too short to end; stop strings that reach into
                this piece are let through.
        """
        if not self._stops:
            return text
        if not may_stop:
            out, self._held, self._seen = self._held + text, "", ""
            return out
        if not text:
            return ""
        whole = self._seen + text
        found = self._first_match(whole)
        if found is not None:
            stop, start, end = found
            held_from = len(self._seen) - len(self._held)
            return StopMatch(stop, whole[held_from : end if self._include else max(start, 0)])
        pending = self._held + text
        cut = max(0, len(pending) - self._hold)
        out, self._held = pending[:cut], pending[cut:]
        self._seen = whole[-(self._longest - 1) :] if self._longest > 1 else ""
        return out

    def finish(self) -> str:
        """Return what was held back: the text ended otherwise."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, whole: str) -> tuple[str, int, int] | None:
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = whole.find(stop)
            if start >= 0:
                key = (start + len(stop), start, stop)
                best = key if best is None or key < best else best
        return None if best is None else (best[2], best[1], best[0])
