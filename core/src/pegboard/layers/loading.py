"""Streaming a checkpoint's tensors into a model's slots, with one line that lists what is wrong."""

from collections.abc import Iterable

import msgspec
from torch import Tensor

from pegboard.api.errors import ModelError
from pegboard.layers.base import Layer, WeightSlot, weight_slots

__all__ = ["WeightMap", "load_weights"]

_SHOWN = 4  # names listed of each kind of fault


class WeightMap(msgspec.Struct, frozen=True, kw_only=True):
    """How a checkpoint's names differ from the model's attribute paths, as data.

    Attributes:
        prefixes: (in the checkpoint, in the model); the first that matches is replaced.
        ignored: tensors whose name has one of these in it are dropped.
    """

    prefixes: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ("rotary_emb.",)

    def name(self, name: str) -> str | None:
        """Return the model's name of a checkpoint's tensor, or None to drop it."""
        if any(fragment in name for fragment in self.ignored):
            return None
        for prefix, replacement in self.prefixes:
            if name.startswith(prefix):
                return replacement + name.removeprefix(prefix)
        return name


def load_weights(
    model: Layer,
    weights: Iterable[tuple[str, Tensor]],
    weight_map: WeightMap | None = None,
) -> None:
    """Hand each tensor to the layer that takes it; each is copied or packed before the next.

    Args:
        model: the root of the layers.
        weights: (name in the checkpoint, tensor); in any order.
        weight_map: how names differ; None where they do not.

    Raises:
        ModelError: tensors missing, unexpected, repeated or of a wrong shape, in one line.
    """
    weight_map = weight_map or WeightMap()
    intake = _Intake(weight_slots(model))
    for given_name, tensor in weights:
        name = weight_map.name(given_name)
        if name is not None:
            intake.take(name, given_name, tensor)
        del tensor  # before the next is read
    faults = intake.faults()
    if faults:
        raise ModelError(
            f"the checkpoint does not fit {type(model).__name__}: {faults}; "
            "check that its files are complete and belong to this configuration"
        )


class _Intake:
    """Slots being filled, and what was wrong so far."""

    def __init__(self, slots: dict[str, WeightSlot]) -> None:
        self._slots = slots
        self._missing = {name: None for name, slot in slots.items() if not slot.optional}
        self._loaded: set[str] = set()
        self._unexpected: list[str] = []
        self._repeated: list[str] = []
        self._misshapen: list[str] = []

    def take(self, name: str, given_name: str, tensor: Tensor) -> None:
        """Store a tensor in its slot, or note why not; `given_name` is the checkpoint's."""
        slot = self._slots.get(name)
        if slot is None:
            self._unexpected.append(given_name)
        elif name in self._loaded:
            self._repeated.append(given_name)
        else:
            self._missing.pop(name, None)
            self._loaded.add(name)
            if tuple(tensor.shape) == slot.shape:
                slot.store(tensor)
            else:
                shapes = f"is {list(tensor.shape)}, not {list(slot.shape)}"
                self._misshapen.append(f"{given_name} {shapes}")

    def faults(self) -> str:
        """Return all that was wrong as part of a line; empty if nothing was."""
        kinds = {
            "missing": list(self._missing),
            "unexpected": self._unexpected,
            "repeated": self._repeated,
            "wrong shape": self._misshapen,
        }
        return "; ".join(_listed(kind, names) for kind, names in kinds.items() if names)


def _listed(kind: str, names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{len(names)} {kind}: {', '.join(names[:_SHOWN])}{more}"
