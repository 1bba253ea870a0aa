"""Attention backends with one planted fault each; the kit must catch every one."""

import msgspec
import torch

from pegboard.api.attention import (
    AttentionImpl,
    AttentionLayer,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
    KVLayout,
)
from pegboard.api.kv import KVGroup
from pegboard.builtin.reference_attention import ReferenceBackend


class ChangedLayer(ReferenceBackend):
    """Computes for another layer than it was asked for."""

    changes: dict[str, object] = {}

    def implementation(self, layer: AttentionLayer, sinks=None) -> AttentionImpl:
        changed = {k: v(layer) if callable(v) else v for k, v in self.changes.items()}
        return super().implementation(msgspec.structs.replace(layer, **changed))


class IgnoresWindow(ChangedLayer):
    changes = {"sliding_window": None}


class WindowOffByOne(ChangedLayer):
    changes = {"sliding_window": lambda layer: layer.sliding_window and layer.sliding_window + 1}


class IgnoresSoftCap(ChangedLayer):
    changes = {"soft_cap": None}


class WrongScale(ChangedLayer):
    changes = {"scale": lambda layer: layer.scale * 1.1}


class ChangedBuilder(ReferenceBackend):
    """Reads other metadata than it was given."""

    def change(self, common: CommonAttentionMetadata) -> None:
        raise NotImplementedError

    def metadata_builder(self, group: KVGroup) -> AttentionMetadataBuilder:
        inner, change = super().metadata_builder(group), self.change

        class Builder(AttentionMetadataBuilder):
            def build(self, common: CommonAttentionMetadata) -> object:
                change(common)
                return inner.build(common)

        return Builder()


class ForgetsLastToken(ChangedBuilder):
    def change(self, common: CommonAttentionMetadata) -> None:
        common.seq_lens = (common.seq_lens - 1).clamp(min=1)


class SwapsBlockTables(ChangedBuilder):
    def change(self, common: CommonAttentionMetadata) -> None:
        common.block_table = common.block_table.roll(1, 0)


class WritesPadding(ChangedBuilder):
    def change(self, common: CommonAttentionMetadata) -> None:
        common.slot_mapping = common.slot_mapping.clamp(min=0)


class ChangedForward(ReferenceBackend):
    """Changes tensors around an honest forward."""

    def implementation(self, layer: AttentionLayer, sinks=None) -> AttentionImpl:
        inner, outer = super().implementation(layer), self

        class Impl(AttentionImpl):
            def forward(self, query, key, value, kv_cache, metadata, output) -> None:
                outer.around(inner, query, key, value, kv_cache, metadata, output)

        return Impl()

    def around(self, inner, query, key, value, kv_cache, metadata, output) -> None:
        raise NotImplementedError


class MixesUpKVHeads(ChangedForward):
    def around(self, inner, query, key, value, kv_cache, metadata, output) -> None:
        inner.forward(query, key.flip(1), value, kv_cache, metadata, output)


class AddsNoise(ChangedForward):
    def around(self, inner, query, key, value, kv_cache, metadata, output) -> None:
        inner.forward(query, key, value, kv_cache, metadata, output)
        output += torch.rand_like(output) * 1e-2 * torch.finfo(output.dtype).eps ** 0.5


class OverwritesNullBlock(ChangedForward):
    def around(self, inner, query, key, value, kv_cache, metadata, output) -> None:
        inner.forward(query, key, value, kv_cache, metadata, output)
        kv_cache[0][0] = torch.rand(())


class LayoutLies(ReferenceBackend):
    def kv_layout(self, layer: AttentionLayer, num_blocks: int) -> KVLayout:
        return msgspec.structs.replace(super().kv_layout(layer, num_blocks), block_dim=1)


class LayoutGrows(ReferenceBackend):
    def kv_layout(self, layer: AttentionLayer, num_blocks: int) -> KVLayout:
        return super().kv_layout(layer, num_blocks * num_blocks)
