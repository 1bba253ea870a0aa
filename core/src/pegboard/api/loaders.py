"""Model loaders: a format's weights as a stream of named tensors."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from pegboard.api.models import Model, ModelDescription
from pegboard.api.plugin import ComponentContext, ComponentSpec

if TYPE_CHECKING:
    import torch

__all__ = ["LoadQuery", "LoaderExample", "ModelLoader", "ModelLoaderSpec"]


class LoadQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which loader is asked for: the checkpoint's own, or --load-format's."""

    name: str


class LoaderExample(msgspec.Struct, frozen=True, kw_only=True):
    """A small valid checkpoint of a format, as a loader's `example` wrote it.

    Attributes:
        description: of the checkpoint.
        tensors: name to the float32 tensor that was stored.
        tolerance: largest |loaded - stored|, for formats that quantise.
    """

    description: ModelDescription
    tensors: dict[str, Any]
    tolerance: float = 0.0


class ModelLoaderSpec(ComponentSpec, frozen=True, kw_only=True):
    """Describes a `ModelLoader`; its `target` is the class.

    Attributes:
        example: "module:function(folder)" that writes a `LoaderExample` into an empty folder for
            the conformance kit; None for loaders that read no files.
    """

    kind: ClassVar[str] = "model_loaders"

    example: str | None = None

    def reasons_against(self, query: LoadQuery) -> list[str]:
        """Fits exactly the loader that is asked for."""
        if query.name in (self.name, *self.aliases):
            return []
        return [f"{query.name} was asked for"]


class ModelLoader(ABC):
    """Streams a checkpoint's weights. Runs in the worker."""

    def __init__(self, context: ComponentContext) -> None:
        """Keep the context."""
        self.context = context

    @abstractmethod
    def weights(
        self, description: ModelDescription, dtype: "torch.dtype"
    ) -> "Iterator[tuple[str, torch.Tensor]]":
        """Yield (name, tensor) for every tensor of the checkpoint, in the file's order.

        Names are Hugging Face's for the architecture. Tensors are on the host, in `dtype` or as
        stored; views of mapped files are fine. Each may be dropped before the next is asked for.

        Raises:
            ModelError: a file is missing, truncated or malformed; one line that names it.
        """

    def load(self, model: Model, description: ModelDescription, dtype: "torch.dtype") -> None:
        """Give a model its weights. What the worker calls; few loaders need to override it.

        Args:
            model: as built, without weights.
            description: of the checkpoint.
            dtype: of unquantised weights.

        Raises:
            ModelError: as `weights` and `Model.load_weights` raise it.
        """
        model.load_weights(self.weights(description, dtype))
