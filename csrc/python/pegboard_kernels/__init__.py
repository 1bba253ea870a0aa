"""Pegboard's CPU kernels: finding and checking the native library. Imports no torch.

`load()` returns the library or raises `KernelsUnavailableError` with the reason. The kernels over
torch tensors are in the modules `linear`, `packed`, `fused`, `attention` and `sampling`.
"""

from pegboard_kernels.library import (
    ABI_VERSION,
    Isa,
    KernelError,
    KernelLibrary,
    KernelsUnavailableError,
    is_available,
    load,
    why_unavailable,
)

__all__ = [
    "ABI_VERSION",
    "Isa",
    "KernelError",
    "KernelLibrary",
    "KernelsUnavailableError",
    "is_available",
    "load",
    "why_unavailable",
]
