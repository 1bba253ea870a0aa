"""Keeps converted weights as safetensors files, so that the next start maps them.

One file a checkpoint, dtype and converter version. A file appears under its name only when it is
whole; each tensor carries a checksum, so that one torn by a crash or a full disk is found and made
again. Processes that need the same file wait for the first to finish it.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch

from pegboard.api.errors import ModelError
from pegboard_loaders.safetensors_file import DTYPES, SafetensorsFile

__all__ = ["WeightCache", "checkpoint_key"]

logger = logging.getLogger(__name__)

_ALIGNMENT = 64
_SAMPLES = 8
_SAMPLE_BYTES = 1 << 18
_NAMES = {name: stored for stored, (name, _) in DTYPES.items()}

#: (name, dtype, shape) of a tensor that will be written.
Plan = Sequence[tuple[str, torch.dtype, tuple[int, ...]]]


def checkpoint_key(path: Path, *details: str) -> str:
    """Return a key that changes with the file and the details.

    Read are the file's size, time of change, head (where formats keep their metadata) and windows
    spread over the rest, not all of it: the key must cost less than the start it saves.
    """
    stat = path.stat()
    digest = hashlib.sha256(repr((details, stat.st_size, stat.st_mtime_ns)).encode())
    with path.open("rb") as file:
        for sample in range(_SAMPLES + 1):
            file.seek(sample * max(0, stat.st_size - _SAMPLE_BYTES) // _SAMPLES)
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:32]


class WeightCache:
    """The files under one folder."""

    def __init__(self, folder: Path) -> None:
        """Make the folder, private to the user.

        Raises:
            OSError: it cannot be made or written to.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder

    @contextlib.contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Hold the key; other processes wait. A process that dies lets go."""
        with (self._folder / f"{key}.lock").open("wb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                logger.info("waiting for another process that converts the same weights")
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def find(self, key: str) -> SafetensorsFile | None:
        """Return the key's file if it is there and sound; one that is not is removed."""
        path = self._path(key)
        if not path.exists():
            return None
        try:
            file = SafetensorsFile(path)
            _verify(file, key)
        except ModelError as error:
            logger.warning("the weight cache is damaged and will be made again: %s", error)
            path.unlink(missing_ok=True)
            return None
        return file

    def write(
        self, key: str, source: str, plan: Plan, tensors: Iterator[torch.Tensor]
    ) -> SafetensorsFile:
        """Write a key's file and return it; files of an older `source` are removed.

        Call it with the key locked.

        Args:
            key: see `checkpoint_key`.
            source: the checkpoint's path.
            plan: what will come.
            tensors: in the order of the plan.

        Raises:
            OSError: the disk is full or cannot be written to; nothing stays behind.
        """
        path = self._path(key)
        for stale in self._folder.glob(f"{key}.*.part"):  # the key is locked: nobody writes it
            stale.unlink(missing_ok=True)
        self._check_room(plan)
        part = path.with_suffix(f".{os.getpid()}.part")
        try:
            with part.open("wb") as file:
                _write_file(file, key, source, plan, tensors)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        self._remove_older(source, path)
        return SafetensorsFile(path)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.safetensors"

    def _check_room(self, plan: Plan) -> None:
        needed = sum(_num_bytes(dtype, shape) for _, dtype, shape in plan)
        free = shutil.disk_usage(self._folder).free
        if free < needed + (64 << 20):
            raise OSError(f"{needed >> 20} MiB are needed and {free >> 20} MiB are free")

    def _remove_older(self, source: str, newest: Path) -> None:
        """Remove files of the same checkpoint that no start will ask for again."""
        dtype = SafetensorsFile(newest).metadata.get("dtype")
        for path in self._folder.glob("*.safetensors"):
            if path == newest:
                continue
            try:
                metadata = SafetensorsFile(path).metadata
            except ModelError:
                continue
            if metadata.get("source") == source and metadata.get("dtype") == dtype:
                path.unlink(missing_ok=True)
                path.with_suffix(".lock").unlink(missing_ok=True)


def _num_bytes(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize


def _header(key: str, source: str, plan: Plan, checksums: Sequence[str]) -> bytes:
    """Return the header, its length included; as long whatever the checksums."""
    header: dict[str, object] = {
        "__metadata__": {
            "key": key,
            "source": source,
            "dtype": ",".join(sorted({str(dtype) for _, dtype, _ in plan})),
            "checksums": " ".join(checksums),
        }
    }
    position = 0
    for name, dtype, shape in plan:
        end = position + _num_bytes(dtype, shape)
        stored = _NAMES[str(dtype).removeprefix("torch.")]
        header[name] = {"dtype": stored, "shape": shape, "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _write_file(
    file: BinaryIO, key: str, source: str, plan: Plan, tensors: Iterator[torch.Tensor]
) -> None:
    blank = _header(key, source, plan, ["0" * 16] * len(plan))
    file.write(blank)
    checksums = []
    for (name, dtype, shape), tensor in zip(plan, tensors, strict=True):
        if tensor.dtype != dtype or tuple(tensor.shape) != shape:
            raise ModelError(f"{source}: {name} became {tensor.dtype} {tuple(tensor.shape)}")
        data = tensor.contiguous().view(torch.uint8).reshape(-1).numpy()
        checksums.append(_checksum(data))
        file.write(data.data)
    file.seek(0)
    file.write(_header(key, source, plan, checksums))


def _checksum(data: np.ndarray) -> str:
    """Sum bytes as 64-bit words, wrapping: as fast as memory, and it sees torn or zeroed pages."""
    whole = len(data) // 8 * 8
    total = int(np.add.reduce(data[:whole].view(np.uint64), dtype=np.uint64))
    tail = int.from_bytes(data[whole:].tobytes(), "little")
    return f"{(total + tail + len(data)) & 0xFFFF_FFFF_FFFF_FFFF:016x}"


def _verify(file: SafetensorsFile, key: str) -> None:
    """Compare every tensor with its checksum.

    Raises:
        ModelError: the file is another key's, or a tensor's bytes have changed.
    """
    checksums = str(file.metadata.get("checksums", "")).split(" ")
    if file.metadata.get("key") != key or len(checksums) != len(file.tensors):
        raise ModelError(f"{file.path} does not belong to its name")
    for entry, checksum in zip(file.tensors.values(), checksums, strict=True):
        data = file.tensor(entry).view(torch.uint8).reshape(-1).numpy()
        if _checksum(data) != checksum:
            raise ModelError(f"{file.path}: the bytes of {entry.name!r} have changed")
        file.forget_pages(entry)
