"""The base of layers: a plain object that knows which checkpoint tensors it needs.

Layers are not torch modules: a decode step calls hundreds of them, so an attribute is an
attribute and a call is a call. A model is a tree of layers; the attribute path of a layer is its
name in the checkpoint, unless the layer says otherwise.
"""

from collections.abc import Callable, Iterator

from torch import Tensor

from pegboard.api.ops import PackedWeights

__all__ = ["Layer", "WeightSlot", "beside", "packed_bytes", "walk_layers", "weight_slots"]


class WeightSlot:
    """One tensor that a layer takes from the checkpoint.

    Attributes:
        shape: of the whole tensor, before any division over ranks.
        store: takes the tensor, copies or packs this rank's part and keeps no reference to it.
        optional: may be absent.
    """

    __slots__ = ("optional", "shape", "store")

    def __init__(
        self, shape: tuple[int, ...], store: Callable[[Tensor], None], *, optional: bool = False
    ) -> None:
        """Keep what is given."""
        self.shape = shape
        self.store = store
        self.optional = optional


class Layer:
    """A part of a model. Attributes that are layers, or lists of layers, are its children.

    Attributes that begin with an underscore are references, not children.
    """

    def slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]:
        """Yield (name in the checkpoint, slot) of the tensors this layer itself takes.

        Args:
            name: the layer's attribute path from the model, such as "model.layers.0.mlp.up_proj".
        """
        del name
        yield from ()

    def packed_weights(self) -> Iterator[tuple[str, PackedWeights | Tensor]]:
        """Yield (name below this layer, weights) of what this layer itself holds once loaded."""
        yield from ()


def beside(name: str, sibling: str) -> str:
    """Return the name of what stands beside a layer called `name` in the checkpoint."""
    parent = name.rpartition(".")[0]
    return f"{parent}.{sibling}" if parent else sibling


def walk_layers(layer: Layer, name: str = "") -> Iterator[tuple[str, Layer]]:
    """Yield (attribute path, layer) of a layer and everything below it, parents first."""
    yield name, layer
    prefix = f"{name}." if name else ""
    for attribute, value in vars(layer).items():
        if attribute.startswith("_"):
            continue
        if isinstance(value, Layer):
            yield from walk_layers(value, prefix + attribute)
        elif isinstance(value, list):
            for index, child in enumerate(value):
                if isinstance(child, Layer):
                    yield from walk_layers(child, f"{prefix}{attribute}.{index}")


def weight_slots(model: Layer) -> dict[str, WeightSlot]:
    """Return every tensor a model takes, by its name in the checkpoint."""
    return {
        slot_name: slot
        for name, layer in walk_layers(model)
        for slot_name, slot in layer.slots(name)
    }


def packed_bytes(model: Layer) -> int:
    """Return the bytes of all weights a loaded model holds, each counted once."""
    return sum(
        weights.nbytes for _, layer in walk_layers(model) for _, weights in layer.packed_weights()
    )
