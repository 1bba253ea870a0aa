"""What a model is built in; satisfies `pegboard.api.models.ModelContext`."""

from collections.abc import Mapping
from typing import Any

import torch

from pegboard.api.attention import AttentionLayer
from pegboard.api.distributed import ProcessGroup
from pegboard.api.errors import ModelError
from pegboard.api.kv import KVLayerNeed
from pegboard.api.ops import OpTable

__all__ = ["WorkerModelContext"]


class WorkerModelContext:
    """Collects the attention layers that a model declares as it is built.

    Attributes:
        layers: by index.
        needs: of the layers that keep a cache, by index.
        sinks: of the layers that have them, by index.
    """

    def __init__(
        self,
        *,
        config: Mapping[str, Any],
        dtype: torch.dtype,
        kv_dtype: torch.dtype,
        device: torch.device,
        ops: OpTable,
        tensor_parallel: ProcessGroup,
        max_model_len: int,
    ) -> None:
        """Keep what the model reads."""
        self.config = config
        self.dtype = dtype
        self.kv_dtype = kv_dtype
        self.device = device
        self.ops = ops
        self.tensor_parallel = tensor_parallel
        self.max_model_len = max_model_len
        self.layers: dict[int, AttentionLayer] = {}
        self.needs: dict[int, KVLayerNeed] = {}
        self.sinks: dict[int, torch.Tensor] = {}

    def add_attention(
        self, layer: AttentionLayer, need: KVLayerNeed | None, sinks: torch.Tensor | None = None
    ) -> None:
        """Declare an attention layer as it is built."""
        if layer.index in self.layers:
            raise ModelError(f"two attention layers have index {layer.index}")
        self.layers[layer.index] = layer
        if need is not None:
            self.needs[layer.index] = need
        if sinks is not None:
            self.sinks[layer.index] = sinks
