"""The frame: checks registered by kind, the subject they run on, and their outcomes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

from pegboard.api.plugin import ComponentSpec
from pegboard.catalog import Catalog, Entry

__all__ = [
    "KINDS",
    "Check",
    "NotApplicable",
    "Outcome",
    "Subject",
    "check",
    "checks_of",
    "load_target",
    "run_checks",
]

#: Kind (the hook's name) to the modules that hold its checks.
KINDS: dict[str, tuple[str, ...]] = {
    "attention_backends": ("pegboard.conformance.attention",),
    "executors": ("pegboard.conformance.executor",),
    "model_architectures": ("pegboard.conformance.model",),
    "model_loaders": ("pegboard.conformance.loader",),
    "op_implementations": ("pegboard.conformance.op", "pegboard.conformance.fused_write"),
    "platforms": ("pegboard.conformance.platform_kind",),
}


class NotApplicable(Exception):
    """A check does not concern this component, for the reason given."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is checked: one component, as the catalog offers it.

    Attributes:
        catalog: with the component's plugin and its neighbours.
        entry: the component.
        seed: of the check's random inputs; fresh in each run and named in failures.
    """

    catalog: Catalog
    entry: Entry
    seed: int = 0

    @property
    def spec(self) -> Any:  # noqa: ANN401 -- each kind's own spec
        """The component's static description."""
        return self.entry.spec


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a component of a kind must do."""

    kind: str
    name: str
    function: Callable[[Subject], None]

    @property
    def meaning(self) -> str:
        """The first line of the check's docstring."""
        return (self.function.__doc__ or self.name).strip().splitlines()[0]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a check found."""

    check: Check
    component: str
    status: Literal["pass", "fail", "skip"]
    detail: str = field(default="")


_REGISTERED: dict[str, list[Check]] = {}


def check(kind: str) -> Callable[[Callable[[Subject], None]], Callable[[Subject], None]]:
    """Register a function as a check of `kind`; its name is the check's."""

    def register(function: Callable[[Subject], None]) -> Callable[[Subject], None]:
        _REGISTERED.setdefault(kind, []).append(Check(kind, function.__name__, function))
        return function

    return register


def load_target(target: str) -> Any:  # noqa: ANN401 -- whatever the target names
    """Import a "module:attribute" that a spec names beside its `target`."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def checks_of(kind: str) -> Sequence[Check]:
    """Return a kind's checks, in the order of its file; empty for kinds without any."""
    for module in KINDS.get(kind, ()):
        import_module(module)
    return tuple(_REGISTERED.get(kind, ()))


def run_checks(kind: str, subject: Subject) -> list[Outcome]:
    """Run all checks of a kind on one component. An exception of any other class is a failure."""
    spec: ComponentSpec = subject.spec
    outcomes: list[Outcome] = []
    for one in checks_of(kind):
        try:
            one.function(subject)
        except NotApplicable as reason:
            outcomes.append(Outcome(one, spec.name, "skip", str(reason)))
        except Exception as error:
            detail = f"{type(error).__name__}: {error} (seed {subject.seed})"
            outcomes.append(Outcome(one, spec.name, "fail", detail))
        else:
            outcomes.append(Outcome(one, spec.name, "pass"))
    return outcomes
