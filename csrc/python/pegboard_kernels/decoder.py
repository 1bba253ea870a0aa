"""A run of decoder layers in one call: it saves the way between kernels, not in them."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pegboard_kernels.library import KernelError
from pegboard_kernels.packed import PackedMatrix
from pegboard_kernels.registration import LIBRARY, dtype_code

__all__ = ["DecoderKernels", "DecoderWeights", "StepGroup"]

_PTR, _I32, _I64, _F32 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_float


class _Layer(ctypes.Structure):
    _fields_ = [
        *((name, _PTR) for name in ("input_norm", "mlp_norm", "qkv", "output", "gate_up", "down")),
        *((f"{name}_bias", _PTR) for name in ("qkv", "output", "gate_up", "down")),
        *((name, _PTR) for name in ("q_norm", "k_norm", "cos_sin", "key_cache", "value_cache")),
        ("sinks", _PTR),
        *((name, _I64) for name in ("block_stride", "num_blocks", "max_position")),
        *((name, _F32) for name in ("eps", "head_eps", "scale", "softcap")),
        *((name, _I32) for name in ("rotary_size", "is_neox", "window", "epilogue", "group")),
    ]


class _Group(ctypes.Structure):
    _fields_ = [("slot_mapping", _PTR), ("block_table", _PTR), ("block_table_stride", _I64)]


class _Step(ctypes.Structure):
    _fields_ = [
        ("num_tokens", _I64),
        ("num_reqs", _I32),
        *((name, _PTR) for name in ("positions", "cu_query_lens", "seq_lens", "groups")),
        *((name, _PTR) for name in ("residual", "x", "workspace")),
        ("has_x", _I32),
    ]


class _Decoder(ctypes.Structure):
    _fields_ = [
        (name, _I32)
        for name in (
            *("dtype", "hidden_size", "intermediate_size", "num_q_heads", "num_kv_heads"),
            *("head_size", "block_size"),
        )
    ]


_RUN = LIBRARY.c.pgk_decoder_layers
_RUN.argtypes = [_PTR, _PTR, _I32, _PTR]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderWeights:
    """One layer: what it multiplies with and how it attends.

    Attributes:
        input_norm, mlp_norm: [hidden_size] float32.
        eps: of both.
        qkv, output, down: plain products; `gate_up` with its activation.
        q_norm, k_norm: [head_size] float32, or None.
        head_eps: of both.
        cos_sin: [max_position, rotary_size] float32.
        is_neox: pairs are (i, i + rotary_size / 2).
        num_heads, num_kv_heads, head_size: of its attention.
        scale, soft_cap, window, sinks: as `paged_attention` takes them.
        group: which of a step's groups it belongs to.
    """

    input_norm: Tensor
    mlp_norm: Tensor
    eps: float
    qkv: PackedMatrix
    output: PackedMatrix
    gate_up: PackedMatrix
    down: PackedMatrix
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    head_eps: float = 0.0
    cos_sin: Tensor
    is_neox: bool = True
    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float
    soft_cap: float = 0.0
    window: int = 0
    sinks: Tensor | None = None
    group: int = field(default=0)


@dataclass(frozen=True, slots=True)
class StepGroup:
    """What one KV group's layers share in a step: slots [>= num_tokens] and a block table."""

    slot_mapping: Tensor
    block_table: Tensor


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


class DecoderKernels:
    """Layers bound to their weights and caches. The tensors must stay where they are."""

    def __init__(
        self, layers: Sequence[DecoderWeights], caches: Sequence[tuple[Tensor, Tensor]]
    ) -> None:
        """Take the addresses.

        Args:
            layers: of equal sizes, in order.
            caches: key and value cache of each, as `paged_attention` reads them.

        Raises:
            KernelError: the layers differ in size, or a float32 table is not contiguous.
        """
        first = layers[0]
        self._keep = (tuple(layers), tuple(caches))
        self.dtype = first.qkv.dtype
        block_size = caches[0][0].shape[2] * 16
        sizes = {_sizes(layer) for layer in layers}
        if len(sizes) != 1 or any(cache[0].shape[2] * 16 != block_size for cache in caches):
            raise KernelError("the layers of one run must have equal sizes")
        self._hidden, self._intermediate, heads, kv_heads, head_size = sizes.pop()
        self._decoder = _Decoder(
            dtype_code(self.dtype), self._hidden, self._intermediate, heads, kv_heads, head_size,
            block_size,
        )  # fmt: skip
        self._row = (2 * heads + 2 * kv_heads) * head_size + self._intermediate
        self._layers = (_Layer * len(layers))(*map(_bind, layers, caches))
        num_groups = 1 + max(layer.group for layer in layers)
        self._groups = (_Group * num_groups)()
        self._step = _Step(groups=ctypes.addressof(self._groups))
        self._arguments = (
            ctypes.addressof(self._decoder),
            ctypes.addressof(self._layers),
            len(layers),
            ctypes.addressof(self._step),
        )

    def __call__(
        self,
        residual: Tensor,
        positions: Tensor,
        query_start_loc: Tensor,
        seq_lens: Tensor,
        groups: Sequence[StepGroup],
    ) -> Tensor:
        """Run all layers.

        Args:
            residual: [num_tokens, hidden_size], contiguous; updated in place.
            positions: [num_tokens] int64.
            query_start_loc: [num_reqs + 1] int32.
            seq_lens: [num_reqs] int32.
            groups: of the step, as the layers' `group` numbers them.

        Returns:
            [num_tokens, hidden_size]: what is still to be added to the residual.
        """
        num_tokens = residual.shape[0]
        if residual.dtype != self.dtype or not residual.is_contiguous():
            raise KernelError(f"residual is {residual.dtype}, the layers are {self.dtype}")
        x = torch.empty(num_tokens, self._hidden, dtype=self.dtype)
        workspace = torch.empty(num_tokens * self._row, dtype=self.dtype)
        for bound, group in zip(self._groups, groups, strict=True):
            if group.slot_mapping.shape[0] < num_tokens:
                raise KernelError(f"{group.slot_mapping.shape[0]} slots for {num_tokens} tokens")
            bound.slot_mapping = group.slot_mapping.data_ptr()
            bound.block_table = group.block_table.data_ptr()
            bound.block_table_stride = group.block_table.stride(0)
        step = self._step
        step.num_tokens, step.num_reqs = num_tokens, seq_lens.shape[0]
        step.positions = positions.data_ptr()
        step.cu_query_lens = query_start_loc.data_ptr()
        step.seq_lens = seq_lens.data_ptr()
        step.residual, step.x = residual.data_ptr(), x.data_ptr()
        step.workspace = workspace.data_ptr()
        LIBRARY.check(_RUN(*self._arguments))
        return x


def _sizes(layer: DecoderWeights) -> tuple[int, int, int, int, int]:
    heads, kv_heads, size = layer.num_heads, layer.num_kv_heads, layer.head_size
    hidden, intermediate = layer.output.n, layer.down.k
    matrices = (layer.qkv, layer.output, layer.gate_up, layer.down)
    expected = [
        ((heads + 2 * kv_heads) * size, hidden),
        (hidden, heads * size),
        (2 * intermediate, hidden),
        (hidden, intermediate),
    ]
    if [(m.n, m.k) for m in matrices] != expected or len({m.dtype for m in matrices}) != 1:
        raise KernelError(f"the matrices of a layer do not fit together: {expected}")
    if not layer.gate_up.activation:
        raise KernelError("gate and up are packed without their activation")
    tables = (layer.input_norm, layer.mlp_norm, layer.cos_sin, layer.q_norm, layer.k_norm)
    for table in tables:
        if table is not None and (table.dtype != torch.float32 or not table.is_contiguous()):
            raise KernelError("norms and rotary tables must be contiguous float32")
    return hidden, intermediate, heads, kv_heads, size


def _bind(layer: DecoderWeights, cache: tuple[Tensor, Tensor]) -> _Layer:
    keys, values = cache
    return _Layer(
        input_norm=layer.input_norm.data_ptr(),
        mlp_norm=layer.mlp_norm.data_ptr(),
        qkv=layer.qkv.data.data_ptr(),
        output=layer.output.data.data_ptr(),
        gate_up=layer.gate_up.data.data_ptr(),
        down=layer.down.data.data_ptr(),
        qkv_bias=_address(layer.qkv.bias),
        output_bias=_address(layer.output.bias),
        gate_up_bias=_address(layer.gate_up.bias),
        down_bias=_address(layer.down.bias),
        q_norm=_address(layer.q_norm),
        k_norm=_address(layer.k_norm),
        cos_sin=layer.cos_sin.data_ptr(),
        key_cache=keys.data_ptr(),
        value_cache=values.data_ptr(),
        sinks=_address(layer.sinks),
        block_stride=keys.stride(0),
        num_blocks=keys.shape[0],
        max_position=layer.cos_sin.shape[0],
        eps=layer.eps,
        head_eps=layer.head_eps,
        scale=layer.scale,
        softcap=layer.soft_cap,
        rotary_size=layer.cos_sin.shape[1],
        is_neox=layer.is_neox,
        window=layer.window,
        epilogue=layer.gate_up.epilogue,
        group=layer.group,
    )
