"""Streams a GGUF file's weights: expanded, renamed, and kept for the next start."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from pegboard.api.errors import ModelError
from pegboard.api.loaders import ModelLoader
from pegboard.api.models import ModelDescription
from pegboard_loaders.gguf.architectures import Architecture, architecture_of
from pegboard_loaders.gguf.dequantize import dequantize
from pegboard_loaders.gguf.reader import GgufFile, GgufTensor
from pegboard_loaders.safetensors_file import SafetensorsFile
from pegboard_loaders.safetensors_loader import stream
from pegboard_loaders.weight_cache import WeightCache, checkpoint_key

__all__ = ["GgufLoader"]

logger = logging.getLogger(__name__)

#: Raised whenever conversion would give other tensors than before.
_CONVERTER_VERSION = "1"


class GgufLoader(ModelLoader):
    """Expands quantised tensors to the run's dtype under Hugging Face's names."""

    def weights(
        self, description: ModelDescription, dtype: torch.dtype
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor in `dtype`, from the weight cache where there is one.

        Raises:
            ModelError: the file is malformed, or holds what its architecture does not have.
        """
        path = Path(description.path)
        cached = self._cached(path, description, dtype)
        if cached is None:
            yield from _Conversion(path, description, dtype).tensors()
        else:
            yield from stream(cached)

    def _cached(
        self, path: Path, description: ModelDescription, dtype: torch.dtype
    ) -> SafetensorsFile | None:
        """Return the converted file, made now if need be; None where there is no cache."""
        cache = self._cache()
        if cache is None:
            return None
        try:
            key = checkpoint_key(path, _CONVERTER_VERSION, str(dtype))
            with cache.lock(key):
                file = cache.find(key)
                if file is not None:
                    return file
                start = time.monotonic()
                conversion = _Conversion(path, description, dtype)
                tensors = (tensor for _, tensor in conversion.tensors())
                file = cache.write(key, str(path.resolve()), conversion.plan(), tensors)
        except OSError as error:
            logger.warning("weights are converted without a cache, which failed: %s", error)
            return None
        logger.info(
            "converted %d tensors to %s in %.1f s, kept in %s",
            len(file.tensors),
            str(dtype).removeprefix("torch."),
            time.monotonic() - start,
            file.path,
        )
        return file

    def _cache(self) -> WeightCache | None:
        load = getattr(self.context.config, "load", None)
        if load is None or not load.use_weight_cache or not load.cache_dir:
            return None
        try:
            return WeightCache(Path(load.cache_dir) / "weights")
        except OSError as error:
            logger.warning("no weight cache: %s cannot be made: %s", load.cache_dir, error)
            return None


class _Conversion:
    """One file on its way to Hugging Face's names and values."""

    def __init__(self, path: Path, description: ModelDescription, dtype: torch.dtype) -> None:
        self._file = GgufFile(path)
        self._architecture: Architecture = architecture_of(self._file)
        self._config = description.config
        self._dtype = dtype
        self._names: dict[str, GgufTensor] = {}
        for tensor in self._file.tensors.values():
            name = self._architecture.tensor_name(tensor.name, str(path))
            if name is not None:
                self._names[name] = tensor

    def plan(self) -> list[tuple[str, torch.dtype, tuple[int, ...]]]:
        """Return (name, dtype, shape) of every tensor, in the order of `tensors`."""
        return [(name, self._dtype, tensor.shape) for name, tensor in self._names.items()]

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, tensor); the file's pages are given back as it goes."""
        for name, tensor in self._names.items():
            yield name, self._convert(name, tensor)
            self._file.forget_pages(tensor)

    def _convert(self, name: str, tensor: GgufTensor) -> torch.Tensor:
        kind = tensor.type
        stored = self._file.tensor_bytes(tensor)
        values = dequantize(stored, kind.name, kind.block_size, kind.block_bytes)
        try:
            restored = self._architecture.restored(name, values.reshape(tensor.shape), self._config)
        except (ValueError, ZeroDivisionError) as error:
            raise ModelError(
                f"{self._file.path}: {tensor.name!r} has the shape {tensor.shape}, which does not "
                "fit the number of heads; convert the model again"
            ) from error
        return torch.from_numpy(restored).to(self._dtype)
