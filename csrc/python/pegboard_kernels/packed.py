"""A weight in the kernels' packed form: packed piece by piece, multiplied with, read back."""

from collections.abc import Mapping

import torch
from torch import Tensor

from pegboard_kernels.library import KernelError
from pegboard_kernels.linear import gather_packed, linear
from pegboard_kernels.registration import ACTIVATIONS, DTYPE_CODES, LIBRARY

__all__ = ["PackedMatrix"]


class PackedMatrix:
    """A weight [n, k] in the order the product kernels read it.

    Rows are handed in with `pack_rows` in any number of pieces, in any order; the originals can be
    freed as they are packed.

    Attributes:
        n, k: rows (outputs) and columns (inputs).
        dtype: float32 or bfloat16.
        activation: "" for a plain product; "silu" or "gelu_tanh" when the rows are a gate's
            followed by as many of an up projection, and the product is act(gate) * up.
        bias: [n] float32, added to the product, or None.
    """

    __slots__ = ("_activation", "_code", "activation", "bias", "data", "dtype", "k", "n")

    def __init__(
        self,
        n: int,
        k: int,
        dtype: torch.dtype,
        activation: str = "",
        bias: Tensor | None = None,
    ) -> None:
        """Allocate the storage, zeroed; the bias is copied.

        Raises:
            KernelError: an unsupported dtype, activation or shape.
        """
        if dtype not in DTYPE_CODES:
            raise KernelError(f"dtype {dtype} is not supported; float32 and bfloat16 are")
        if activation not in ACTIVATIONS or (activation and n % 2):
            raise KernelError(f"activation {activation!r} with {n} rows is not supported")
        self.n, self.k, self.dtype, self.activation = n, k, dtype, activation
        self._code = DTYPE_CODES[dtype]
        self._activation = ACTIVATIONS[activation]
        num_bytes = LIBRARY.c.pgk_packed_bytes(self._code, n, k)
        if num_bytes < 0:
            raise KernelError(f"a weight of {n} x {k} cannot be packed")
        self.data = torch.zeros(num_bytes, dtype=torch.uint8)
        self.bias = None if bias is None else bias.to(torch.float32, copy=True).contiguous()

    @property
    def epilogue(self) -> int:
        """The activation, as the C interface numbers it."""
        return self._activation

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The storage by name."""
        if self.bias is None:
            return {"packed": self.data}
        return {"packed": self.data, "bias": self.bias}

    def pack_rows(self, rows: Tensor, begin: int = 0) -> None:
        """Pack `rows` [count, k] as rows begin .. begin + count; float32 or bfloat16."""
        if rows.dim() != 2 or rows.shape[1] != self.k:
            raise KernelError(f"rows are {tuple(rows.shape)}, the weight is {self.n} x {self.k}")
        if rows.dtype not in DTYPE_CODES:
            rows = rows.to(torch.float32)
        if rows.stride(1) != 1 or (rows.shape[0] > 1 and rows.stride(0) < self.k):
            rows = rows.contiguous()
        LIBRARY.check(
            LIBRARY.c.pgk_pack_rows(
                self._code, 1 if self._activation else 0, self.n, self.k, rows.data_ptr(),
                DTYPE_CODES[rows.dtype], max(rows.stride(0), self.k), begin, rows.shape[0],
                self.data.data_ptr(),
            )
        )  # fmt: skip

    def linear(self, x: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
        """Return x . weight^T + bias, with the gated activation if there is one.

        Args:
            x: [..., k].
            out_dtype: of the result; None for x's.
        """
        if x.shape[-1] != self.k:
            raise KernelError(f"x has {x.shape[-1]} columns, the weight {self.k}")
        product = torch.ops.pegboard_kernels.linear if torch.compiler.is_compiling() else linear
        return product(
            x, self.data, self.n, self.bias, self._activation, self.dtype, out_dtype or x.dtype
        )

    def gather(self, ids: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
        """Return rows `ids` (int64) as they were packed, for embeddings tied to this weight."""
        if self._activation:
            raise KernelError("rows of a gate-and-up weight are not read back")
        gather = (
            torch.ops.pegboard_kernels.gather_packed
            if torch.compiler.is_compiling()
            else gather_packed
        )
        return gather(self.data, ids, self.n, self.k, self.dtype, out_dtype or self.dtype)
