"""Finding and checking the library, choosing an instruction set, and the thread pool."""

import importlib
import logging
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from pegboard_kernels import (
    Isa,
    KernelError,
    KernelLibrary,
    KernelsUnavailableError,
    is_available,
    why_unavailable,
)
from pegboard_kernels.library import find_library
from pegboard_kernels.packed import PackedMatrix

ROOT = Path(__file__).resolve().parents[3]


def test_absent_library_says_where_it_looked_and_what_mends_it(tmp_path: Path) -> None:
    with pytest.raises(KernelsUnavailableError, match=r"no C\+\+ compiler.*reinstall") as error:
        find_library([tmp_path])
    assert str(tmp_path) in str(error.value)


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
def test_build_looks_again_for_a_compiler_that_an_earlier_one_missed(tmp_path: Path) -> None:
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert cmake is not None
    command = [cmake, "-S", ROOT / "csrc", "-B", tmp_path, "-DCMAKE_CXX_COMPILER=NOTFOUND"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "no C++ compiler" not in done.stderr
    assert "PGK_COMPILES_" in done.stdout or "CXX compiler" in done.stdout


def test_file_that_is_no_library_is_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "broken.so"
    path.write_bytes(b"not a library")
    with pytest.raises(KernelsUnavailableError, match="cannot be loaded"):
        KernelLibrary(path)


def test_availability_has_no_reason_against_it(library: KernelLibrary) -> None:
    assert is_available()
    assert why_unavailable() == ""


def test_every_available_instruction_set_passes_its_self_check(library: KernelLibrary) -> None:
    for isa in library.available_isas():
        library.check(library.c.pgk_self_check(isa))


def test_best_instruction_set_is_selected(library: KernelLibrary) -> None:
    usable = [isa for isa in library.available_isas() if isa is not Isa.AMX_EMULATED]
    assert library.select_best_isa() is max(usable)
    assert library.rejected == {}


def test_failed_self_check_falls_back_one_level_with_one_warning(
    library: KernelLibrary, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    usable = [isa for isa in library.available_isas() if isa is not Isa.AMX_EMULATED]
    if len(usable) < 2:
        pytest.skip("this machine has the portable path only")
    best = usable[-1]
    monkeypatch.setattr(library, "rejected", {})
    monkeypatch.setattr(
        library, "c", _FailingCheck(library.c, best, b"linear differs from the portable path")
    )
    with caplog.at_level(logging.WARNING):
        assert library.select_best_isa() is usable[-2]
    assert library.rejected == {best: "linear differs from the portable path"}
    assert len(caplog.records) == 1


class _FailingCheck:
    """The library's functions, but for one self-check that fails."""

    def __init__(self, functions: object, bad: Isa, words: bytes) -> None:
        self._functions, self._bad, self._words = functions, bad, words

    def __getattr__(self, name: str) -> object:
        return getattr(self._functions, name)

    def pgk_self_check(self, isa: int) -> int:
        return 4 if isa == self._bad else self._functions.pgk_self_check(isa)

    def pgk_last_error(self) -> bytes:
        return self._words


def test_unknown_instruction_set_is_refused(library: KernelLibrary) -> None:
    with pytest.raises(KernelError, match="no instruction set 17"):
        library.check(library.c.pgk_set_isa(17))


@pytest.mark.parametrize("count", [0, -1, 100000])
def test_absurd_thread_counts_are_refused(library: KernelLibrary, count: int) -> None:
    with pytest.raises(KernelError, match="num_threads"):
        library.set_num_threads(count)


def test_pool_can_be_resized_and_used_by_several_threads(library: KernelLibrary) -> None:
    packed = PackedMatrix(256, 64, torch.float32)
    packed.pack_rows(torch.randn(256, 64))
    x = torch.randn(40, 64)
    expected = packed.linear(x)
    for count in (1, 3, 2, 4):
        library.set_num_threads(count, spin_us=0)
        assert library.num_threads == count
        wrong: list[int] = []

        def work(number: int, wrong: list[int] = wrong) -> None:
            for _ in range(50):
                if not torch.equal(packed.linear(x), expected):
                    wrong.append(number)

        workers = [threading.Thread(target=work, args=(i,)) for i in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(timeout=60)
        assert not any(worker.is_alive() for worker in workers)
        assert wrong == []


def test_every_op_traces_with_its_fake(library: KernelLibrary, generator: torch.Generator) -> None:
    for module in ("fused", "linear", "sampling"):
        importlib.import_module(f"pegboard_kernels.{module}")  # registers its ops
    ops = torch.ops.pegboard_kernels
    x, logits = torch.randn(5, 32, generator=generator), torch.randn(3, 40, generator=generator)
    packed = PackedMatrix(64, 32, torch.float32)
    packed.pack_rows(torch.randn(64, 32, generator=generator))
    weight, ids = torch.ones(32), torch.tensor([[1, 2], [0, 7]])
    seeds = torch.arange(3)
    head = torch.randn(5, 2, 16, generator=generator)
    rotation = (None, None, 0.0, 0.0, torch.arange(5), torch.randn(8, 16), True)
    calls = [
        (ops.linear, (x, packed.data, 64, None, 0, torch.float32, torch.float32)),
        (ops.gather_packed, (packed.data, ids, 64, 32, torch.float32, torch.bfloat16)),
        (ops.gather_rows, (x, ids.clamp(max=4))),
        (ops.rms_norm, (x, weight, 1e-5)),
        (ops.fused_add_rms_norm, (x.clone(), x.clone(), weight, 1e-5)),
        (ops.gated_activation, (x, 1)),
        (ops.rotate_and_write, (head, head[:, :1].clone(), None, *rotation, None, None, None, 0)),
        (ops.most_likely, (logits,)),
        (ops.draw_tokens, (logits, torch.rand(3, dtype=torch.float64))),
        (ops.philox_uniform, (seeds, seeds, 0)),
    ]
    for op, arguments in calls:
        torch.library.opcheck(op.default, arguments, test_utils=("test_schema", "test_faketensor"))
