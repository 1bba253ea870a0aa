"""Which component of a kind wins, and why every other one lost.

Pure: it is handed the candidates, a function for what their data cannot say, and a ranking.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from pegboard.api.errors import SelectionError
from pegboard.api.plugin import ComponentSpec
from pegboard.catalog.discovery import nearest

__all__ = ["BY_NAME", "Entry", "Selection", "Verdict", "judge", "select"]

#: The reason of a component that alone may win; a caller that knows better says so.
BY_NAME = "asked for by name"

#: Losers named in the message of a failed selection; the error carries all of them.
MAX_REASONS_SHOWN = 8


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One component in the catalog, and who offers it."""

    kind: str
    spec: ComponentSpec
    plugin: str
    distribution: str = ""
    version: str = ""

    @property
    def name(self) -> str:
        """The component's name."""
        return self.spec.name

    def answers_to(self, name: str) -> bool:
        """Return whether `name` is its name or an alias of it."""
        return name == self.spec.name or name in self.spec.aliases


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Why one candidate won or lost. `fits` says whether it could have served."""

    name: str
    plugin: str
    chosen: bool
    fits: bool
    reason: str
    priority: int = 0


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The winner and the verdict on every candidate, the preferred first."""

    kind: str
    entry: Entry
    verdicts: tuple[Verdict, ...]

    @property
    def spec(self) -> Any:  # noqa: ANN401 -- the kind's own spec class
        """The winner's spec."""
        return self.entry.spec

    @property
    def reason(self) -> str:
        """Why the winner won."""
        return next(v.reason for v in self.verdicts if v.chosen)

    @property
    def passed_over(self) -> tuple[Verdict, ...]:
        """Candidates that were preferred to the winner and did not fit."""
        names = [v.chosen for v in self.verdicts]
        return self.verdicts[: names.index(True)]


def judge(
    candidates: Sequence[Entry],
    query: Any,  # noqa: ANN401 -- the kind's own query
    *,
    name: str | None,
    order: Sequence[str] = (),
    because: str = BY_NAME,
    supports: Callable[[Entry, Any], str | None],
) -> tuple[Entry | None, tuple[Verdict, ...]]:
    """Return the winner, or None, and the verdict on every candidate.

    Args:
        candidates: of one kind, in catalog order.
        query: handed to each spec's `reasons_against`.
        name: the only one that may win (aliases count), or None.
        order: names preferred over priority, the first most.
        because: why `name` alone may win.
        supports: asked when the data speaks for a candidate; returns a reason against it.
    """
    ranked = sorted(candidates, key=lambda entry: _rank(entry, order))
    if name is not None:
        ranked.sort(key=lambda entry: not entry.answers_to(name))
    winner: Entry | None = None
    verdicts: list[Verdict] = []
    for entry in ranked:
        if name is not None and not entry.answers_to(name):
            verdicts.append(_verdict(entry, fits=False, reason=f"{name} was asked for by name"))
            continue
        reasons = entry.spec.reasons_against(query)
        if not reasons:
            refused = supports(entry, query)
            reasons = [refused] if refused else []
        if reasons:
            verdicts.append(_verdict(entry, fits=False, reason="; ".join(reasons)))
        elif winner is None:
            winner = entry
            verdicts.append(_winning(entry, because if name is not None else "", order))
        else:
            verdicts.append(_losing(entry, winner, order))
    return winner, tuple(verdicts)


def select(
    kind: str,
    candidates: Sequence[Entry],
    query: Any,  # noqa: ANN401 -- the kind's own query
    *,
    name: str | None,
    order: Sequence[str] = (),
    because: str = BY_NAME,
    supports: Callable[[Entry, Any], str | None],
) -> Selection:
    """As `judge`, but somebody must win.

    Raises:
        SelectionError: nobody fits, or the one asked for does not or is not there.
    """
    noun = _noun(kind)
    if name is not None and not any(entry.answers_to(name) for entry in candidates):
        names = [n for entry in candidates for n in (entry.name, *entry.spec.aliases)]
        raise SelectionError(
            f"there is no {noun} {name!r}: there are {_listed(names)}{nearest(name, names)}",
            kind=kind,
        )
    winner, verdicts = judge(
        candidates, query, name=name, order=order, because=because, supports=supports
    )
    if winner is None:
        reasons = [(v.name, v.reason) for v in verdicts]
        raise SelectionError(_failure(noun, name, reasons, query), kind=kind, reasons=reasons)
    return Selection(kind=kind, entry=winner, verdicts=verdicts)


def _rank(entry: Entry, order: Sequence[str]) -> tuple[int, int]:
    for position, preferred in enumerate(order):
        if entry.answers_to(preferred):
            return position, 0
    return len(order), -entry.spec.priority


def _verdict(entry: Entry, *, fits: bool, reason: str, chosen: bool = False) -> Verdict:
    return Verdict(
        name=entry.name,
        plugin=entry.plugin,
        chosen=chosen,
        fits=fits,
        reason=reason,
        priority=entry.spec.priority,
    )


def _winning(entry: Entry, because: str, order: Sequence[str]) -> Verdict:
    if because:
        reason = because
    elif any(entry.answers_to(preferred) for preferred in order):
        reason = "first that fits in the configured order"
    else:
        reason = f"highest priority ({entry.spec.priority}) that fits"
    return _verdict(entry, fits=True, reason=reason, chosen=True)


def _losing(entry: Entry, winner: Entry, order: Sequence[str]) -> Verdict:
    if any(winner.answers_to(preferred) for preferred in order):
        reason = f"fits; {winner.name} comes first in the configured order"
    elif entry.spec.priority == winner.spec.priority:
        reason = f"fits; {winner.name} has the same priority and comes first"
    else:
        reason = (
            f"fits; priority {entry.spec.priority} is below {winner.name}'s {winner.spec.priority}"
        )
    return _verdict(entry, fits=True, reason=reason)


def _failure(
    noun: str,
    name: str | None,
    reasons: Sequence[tuple[str, str]],
    query: Any,  # noqa: ANN401 -- shown only
) -> str:
    if name is not None:
        why = next((reason for _, reason in reasons if "asked for by name" not in reason), "")
        return f"{noun} {name!r} was asked for but does not fit: {why}"
    if not reasons:
        return f"no plugin offers any {noun}; install one, or see `platform plugins list`"
    shown = "; ".join(f"{who}: {why}" for who, why in reasons[:MAX_REASONS_SHOWN])
    more = len(reasons) - MAX_REASONS_SHOWN
    rest = f"; and {more} more" if more > 0 else ""
    return f"no {noun} fits{_short(query)}: {shown}{rest}"


def _short(query: Any) -> str:  # noqa: ANN401 -- any query struct
    if query is None:
        return ""
    fields = ((name, getattr(query, name)) for name in query.__struct_fields__)
    given = [f"{name}={value}" for name, value in fields if value not in (None, (), "")]
    return f" ({', '.join(given)})" if given else ""


def _listed(names: Sequence[str], limit: int = 12) -> str:
    if not names:
        return "none"
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest


def _noun(kind: str) -> str:
    irregular = {"scheduler_policies": "scheduler policy"}
    return irregular.get(kind, kind.removesuffix("s").replace("_", " "))
