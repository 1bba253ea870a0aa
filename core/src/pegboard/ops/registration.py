"""Ops as torch.library operators, so that a compiler sees one opaque call with known effects.

Eager layers call the plain functions: the operator's dispatch costs microseconds a call.
"""

from collections.abc import Callable
from typing import Any

import torch

from pegboard.api.ops import OpDefinition

__all__ = ["torch_operator"]


def torch_operator(
    namespace: str,
    definition: OpDefinition,
    implementation: Callable[..., Any],
    fake: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Register an implementation as `namespace::op`, once a process, and return the operator.

    Args:
        namespace: the implementer's own, such as "myorg".
        definition: of an op whose arguments are torch's (not one that packs).
        implementation: with the definition's signature; used for every device.
        fake: gives result shapes; None if the op only mutates its arguments.

    Raises:
        ValueError: the definition packs, or returns something and there is no fake.
    """
    if definition.packs:
        raise ValueError(f"op {definition.name!r} packs weights, which torch.library cannot pass")
    returns = definition.schema.rpartition("->")[2].strip() != "()"
    if returns and fake is None:
        raise ValueError(f"op {definition.name!r} returns a tensor; a fake must give its shape")
    name = f"{namespace}::{definition.name}"
    if not hasattr(getattr(torch.ops, namespace), definition.name):
        torch.library.define(name, definition.schema)
        torch.library.impl(name, "CompositeExplicitAutograd")(implementation)
        torch.library.register_fake(name)(fake or _nothing)
    return getattr(getattr(torch.ops, namespace), definition.name).default


def _nothing(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401 -- any op's arguments
    del args, kwargs
