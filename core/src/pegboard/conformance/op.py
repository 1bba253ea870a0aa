"""Checks of op implementations: against the definition's reference, on fresh random arguments."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch

from pegboard.api.ops import OpCase, OpDefinition
from pegboard.conformance.attention_rig import torch_dtype
from pegboard.conformance.kit import NotApplicable, Subject, check, load_target

__all__: list[str] = []

_KIND = "op_implementations"
_ALL_DTYPES = ("float32", "bfloat16", "float16")


def _definition_of(subject: Subject) -> OpDefinition:
    """Return the definition that the implementation names.

    Raises:
        AssertionError: no plugin defines such an op.
    """
    for entry in subject.catalog.entries("op_definitions"):
        spec = entry.spec
        if isinstance(spec, OpDefinition) and spec.name == subject.spec.op:
            return spec
    raise AssertionError(f"no plugin defines an op named {subject.spec.op!r}")


def _dtypes(subject: Subject) -> tuple[str, ...]:
    return subject.spec.dtypes or _ALL_DTYPES


def _cases(subject: Subject) -> Iterator[tuple[str, OpCase]]:
    definition = _definition_of(subject)
    if definition.cases is None:
        raise NotApplicable("the definition brings no cases; the op is checked in its backend")
    make: Callable[..., Iterator[OpCase]] = load_target(definition.cases)
    for name in _dtypes(subject):
        random = torch.Generator().manual_seed(subject.seed)
        for case in make(random, torch_dtype(name)):
            yield name, case


class _Callee:
    """An op ready to be called: a function, or a class with its packed weights."""

    def __init__(self, target: Any, case: OpCase) -> None:  # noqa: ANN401 -- function or class
        """Prepare the weights where the op packs; the originals are garbage afterwards."""
        self.packed = None
        self.call = target
        if case.weights is not None:
            self.call = target()
            weights = [w.clone() if isinstance(w, torch.Tensor) else w for w in case.weights]
            self.packed = self.call.prepare(*weights)
            for weight in weights:
                if isinstance(weight, torch.Tensor):
                    weight.fill_(float("nan"))

    def __call__(self, args: tuple[Any, ...]) -> Any:  # noqa: ANN401 -- whatever the op gives
        """Call with a copy of `args` appended by the packed weights."""
        return self.call(*args) if self.packed is None else self.call(*args, self.packed)


def _copied(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copy tensors with their strides, so that in-place ops leave the case as it was."""
    return tuple(_copy_strided(a) if isinstance(a, torch.Tensor) else copy.copy(a) for a in args)


def _copy_strided(x: torch.Tensor) -> torch.Tensor:
    if x.is_contiguous():
        return x.clone()
    whole = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
    return whole.copy_(x)


def _tensors(value: Any, args: tuple[Any, ...]) -> list[torch.Tensor]:  # noqa: ANN401
    results = value if isinstance(value, tuple | list) else [value]
    return [t for t in (*results, *args) if isinstance(t, torch.Tensor)]


def _error(got: torch.Tensor, expected: torch.Tensor) -> float:
    if got.numel() == 0:
        return 0.0
    wide = expected.double()
    error = (got.double() - wide).abs() / (1 + wide.abs())
    same = (got == expected) | (got.isnan() & expected.isnan())  # infinities too
    return error.masked_fill(same, 0.0).max().item()


def _equal(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether all values are the same, NaN in both places included."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    return bool(((got == expected) | ((got != got) & (expected != expected))).all())


@check(_KIND)
def matches_reference(subject: Subject) -> None:
    """Results and changed arguments equal the plain reference's within the case's tolerance."""
    definition = _definition_of(subject)
    mine = subject.catalog.load(subject.entry)
    reference = load_target(definition.target)
    count = 0
    for dtype, case in _cases(subject):
        args, expected_args = _copied(case.args), _copied(case.args)
        got = _tensors(_Callee(mine, case)(args), args)
        expected = _tensors(_Callee(reference, case)(expected_args), expected_args)
        assert len(got) == len(expected), f"{case.what}: {len(got)} results, not {len(expected)}"
        for g, e in zip(got, expected, strict=True):
            assert g.shape == e.shape, f"{case.what}: shape {tuple(g.shape)}, not {tuple(e.shape)}"
            assert g.dtype == e.dtype, f"{case.what}: {g.dtype}, not {e.dtype}"
            error, limit = _error(g, e), case.tolerance[dtype]
            assert error <= limit, f"{case.what}, {dtype}: error {error:.2e} over {limit:.0e}"
        count += 1
    assert count, "the definition's cases are empty"


@check(_KIND)
def keeps_what_it_may_not_change(subject: Subject) -> None:
    """Arguments that the schema does not mark as mutated are as they were."""
    definition = _definition_of(subject)
    parameters = definition.schema.partition("(")[2].rpartition("->")[0]
    marked = ["!" in p for p in parameters.split(",")]
    mine = subject.catalog.load(subject.entry)
    for dtype, case in _cases(subject):
        args = _copied(case.args)
        _Callee(mine, case)(args)
        for i, (now, before) in enumerate(zip(args, case.args, strict=True)):
            if isinstance(now, torch.Tensor) and not marked[i]:
                assert _equal(now, before), f"{case.what}, {dtype}: argument {i} was changed"


@check(_KIND)
def same_call_gives_same_bits(subject: Subject) -> None:
    """Two equal calls give equal bits."""
    mine = subject.catalog.load(subject.entry)
    for dtype, case in _cases(subject):
        callee = _Callee(mine, case)
        first, second = _copied(case.args), _copied(case.args)
        one, two = _tensors(callee(first), first), _tensors(callee(second), second)
        for a, b in zip(one, two, strict=True):
            assert _equal(a, b), f"{case.what}, {dtype}: two equal calls differ"


@check(_KIND)
def packed_weights_know_their_bytes(subject: Subject) -> None:
    """Packed weights hold no second copy, and their tensors account for their bytes."""
    if not _definition_of(subject).packs:
        raise NotApplicable("the op packs no weights")
    mine = subject.catalog.load(subject.entry)
    for dtype, case in _cases(subject):
        packed = _Callee(mine, case).packed
        assert packed is not None, "the op packs, but the case brings no weights"
        held = sum(t.nbytes for t in packed.tensors.values())
        assert packed.nbytes == held, f"{case.what}: says {packed.nbytes} bytes, holds {held}"
        plain = sum(w.nbytes for w in case.weights or () if isinstance(w, torch.Tensor))
        # Small matrices may be padded to whole tiles; large ones may not cost a second copy.
        assert held <= 1.25 * plain + 65_536, f"{case.what}, {dtype}: {held} bytes for {plain}"


@check(_KIND)
def head_embeds_the_rows_it_was_given(subject: Subject) -> None:
    """Where the op is the head's, `embed` gives rows back bit for bit."""
    if subject.spec.op != "logits":
        raise NotApplicable("only the head's product embeds")
    mine = subject.catalog.load(subject.entry)
    for dtype, case in _cases(subject):
        assert case.weights is not None
        callee, weight = _Callee(mine, case), case.weights[0]
        ids = torch.randint(0, weight.shape[0], (9,))
        rows = callee.call.embed(ids, callee.packed)
        assert torch.equal(rows, weight[ids]), f"{case.what}, {dtype}: rows changed in packing"


@check(_KIND)
def traces_with_its_fake(subject: Subject) -> None:
    """Where it is a torch.library op, its fake gives the shapes and dtypes it really returns."""
    if _definition_of(subject).packs:
        raise NotApplicable("ops that pack are called directly")
    mine = subject.catalog.load(subject.entry)
    name = getattr(mine, "_qualified_op_name", None)
    if name is None:
        raise NotApplicable("the implementation is a plain function")
    for _, case in _cases(subject):
        torch.library.opcheck(
            mine, _copied(case.args), test_utils=("test_schema", "test_faketensor")
        )
