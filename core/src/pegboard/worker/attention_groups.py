"""Attention on one worker: the backend's instances, each layer's cache, each group's metadata."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor

from pegboard.api.attention import (
    AttentionBackend,
    AttentionBackendConfig,
    AttentionBackendSpec,
    AttentionImpl,
    AttentionLayer,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)
from pegboard.api.errors import ModelError
from pegboard.api.forward_context import ForwardContext
from pegboard.api.kv import KVGroup
from pegboard.api.ops import OpTable
from pegboard.catalog import Catalog, Entry
from pegboard.config.engine import EngineConfig
from pegboard.worker.block_tables import BlockTable
from pegboard.worker.input_batch import StepInputs
from pegboard.worker.kv_cache import KVCache
from pegboard.worker.model_context import WorkerModelContext

__all__ = ["AttentionBackends", "AttentionGroups", "profiling_context"]


class AttentionBackends:
    """Makes backends of one kind, one for each block size in use."""

    def __init__(
        self, catalog: Catalog, config: EngineConfig, device: torch.device, num_threads: int
    ) -> None:
        """Find the backend that was selected, by its name."""
        self._catalog = catalog
        self._config = config
        self._made: dict[int, AttentionBackend] = {}
        self.entry = _entry(catalog, config.attention_backend)
        self._base = AttentionBackendConfig(
            dtype=config.model.dtype,
            kv_dtype=config.cache.kv_cache_dtype,
            device=str(device),
            block_size=config.cache.block_size,
            max_num_reqs=config.scheduler.max_num_seqs,
            max_num_tokens=config.scheduler.max_num_batched_tokens,
            max_model_len=config.model.max_model_len,
            num_threads=num_threads,
        )

    @property
    def spec(self) -> AttentionBackendSpec:
        """The backend's description."""
        spec = self.entry.spec
        assert isinstance(spec, AttentionBackendSpec)
        return spec

    def backend(self, block_size: int) -> AttentionBackend:
        """Return the backend for blocks of `block_size` tokens."""
        if block_size not in self._made:
            config = msgspec.structs.replace(self._base, block_size=block_size)
            self._made[block_size] = self._catalog.create(self.entry, config, config=self._config)
        return self._made[block_size]

    def layout_name(self, model_config: Mapping[str, Any]) -> str:
        """Return the name of the backend's layout, before the model's layers are known."""
        heads = int(model_config.get("num_attention_heads", 1))
        kv_heads = int(model_config.get("num_key_value_heads") or heads)
        size = model_config.get("head_dim") or int(model_config.get("hidden_size", 64)) // heads
        layer = AttentionLayer(
            index=0,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_size=int(size),
            v_head_size=int(size),
            scale=1.0,
        )
        return self.backend(self._config.cache.block_size).kv_layout(layer, 1).name


class AttentionGroups:
    """The KV groups of one worker.

    Attributes:
        cache: all layers' tensors.
        tables: the block table of each group.
    """

    def __init__(
        self,
        groups: Sequence[KVGroup],
        num_blocks: int,
        *,
        context: WorkerModelContext,
        backends: AttentionBackends,
        config: EngineConfig,
        ops: OpTable,
    ) -> None:
        """Allocate the caches and build implementations, builders and block tables."""
        self._groups = tuple(groups)
        self._host_lengths = backends.spec.needs_host_lengths
        size = 1 + max(context.layers, default=-1)
        block_sizes = {layer: g.block_size for g in groups for layer in g.layers}
        layouts = {
            layer: backends.backend(block_size).kv_layout(context.layers[layer], num_blocks)
            for layer, block_size in block_sizes.items()
        }
        self.cache = KVCache(groups, layouts, context.device)
        self._caches = [self.cache.layer(layer) for layer in range(size)]
        default = config.cache.block_size
        self._implementations: list[AttentionImpl | None] = [None] * size
        for index, layer in context.layers.items():
            backend = backends.backend(block_sizes.get(index, default))
            sinks = context.sinks.get(index)
            self._implementations[index] = backend.implementation(layer, sinks)
        self._builders: list[AttentionMetadataBuilder] = [
            backends.backend(group.block_size).metadata_builder(group) for group in groups
        ]
        self.tables = [
            BlockTable(
                group,
                max_num_rows=config.scheduler.max_num_seqs,
                max_num_tokens=config.scheduler.max_num_batched_tokens,
                max_model_len=config.model.max_model_len,
                device=context.device,
                ops=ops,
            )
            for group in groups
        ]

    def append(self, row: int, block_ids: Sequence[Sequence[int]]) -> None:
        """Add blocks to a row's tables, one list a group."""
        for table, ids in zip(self.tables, block_ids, strict=True):
            table.append(row, ids)

    def clear(self, row: int) -> None:
        """Forget a row's blocks in every group."""
        for table in self.tables:
            table.clear(row)

    def flush(self) -> None:
        """Queue the changes of every block table."""
        for table in self.tables:
            table.flush()

    def capture_context(self, inputs: StepInputs) -> ForwardContext:
        """As `forward_context`, of whole tables and persistent buffers alone: for graph capture."""
        size = len(self._caches)
        metadata: list[Any] = [None] * size
        slots: list[Tensor | None] = [None] * size
        for group, table, builder in zip(self._groups, self.tables, self._builders, strict=True):
            block_table = table.gather_whole(inputs.rows)
            slot_mapping = table.map_slots(block_table, inputs.requests, inputs.positions)
            common = self._common(inputs, block_table, slot_mapping)
            built = builder.build_for_capture(common)
            for layer in group.layers:
                metadata[layer] = built
                slots[layer] = slot_mapping
        return self._context(metadata, slots, inputs.input_ids.shape[0])

    def forward_context(self, inputs: StepInputs) -> ForwardContext:
        """Map slots and build the metadata of every group for one step."""
        size = len(self._caches)
        metadata: list[Any] = [None] * size
        slots: list[Tensor | None] = [None] * size
        for group, table, builder in zip(self._groups, self.tables, self._builders, strict=True):
            block_table = table.gather(inputs.rows, inputs.max_seq_len)
            slot_mapping = table.map_slots(block_table, inputs.requests, inputs.positions)
            built = builder.build(self._common(inputs, block_table, slot_mapping))
            for layer in group.layers:
                metadata[layer] = built
                slots[layer] = slot_mapping
        return self._context(metadata, slots, inputs.input_ids.shape[0])

    def _common(
        self, inputs: StepInputs, block_table: Tensor, slot_mapping: Tensor
    ) -> CommonAttentionMetadata:
        return CommonAttentionMetadata(
            num_reqs=len(inputs.rows_cpu),
            num_tokens=inputs.input_ids.shape[0],
            num_decodes=inputs.num_decodes,
            max_query_len=inputs.max_query_len,
            max_seq_len=inputs.max_seq_len,
            query_start_loc=inputs.query_start_loc,
            seq_lens=inputs.seq_lens,
            block_table=block_table,
            slot_mapping=slot_mapping,
            seq_lens_cpu=inputs.seq_lens_cpu if self._host_lengths else None,
        )

    def _context(
        self, metadata: list[Any], slots: list[Tensor | None], num_tokens: int
    ) -> ForwardContext:
        return ForwardContext(
            attention=self._implementations,  # type: ignore[arg-type] -- gaps are never asked for
            kv_caches=self._caches,
            metadata=metadata,
            slot_mapping=slots,
            num_tokens=num_tokens,
        )


def profiling_context(num_layers: int, num_tokens: int) -> ForwardContext:
    """Return the context of a pass without caches: attention writes zeros."""
    return ForwardContext(
        attention=(),
        kv_caches=(),
        metadata=[None] * num_layers,
        slot_mapping=[None] * num_layers,
        num_tokens=num_tokens,
    )


def _entry(catalog: Catalog, name: str) -> Entry:
    for entry in catalog.entries("attention_backends"):
        if entry.answers_to(name):
            return entry
    raise ModelError(f"attention backend {name!r} is not among the loaded plugins' components")
