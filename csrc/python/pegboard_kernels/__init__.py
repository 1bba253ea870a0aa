"""Pegboard's CPU kernels: finding and checking the native library. Imports no torch.

`load()` returns the library or raises `KernelsUnavailableError` with the reason. The functions over
tensors are in `pegboard_kernels.tensors`, the packed weights in `pegboard_kernels.packed`.
"""

from pegboard_kernels.library import (
    ABI_VERSION,
    Isa,
    KernelError,
    KernelLibrary,
    KernelsUnavailableError,
    load,
)

__all__ = [
    "ABI_VERSION",
    "Isa",
    "KernelError",
    "KernelLibrary",
    "KernelsUnavailableError",
    "load",
]
