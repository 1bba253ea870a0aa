"""The op `decoder_layers` on the native kernels: all layers of a step in one call.

Addresses are taken at the first step, when the caches exist, and again should a cache move.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor

from pegboard.api.forward_context import ForwardContext, forward_context
from pegboard.ops.decoder import DecoderLayerParts
from pegboard_kernels.decoder import DecoderKernels, DecoderWeights, StepGroup
from pegboard_kernels.packed import PackedMatrix

__all__ = ["DecoderLayers", "PreparedDecoder"]


class PreparedDecoder:
    """Layers, and the kernels bound to their caches once those exist."""

    def __init__(self, parts: Sequence[DecoderLayerParts]) -> None:
        """Keep the parts; the weights stay the layers' own."""
        self._parts = tuple(parts)
        self._indices = [part.attention.index for part in parts]
        self._group_layers: list[int] = []  # of each KV group, one of its layers
        self._cache_addresses: tuple[int, ...] = ()
        self._kernels: DecoderKernels | None = None

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Nothing of its own."""
        return {}

    @property
    def nbytes(self) -> int:
        """Nothing of its own."""
        return 0

    def run(self, residual: Tensor, positions: Tensor) -> Tensor:
        """Run the layers in the current forward context."""
        context = forward_context()
        kernels = self._bound(context)
        common = context.metadata[self._indices[0]]
        groups = [
            StepGroup(metadata.slot_mapping, metadata.block_table)
            for metadata in (context.metadata[layer] for layer in self._group_layers)
        ]
        return kernels(residual, positions, common.query_start_loc, common.seq_lens, groups)

    def _bound(self, context: ForwardContext) -> DecoderKernels:
        caches = [context.kv_caches[index] for index in self._indices]
        addresses = tuple(cache[0].data_ptr() for cache in caches)
        if self._kernels is None or addresses != self._cache_addresses:
            self._cache_addresses = addresses
            self._kernels = DecoderKernels(self._weights(context), caches)  # type: ignore[arg-type]
        return self._kernels

    def _weights(self, context: ForwardContext) -> list[DecoderWeights]:
        """Number the layers' groups: layers of one group share a step's metadata."""
        number: dict[int, int] = {}
        self._group_layers = []
        for index in self._indices:
            if number.setdefault(id(context.metadata[index]), len(number)) == len(
                self._group_layers
            ):
                self._group_layers.append(index)
        groups = [number[id(context.metadata[index])] for index in self._indices]
        return [_weights(part, group) for part, group in zip(self._parts, groups, strict=True)]


def _weights(part: DecoderLayerParts, group: int) -> DecoderWeights:
    layer = part.attention
    return DecoderWeights(
        input_norm=part.input_norm,
        mlp_norm=part.mlp_norm,
        eps=part.eps,
        qkv=part.qkv,  # type: ignore[arg-type] -- `prepare` looked
        output=part.output,  # type: ignore[arg-type]
        gate_up=part.gate_up,  # type: ignore[arg-type]
        down=part.down,  # type: ignore[arg-type]
        q_norm=part.q_norm,
        k_norm=part.k_norm,
        head_eps=part.head_eps,
        cos_sin=part.cos_sin,
        is_neox=not part.interleaved,
        num_heads=layer.num_heads,
        num_kv_heads=layer.num_kv_heads,
        head_size=layer.head_size,
        scale=layer.scale,
        soft_cap=layer.soft_cap or 0.0,
        window=layer.sliding_window or 0,
        sinks=part.sinks,
        group=group,
    )


class DecoderLayers:
    """See `pegboard.ops.decoder.DecoderLayers`."""

    def prepare(self, parts: Sequence[DecoderLayerParts]) -> PreparedDecoder | None:
        """Take loaded layers; None unless all products are this plugin's own."""
        for part in parts:
            matrices = (part.qkv, part.output, part.gate_up, part.down)
            if not all(isinstance(matrix, PackedMatrix) for matrix in matrices):
                return None
            if not part.attention.causal or part.attention.v_head_size != part.attention.head_size:
                return None
        return PreparedDecoder(parts) if parts else None

    def __call__(self, residual: Tensor, positions: Tensor, prepared: PreparedDecoder) -> Tensor:
        """Return what is still to be added to `residual`, which is updated in place."""
        return prepared.run(residual, positions)
