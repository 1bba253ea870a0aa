"""The op table: for each named op the implementation that one worker uses, chosen once."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from pegboard.api.errors import ConfigError, SelectionError
from pegboard.api.ops import OpDefinition, OpImplementationSpec, OpQuery

__all__ = ["REFERENCE", "OpCatalog", "OpChoice", "ResolvedOpTable", "build_op_table"]

logger = logging.getLogger(__name__)

#: What `[ops]` calls the plain-torch reference of any op.
REFERENCE = "reference"


class _Entry(Protocol):
    @property
    def spec(self) -> Any: ...  # noqa: ANN401 -- the spec of the entry's kind

    @property
    def plugin(self) -> str: ...


class _Selection(Protocol):
    @property
    def entry(self) -> _Entry: ...


class OpCatalog(Protocol):
    """What a table is built from: `pegboard.catalog.Catalog`."""

    def entries(self, kind: str) -> Iterable[_Entry]:
        """Return every entry of a kind."""
        ...

    def select(self, kind: str, query: Any, *, name: str | None = None) -> _Selection:  # noqa: ANN401
        """Return the best that fits; raise `SelectionError` if none does."""
        ...

    def load(self, entry: Any) -> Any:  # noqa: ANN401 -- an entry or spec; what its target names
        """Import what an entry's target names."""
        ...


class OpChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Which implementation an op got.

    Attributes:
        op: the definition's name.
        implementation: its name; "reference", or "none" for an optional op nothing fits.
        plugin: that offers it.
        reason: why not another, where the reference or nothing was taken.
    """

    op: str
    implementation: str
    plugin: str
    reason: str = ""


class ResolvedOpTable:
    """Satisfies `pegboard.api.ops.OpTable`.

    Attributes:
        choices: what each op got, for the start report.
    """

    __slots__ = ("_ops", "choices")

    def __init__(
        self, ops: Mapping[str, Callable[..., Any] | None], choices: Sequence[OpChoice] = ()
    ) -> None:
        """Keep the callables by op name; None for optional ops without an implementation."""
        self._ops = dict(ops)
        self.choices = tuple(choices)

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 -- a callable, or a `PackingOp`
        """See `OpTable`."""
        op = self._ops.get(name)
        if op is None:
            state = "has no implementation here" if name in self._ops else "is not defined"
            raise KeyError(f"op {name!r} {state}")
        return op

    def get(self, name: str) -> Any:  # noqa: ANN401 -- as `[]`, or None
        """See `OpTable`."""
        return self._ops.get(name)


def build_op_table(
    catalog: OpCatalog,
    query: OpQuery,
    priority: Mapping[str, Sequence[str]] | None = None,
) -> ResolvedOpTable:
    """Choose and load an implementation of every named op.

    Args:
        catalog: the worker's.
        query: the device and dtype; its `op` is filled in for each op.
        priority: `[ops]` of the configuration: op name to implementation names, the preferred
            first, where "reference" is the reference. The first that fits is taken.

    Raises:
        ConfigError: `priority` names an unknown op.
        SelectionError: `priority` names implementations of an op, and none of them fits.
        PluginLoadError: a chosen implementation does not import.
    """
    priority = priority or {}
    entries = {entry.spec.name: entry for entry in catalog.entries(OpDefinition.kind)}
    for name in priority:
        if name not in entries:
            known = ", ".join(sorted(entries))
            raise ConfigError(f"ops.priority names the op {name!r}; the ops are {known}")
    ops: dict[str, Callable[..., Any] | None] = {}
    choices: list[OpChoice] = []
    for name, entry in entries.items():
        definition: OpDefinition = entry.spec
        asked = msgspec.structs.replace(query, op=name)
        ordered = [op for op in definition.fuses if op in priority and name not in priority]
        if ordered:
            chosen, reason = None, f"ops.priority orders {', '.join(ordered)}, which it stands for"
        else:
            chosen, reason = _choose(catalog, asked, priority.get(name, ()))
        if chosen is not None:
            ops[name] = _loaded(catalog, chosen, definition)
            choice = OpChoice(op=name, implementation=chosen.spec.name, plugin=chosen.plugin)
        elif definition.optional:
            ops[name] = None
            choice = OpChoice(op=name, implementation="none", plugin=entry.plugin, reason=reason)
        else:
            ops[name] = _loaded(catalog, entry, definition)
            choice = OpChoice(op=name, implementation=REFERENCE, plugin=entry.plugin, reason=reason)
        choices.append(choice)
    for choice in choices:
        logger.debug("op=%s implementation=%s", choice.op, choice.implementation)
    return ResolvedOpTable(ops, choices)


def _choose(
    catalog: OpCatalog, query: OpQuery, preferred: Sequence[str]
) -> tuple[_Entry | None, str]:
    """Return the implementation's entry, or None and why the reference (or nothing) is left."""
    kind = OpImplementationSpec.kind
    refusals: list[SelectionError] = []
    for name in preferred:
        if name == REFERENCE:
            return None, "asked for by ops.priority"
        try:
            return catalog.select(kind, query, name=name).entry, ""
        except SelectionError as error:
            refusals.append(error)
    if refusals:
        causes = "; ".join(map(str, refusals))
        raise SelectionError(
            f"ops.priority for {query.op} names {', '.join(preferred)}, and none fits: {causes}; "
            f'name another, or "{REFERENCE}"',
            kind=kind,
            reasons=[reason for error in refusals for reason in error.reasons],
        )
    offered = [entry for entry in catalog.entries(kind) if entry.spec.op == query.op]
    if not offered:
        return None, "no plugin implements it"
    try:
        return catalog.select(kind, query).entry, ""
    except SelectionError as error:
        names = {entry.spec.name for entry in offered}
        return None, "; ".join(f"{name}: {why}" for name, why in error.reasons if name in names)


def _loaded(catalog: OpCatalog, entry: _Entry, definition: OpDefinition) -> Callable[..., Any]:
    target = catalog.load(entry)
    return target() if definition.packs else target
