"""Random weights for any architecture: no file is read."""

import zlib
from collections.abc import Iterator

import torch

from pegboard.api.errors import ModelError
from pegboard.api.loaders import ModelLoader
from pegboard.api.models import Model, ModelDescription

__all__ = ["DummyLoader"]

_SPREAD = 0.02
#: Numbers drawn for a tensor at most; a prime, so that rows that repeat them all differ.
_MOST_DRAWN = 1_048_573


class DummyLoader(ModelLoader):
    """Makes small normal numbers, the same for a name and the engine's seed on every rank."""

    def load(self, model: Model, description: ModelDescription, dtype: torch.dtype) -> None:
        """Fill every tensor the model asks for; see `ModelLoader.load`."""
        del description
        model.load_weights(self._made_up(model, dtype))

    def weights(
        self, description: ModelDescription, dtype: torch.dtype
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Refuse: without the model, nobody knows the tensors.

        Raises:
            ModelError: always.
        """
        raise ModelError(
            f"random weights for {description.path} need the model; call DummyLoader.load"
        )

    def _made_up(self, model: Model, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        config = getattr(self.context.config, "model", None)
        seed = int(getattr(config, "seed", 0))
        for name, shape in model.weight_shapes().items():
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode(), seed & 0xFFFFFFFF))
            count = torch.Size(shape).numel()
            drawn = torch.empty(min(count, _MOST_DRAWN)).normal_(generator=generator)
            values = drawn.mul_(_SPREAD).to(dtype)
            yield name, _repeated(values, count).view(shape)


def _repeated(values: torch.Tensor, count: int) -> torch.Tensor:
    """Return `count` numbers, `values` over and over: drawing is slow, copying is not."""
    if len(values) == count:
        return values
    out = torch.empty(count, dtype=values.dtype)
    whole = count // len(values) * len(values)
    out[:whole].view(-1, len(values)).copy_(values)
    out[whole:] = values[: count - whole]
    return out
