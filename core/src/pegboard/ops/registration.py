"""Ops as torch.library operators, so that a compiler sees one opaque call with known effects.

Eager layers call the plain functions: the operator's dispatch costs microseconds a call.
"""

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["torch_operator"]


def torch_operator(
    name: str,
    schema: str,
    implementation: Callable[..., Any],
    fake: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Register an implementation under `name`, once a process, and return the operator.

    Args:
        name: "namespace::op", in the implementer's own namespace, such as "myorg::rms_norm".
        schema: as in `OpDefinition.schema`, of torch's types; ops that pack have none.
        implementation: with that signature; used for every device.
        fake: gives result shapes; None if the op only mutates its arguments.

    Raises:
        ValueError: the schema speaks of packed weights, or returns something without a fake.
    """
    if "PackedWeights" in schema:
        raise ValueError(f"{name} packs weights, which torch.library cannot pass")
    if fake is None and schema.rpartition("->")[2].strip() != "()":
        raise ValueError(f"{name} returns a tensor; a fake must give its shape")
    namespace, _, op = name.partition("::")
    operators = getattr(torch.ops, namespace)
    if not hasattr(operators, op):
        torch.library.define(name, schema)
        torch.library.impl(name, "CompositeExplicitAutograd")(implementation)
        torch.library.register_fake(name)(fake or _nothing)
    return getattr(operators, op).default


def _nothing(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401 -- any op's arguments
    del args, kwargs
