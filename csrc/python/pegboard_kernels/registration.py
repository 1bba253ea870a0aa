"""What every module of kernels over tensors shares: the library, dtypes, and the torch ops' form.

Importing this module loads the library and raises `KernelsUnavailableError` where it is absent.
Each kernel may be called directly (the least overhead) or as `torch.ops.pegboard_kernels.…`, which
tracing and compilation see; both are the same code. Tensors live on the CPU; rows may be strided,
the last dimension may not.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pegboard_kernels.library import KernelError, load

__all__ = [
    "ACTIVATIONS",
    "DTYPE_CODES",
    "LIBRARY",
    "as_rows",
    "dtype_code",
    "returns_nothing",
    "torch_op",
]

#: Names of gated activations, as the C interface numbers them; "" is none.
ACTIVATIONS = {"": 0, "silu": 1, "gelu_tanh": 2}
#: Dtypes as the C interface numbers them.
DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1}
#: The library, loaded.
LIBRARY = load()

_REGISTRATION = torch.library.Library("pegboard_kernels", "DEF")


def dtype_code(dtype: torch.dtype) -> int:
    """Return a dtype's number; raise `KernelError` for one the kernels do not take."""
    try:
        return DTYPE_CODES[dtype]
    except KeyError:
        raise KernelError(f"dtype {dtype} is not supported; float32 and bfloat16 are") from None


def as_rows(x: Tensor) -> Tensor:
    """View [..., k] as [rows, k] with a contiguous last dimension."""
    if x.dim() != 2:
        x = x.reshape(-1, x.shape[-1])
    return x if x.stride(1) == 1 else x.contiguous()


def torch_op(schema: str, fake: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Register the function as a torch op of the schema's name, with a shape-only twin."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__
        _REGISTRATION.define(f"{name}{schema}")
        _REGISTRATION.impl(name, function, "CPU")
        torch.library.register_fake(f"pegboard_kernels::{name}", fake, lib=_REGISTRATION)
        return function

    return register


def returns_nothing(*_: Any) -> None:  # noqa: ANN401 -- any op's arguments
    """Stand in, while tracing, for an op that only mutates."""
    return None
