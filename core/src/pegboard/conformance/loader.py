"""Checks of model loaders: what was stored comes out, and damaged files are refused in one line."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import torch

from pegboard.api.errors import ModelError
from pegboard.api.loaders import LoaderExample, ModelLoader
from pegboard.conformance.kit import NotApplicable, Subject, check, load_target

__all__: list[str] = []

_KIND = "model_loaders"


@contextmanager
def _example(subject: Subject) -> Iterator[tuple[ModelLoader, LoaderExample, Path]]:
    if subject.spec.example is None:
        raise NotApplicable("the spec brings no example: the loader reads no files")
    with TemporaryDirectory(prefix="pegboard-kit-") as name:
        folder = Path(name)
        example = load_target(subject.spec.example)(folder)
        yield subject.catalog.create(subject.entry), example, folder


def _load(loader: ModelLoader, example: LoaderExample) -> dict[str, torch.Tensor]:
    loaded: dict[str, torch.Tensor] = {}
    for name, tensor in loader.weights(example.description, torch.float32):
        assert name not in loaded, f"{name} came twice"
        loaded[name] = tensor.to(torch.float32, copy=True)
    return loaded


@check(_KIND)
def stored_tensors_come_out(subject: Subject) -> None:
    """Every tensor comes once, with its name, shape and values; nothing else comes."""
    with _example(subject) as (loader, example, _):
        loaded = _load(loader, example)
        assert set(loaded) == set(example.tensors), (
            f"got {sorted(loaded)}, stored {sorted(example.tensors)}"
        )
        for name, stored in example.tensors.items():
            assert loaded[name].shape == stored.shape, f"{name}: {tuple(loaded[name].shape)}"
            error = (loaded[name] - stored.float()).abs().max().item()
            assert error <= example.tolerance, f"{name}: error {error:.2e}"


@check(_KIND)
def second_pass_gives_the_same(subject: Subject) -> None:
    """Reading again gives the same tensors, bit for bit."""
    with _example(subject) as (loader, example, _):
        first, second = _load(loader, example), _load(loader, example)
        assert list(first) == list(second), "the order changed"
        assert all(torch.equal(first[n], second[n]) for n in first), "the values changed"


@check(_KIND)
def truncated_files_are_refused(subject: Subject) -> None:
    """A file cut anywhere raises `ModelError` in one line that names it."""
    with _example(subject) as (_, example, folder):
        for path in _weight_files(example, folder):
            whole = path.read_bytes()
            for length in (0, 4, len(whole) // 3, len(whole) - 1):
                path.write_bytes(whole[:length])
                _must_refuse(subject, example, path, f"cut to {length} of {len(whole)} bytes")
            path.write_bytes(whole)


@check(_KIND)
def missing_file_is_refused(subject: Subject) -> None:
    """A file that is not there raises `ModelError` in one line that names it."""
    with _example(subject) as (_, example, folder):
        for path in _weight_files(example, folder):
            whole = path.read_bytes()
            path.unlink()
            _must_refuse(subject, example, path, "missing")
            path.write_bytes(whole)


@check(_KIND)
def damaged_headers_never_crash(subject: Subject) -> None:
    """Random bytes in the header give tensors or `ModelError`, nothing else, and no huge memory."""
    random = Random(subject.seed)  # noqa: S311 -- test data
    with _example(subject) as (_, example, folder):
        for path in _weight_files(example, folder):
            whole = path.read_bytes()
            for _ in range(60):
                damaged = bytearray(whole)
                for _ in range(random.randint(1, 4)):
                    damaged[random.randrange(min(600, len(whole)))] = random.randrange(256)
                path.write_bytes(damaged)
                try:
                    _load(subject.catalog.create(subject.entry), example)
                except ModelError as error:
                    assert "\n" not in str(error), f"not one line: {error}"
            path.write_bytes(whole)


def _weight_files(example: LoaderExample, folder: Path) -> list[Path]:
    path = Path(example.description.path)
    files = [path] if path.is_file() else sorted(folder.glob("*"))
    return [f for f in files if f.is_file() and f.suffix not in (".json", ".txt")]


def _must_refuse(subject: Subject, example: LoaderExample, path: Path, what: str) -> None:
    try:
        _load(subject.catalog.create(subject.entry), example)
    except ModelError as error:
        assert "\n" not in str(error), f"{what}: the error is not one line: {error}"
        assert path.name in str(error), f"{what}: the error does not name {path.name}: {error}"
        return
    raise AssertionError(f"{path.name} {what}, and no error was raised")
