"""Named ops: a definition with its reference, implementations that plugins offer, and the table.

An op is declared once (`OpDefinition`): a schema, what it mutates, and a plain-torch reference.
Implementations (`OpImplementationSpec`) are chosen once a worker, by priority or by the
configuration's order, into an op table that layers read when they are built. Nothing is looked
up per call.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import msgspec

from pegboard.api.plugin import ComponentSpec, check_target

if TYPE_CHECKING:
    import torch

__all__ = [
    "OpCase",
    "OpDefinition",
    "OpImplementationSpec",
    "OpQuery",
    "OpTable",
    "PackedWeights",
    "PackingOp",
]


class OpDefinition(ComponentSpec, frozen=True, kw_only=True):
    """A named op. `target` is its plain reference, the truth that implementations are held to.

    Attributes:
        schema: as torch.library writes it, such as "(Tensor x, Tensor weight, float eps) ->
            Tensor"; `Tensor(a!)` marks what is mutated.
        fake: "module:function" computing output shapes only; None if outputs are only mutated.
        packs: the op takes `PackedWeights`, which an implementation's `prepare` makes. The
            reference is then a class like the implementations', and its docstring says what
            `prepare` takes. `prepare` keeps no reference to its arguments (they may be views of
            a mapped file, strided, and are freed at once): it copies what it needs.
        optional: a fusion that layers can do without. Where no implementation fits, the op table
            gives None and layers take the unfused path; the reference is only the truth.
        fuses: ops that an optional fusion stands for. Where `[ops]` of the configuration orders
            one of these and not the fusion itself, the fusion stands back.
        cases: "module:function(random, dtype)" yielding `OpCase`s, fresh random arguments for the
            conformance kit; None for ops that it can only drive through a backend.
    """

    kind: ClassVar[str] = "op_definitions"

    schema: str
    fake: str | None = None
    packs: bool = False
    optional: bool = False
    fuses: tuple[str, ...] = ()
    cases: str | None = None

    def __post_init__(self) -> None:
        """Check names, target, fake and that the schema has the arrow form."""
        ComponentSpec.__post_init__(self)
        if self.fake is not None:
            check_target(self.fake, f"fake of op {self.name!r}")
        if self.cases is not None:
            check_target(self.cases, f"cases of op {self.name!r}")
        if not self.schema.startswith("(") or "->" not in self.schema:
            raise ValueError(f"schema of op {self.name!r} must read '(args) -> result'")


class OpCase(msgspec.Struct, frozen=True, kw_only=True):
    """One set of arguments for an op, made by its definition's `cases`.

    Attributes:
        what: names it in a failure.
        args: the call's positional arguments, without the packed weights.
        weights: `prepare`'s positional arguments, for ops that pack; they come last in the call.
        tolerance: largest |got - expected| / (1 + |expected|) by dtype name.
    """

    what: str
    args: tuple[Any, ...]
    weights: tuple[Any, ...] | None = None
    tolerance: dict[str, float] = msgspec.field(
        default_factory=lambda: {"float32": 2e-5, "bfloat16": 1.6e-2, "float16": 2e-3}
    )


class OpQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker asks of an op's implementation.

    Attributes:
        op: the definition's name.
        platform, platform_features, capability: of the device.
        dtype: of activations, such as "bfloat16".
        kv_layout: name of the attention backend's layout, for ops that write it; else "".
    """

    op: str
    platform: str
    platform_features: tuple[str, ...] = ()
    capability: tuple[int, int] | None = None
    dtype: str
    kv_layout: str = ""


class OpImplementationSpec(ComponentSpec, frozen=True, kw_only=True):
    """An implementation of a named op.

    `target` names a callable with the definition's signature; where the definition `packs`, a
    class with `prepare(...) -> PackedWeights` and `__call__`, made once a worker with no
    arguments. `name` is what `[ops]` orders, such as "cpu.rms_norm".

    Attributes:
        op: the definition's name.
        platforms, requires_features, min_capability, dtypes: constraints; empty for any.
        kv_layouts: layouts it can write, for ops that write the cache.
    """

    kind: ClassVar[str] = "op_implementations"

    op: str
    platforms: tuple[str, ...] = ()
    requires_features: tuple[str, ...] = ()
    min_capability: tuple[int, int] | None = None
    dtypes: tuple[str, ...] = ()
    kv_layouts: tuple[str, ...] = ()

    def reasons_against(self, query: OpQuery) -> list[str]:
        """Compare every constraint with the query."""
        reasons: list[str] = []
        if query.op != self.op:
            return [f"implements {self.op}"]
        if self.platforms and query.platform not in self.platforms:
            reasons.append(f"runs on {', '.join(self.platforms)}, not {query.platform}")
        for feature in self.requires_features:
            if feature not in query.platform_features:
                reasons.append(f"platform {query.platform} has no {feature}")
        if self.min_capability and (query.capability or (0, 0)) < self.min_capability:
            reasons.append(f"needs device capability {self.min_capability}, got {query.capability}")
        if self.dtypes and query.dtype not in self.dtypes:
            reasons.append(f"dtype {query.dtype} is not of {', '.join(self.dtypes)}")
        if self.kv_layouts and query.kv_layout not in self.kv_layouts:
            layout = query.kv_layout or "the one in use"
            reasons.append(f"writes KV layout {', '.join(self.kv_layouts)}, not {layout}")
        return reasons


class PackedWeights(Protocol):
    """Weights in the form one implementation reads. The originals are freed as they are packed."""

    @property
    def nbytes(self) -> int:
        """Bytes it holds on the device."""
        ...

    @property
    def tensors(self) -> "Mapping[str, torch.Tensor]":
        """Its storage by name; sleep drops and restores exactly these."""
        ...


class PackingOp(Protocol):
    """An op over packed weights. One instance a worker, shared by all layers; holds no weights."""

    def prepare(self, weight: "torch.Tensor", *args: Any) -> PackedWeights:  # noqa: ANN401
        """Pack; the definition's reference says what else it takes."""
        ...

    def __call__(self, x: "torch.Tensor", packed: Any) -> "torch.Tensor":  # noqa: ANN401
        """Compute, with what this op's own `prepare` made."""
        ...


class OpTable(Protocol):
    """The ops of one worker, chosen once; layers read it when they are built."""

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 -- a callable, or a `PackingOp`
        """Return the chosen implementation of a named op, the reference where none fits.

        A plain callable with the definition's signature; a `PackingOp` where it `packs`.

        Raises:
            KeyError: no op of this name is defined, or it is optional and has no implementation.
        """
        ...

    def get(self, name: str) -> Any:  # noqa: ANN401 -- as `[]`, or None
        """Return the chosen implementation of an optional op, or None where none fits here."""
        ...
