"""Streams a folder's safetensors weights: one file, or the shards that an index lists."""

import json
from collections.abc import Iterator
from pathlib import Path

import torch

from pegboard.api.errors import ModelError
from pegboard.api.loaders import ModelLoader
from pegboard.api.models import ModelDescription
from pegboard_loaders.safetensors_file import SafetensorsFile

__all__ = ["SafetensorsLoader", "stream"]

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")


class SafetensorsLoader(ModelLoader):
    """Maps the files and yields views, shard by shard; nothing is copied here."""

    def weights(
        self, description: ModelDescription, dtype: torch.dtype
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor as stored. All headers are checked before the first is yielded.

        Raises:
            ModelError: a file is missing, truncated or malformed; one line that names it.
        """
        del dtype
        files, wanted = _files(Path(description.path))
        opened = [SafetensorsFile(path) for path in files]
        if wanted is not None:
            _check_index(opened, wanted)
        for file in opened:
            yield from stream(file)


def stream(file: SafetensorsFile) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each tensor as a view; when the next is asked for, its pages are given back."""
    for name, entry in file.tensors.items():
        yield name, file.tensor(entry)
        file.forget_pages(entry)


def _files(path: Path) -> tuple[list[Path], dict[str, str] | None]:
    """Return the files to read, and the index's name to file where there is one."""
    if path.is_file():
        return [path], None
    index = path / _INDEX
    if index.is_file():
        shards = _read_index(index)
        paths = [path / name for name in dict.fromkeys(shards.values())]
        absent = [shard.name for shard in paths if not shard.is_file()]
        if absent:
            raise ModelError(
                f"{path} lacks {len(absent)} of the {len(paths)} files that {_INDEX} lists, "
                f"such as {absent[0]}; fetch the model again"
            )
        return paths, shards
    if (path / _SINGLE).is_file():
        return [path / _SINGLE], None
    others = sorted(path.glob("*.safetensors"))
    if others:
        return others, None
    raise ModelError(_nothing_found(path))


def _nothing_found(path: Path) -> str:
    pickled = [file.name for pattern in _PICKLED for file in path.glob(pattern)]
    if pickled:
        return (
            f"{path} holds pickled weights ({sorted(pickled)[0]}), which can run code and are "
            "never read; convert them to safetensors, or use a revision that has them"
        )
    return f"{path} holds no *.safetensors file; fetch the weights, or try --load-format dummy"


def _read_index(path: Path) -> dict[str, str]:
    try:
        shards = json.loads(path.read_text("utf-8"))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(f"{path} is no index of shards: {error!r}; fetch it again") from error
    if not isinstance(shards, dict) or not shards:
        raise ModelError(f"{path} has an empty or malformed weight_map; fetch it again")
    for tensor, name in shards.items():
        if not isinstance(name, str) or Path(name).name != name or name in ("", ".", ".."):
            raise ModelError(f"{path}: the file of {tensor!r} is {name!r}, not a file beside it")
    return shards


def _check_index(files: list[SafetensorsFile], wanted: dict[str, str]) -> None:
    held = {file.path.name: file.tensors for file in files}
    for tensor, name in wanted.items():
        if tensor not in held[name]:
            raise ModelError(
                f"{files[0].path.parent}: {name} lacks {tensor!r}, which {_INDEX} says it holds; "
                "fetch the model again"
            )
