"""Fixtures of the kernel tests: every instruction set the machine has, threads, fresh numbers."""

from collections.abc import Iterator

import pytest
import torch

from pegboard_kernels import Isa, KernelLibrary, KernelsUnavailableError, load


def _isas() -> list[Isa]:
    try:
        return load().available_isas()
    except KernelsUnavailableError:
        return []


@pytest.fixture
def library() -> Iterator[KernelLibrary]:
    """Return the library, its instruction set and threads put back afterwards."""
    try:
        loaded = load()
    except KernelsUnavailableError as error:
        pytest.skip(str(error))
    isa, threads = loaded.isa, loaded.num_threads
    yield loaded
    loaded.set_isa(isa)
    loaded.set_num_threads(threads)


@pytest.fixture(params=_isas(), ids=lambda isa: isa.name.lower())
def isa(request: pytest.FixtureRequest, library: KernelLibrary) -> Isa:
    """Use each instruction set of this machine in turn, with two threads."""
    library.set_isa(request.param)
    library.set_num_threads(2)
    return request.param


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """Each dtype the kernels take."""
    return request.param


@pytest.fixture
def generator() -> torch.Generator:
    """Fresh numbers on every run; the seed is printed when a test fails."""
    made = torch.Generator()
    print("seed", made.seed())  # noqa: T201 -- shown by pytest on failure
    return made
