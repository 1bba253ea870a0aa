"""The native library: where it is, whether it fits, and which instruction set it uses.

Knows nothing of tensors. One library a process; `load` finds it once.
"""

import ctypes
import functools
import logging
import sys
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path

__all__ = [
    "ABI_VERSION",
    "Isa",
    "KernelError",
    "KernelLibrary",
    "KernelsUnavailableError",
    "find_library",
    "is_available",
    "load",
    "why_unavailable",
]

logger = logging.getLogger(__name__)

#: The version of the C interface this package was written for.
ABI_VERSION = 1


class Isa(IntEnum):
    """Instruction sets, worst first. `AMX_EMULATED` runs the tile code without tiles, for tests."""

    PORTABLE = 0
    AVX2 = 1
    AVX512 = 2
    AVX512_BF16 = 3
    AMX_BF16 = 4
    AMX_EMULATED = 5


class KernelsUnavailableError(RuntimeError):
    """The native library is absent or does not fit; the message says why and what mends it."""


class KernelError(RuntimeError):
    """A kernel refused its arguments or ran out of memory."""


_I32, _I64, _F32, _PTR = ctypes.c_int32, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p

_SIGNATURES: dict[str, list[type]] = {
    "pgk_set_isa": [_I32],
    "pgk_self_check": [_I32],
    "pgk_isa_available": [_I32],
    "pgk_set_num_threads": [_I32, _I32],
    "pgk_packed_bytes": [_I32, _I64, _I64],
    "pgk_pack_rows": [_I32, _I32, _I64, _I64, _PTR, _I32, _I64, _I64, _I64, _PTR],
    "pgk_gather_packed": [_I32, _I32, _I64, _I64, _PTR, _PTR, _I64, _PTR, _I32, _I64],
    "pgk_linear": [
        *(_I32, _I64, _I64, _PTR, _PTR, _PTR, _I32, _I64, _I64, _PTR, _I32, _I64, _I32),
    ],
    "pgk_rms_norm": [
        *(_PTR, _I64, _PTR, _I64, _PTR, _I32, _F32, _F32, _I64, _I64, _PTR, _I64, _I32),
    ],
    "pgk_gated_activation": [_PTR, _I64, _I64, _I64, _PTR, _I64, _I32, _I32],
    "pgk_gather_rows": [_PTR, _I64, _I64, _I64, _PTR, _I64, _PTR, _I64, _I32],
    "pgk_most_likely": [_PTR, _I64, _I64, _I64, _PTR, _PTR],
    "pgk_draw_tokens": [_PTR, _I64, _I64, _I64, _PTR, _PTR],
    "pgk_keep_likely": [_PTR, _I64, _I64, _I64, _PTR, _PTR, _PTR],
    "pgk_philox_uniform": [_PTR, _PTR, _I64, _I64, _PTR],
    "pgk_prepare_inputs": [*(_PTR, _I64, _I64, _PTR, _PTR, _PTR, _I64, _I64), *[_PTR] * 4],
    "pgk_slot_mapping": [_PTR, _I64, _I64, _I64, _PTR, _PTR, _I64, _I64, _PTR],
    "pgk_append_tokens": [_PTR, _I64, _I64, _PTR, _PTR, _PTR, _I64],
    "pgk_rotate_and_write": [
        *(_PTR, _I64, _PTR, _I64, _PTR, _I64, _I32, _I64, _I32, _I32, _I32),
        *(_PTR, _PTR, _I32, _F32, _F32),
        *(_PTR, _PTR, _I64, _I32, _I32),
        *(_PTR, _PTR, _I64, _I32, _PTR, _I64),
    ],
    "pgk_paged_attention": [
        *(_PTR, _I64, _PTR, _I64, _I32, _PTR, _PTR, _I64, _I32, _I32, _I32, _I32),
        *(_I32, _PTR, _PTR, _PTR, _I64, _F32, _F32, _I32, _I32, _PTR),
    ],
}


class KernelLibrary:
    """The loaded library: its functions, instruction set and threads.

    Attributes:
        c: the library's C functions with their argument types bound. They return a status; hand
            it to `check`.
        path: the file it was loaded from.
        rejected: instruction sets that failed their self-check, with the reason.
    """

    def __init__(self, path: Path) -> None:
        """Load and check the file.

        Raises:
            KernelsUnavailableError: it cannot be loaded or has another ABI version.
        """
        self.path = path
        self.rejected: dict[Isa, str] = {}
        try:
            self.c = ctypes.CDLL(str(path))
        except OSError as error:
            raise KernelsUnavailableError(f"{path} cannot be loaded: {error}") from error
        version = self.c.pgk_abi_version()
        if version != ABI_VERSION:
            raise KernelsUnavailableError(
                f"{path} has ABI version {version}, this package needs {ABI_VERSION}; "
                "reinstall pegboard-kernels"
            )
        for name, arguments in _SIGNATURES.items():
            getattr(self.c, name).argtypes = arguments
        self.c.pgk_packed_bytes.restype = _I64
        self.c.pgk_last_error.restype = ctypes.c_char_p

    def check(self, status: int) -> None:
        """Raise for a status that is not 0.

        Raises:
            KernelError: with the library's own words.
        """
        if status:
            raise KernelError(self.c.pgk_last_error().decode(errors="replace"))

    @property
    def isa(self) -> Isa:
        """The instruction set in use."""
        return Isa(self.c.pgk_get_isa())

    def available_isas(self) -> list[Isa]:
        """Return what this processor and build can run, worst first."""
        return [isa for isa in Isa if self.c.pgk_isa_available(isa)]

    def set_isa(self, isa: Isa) -> None:
        """Use exactly this instruction set from the next call on.

        Raises:
            KernelError: this processor or build does not have it.
        """
        self.check(self.c.pgk_set_isa(isa))

    def select_best_isa(self) -> Isa:
        """Use the best instruction set that passes its self-check against the portable path.

        One that fails is logged, kept in `rejected`, and the next one is taken.
        """
        for isa in sorted(self.available_isas(), reverse=True):
            if isa is Isa.AMX_EMULATED:
                continue
            if isa is Isa.PORTABLE or self.c.pgk_self_check(isa) == 0:
                self.set_isa(isa)
                return isa
            reason = self.c.pgk_last_error().decode(errors="replace")
            self.rejected[isa] = reason
            logger.warning("kernels of %s are not used: %s", isa.name.lower(), reason)
        return self.isa

    @property
    def num_threads(self) -> int:
        """Threads that take part in a kernel, the caller's included."""
        return self.c.pgk_get_num_threads()

    def set_num_threads(self, num_threads: int, spin_us: int = 50) -> None:
        """Resize the pool.

        Args:
            num_threads: threads of a kernel, the caller's included.
            spin_us: how long an idle worker spins, in microseconds, before it sleeps.

        Raises:
            KernelError: out of range, or the threads could not be started.
        """
        self.check(self.c.pgk_set_num_threads(num_threads, spin_us))


def _library_name() -> str:
    if sys.platform == "win32":
        return "pegboard_kernels.dll"
    return f"libpegboard_kernels{'.dylib' if sys.platform == 'darwin' else '.so'}"


def find_library(folders: Iterable[Path]) -> Path:
    """Return the library's file in the first folder that holds it.

    Raises:
        KernelsUnavailableError: none does.
    """
    looked_in = []
    for folder in folders:
        path = folder / _library_name()
        if path.is_file():
            return path
        looked_in.append(str(folder))
    raise KernelsUnavailableError(
        f"the kernel library is not installed (looked in {', '.join(looked_in)}): no C++ compiler "
        "was found when pegboard-kernels was installed; install one, then reinstall it "
        "(in a source tree: make kernels)"
    )


@functools.cache
def load() -> KernelLibrary:
    """Find and load the library of this package, on its best instruction set, with one thread.

    Raises:
        KernelsUnavailableError: it is absent or does not fit.
    """
    package = sys.modules["pegboard_kernels"]
    library = KernelLibrary(find_library([Path(folder) for folder in package.__path__]))
    isa = library.select_best_isa()
    logger.debug("kernels loaded path=%s isa=%s", library.path, isa.name.lower())
    return library


def is_available() -> bool:
    """Return whether `load` works here."""
    return not why_unavailable()


def why_unavailable() -> str:
    """Return why `load` does not work here and what mends it; empty if it does."""
    try:
        load()
    except KernelsUnavailableError as error:
        return str(error)
    return ""
