"""The model author's kit: parallel layers, rotary variants, attention and streaming loads.

A model is a tree of `Layer` objects whose attribute names are the checkpoint's. It is built in a
`ModelContext`, takes its weights with `load_weights`, and is called with token ids and positions.
"""

from pegboard.layers.attention import Attention
from pegboard.layers.base import Layer, WeightSlot, packed_bytes, walk_layers, weight_slots
from pegboard.layers.causal import CausalLM
from pegboard.layers.linear import (
    ColumnParallelLinear,
    GateUpLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from pegboard.layers.loading import WeightMap, load_weights
from pegboard.layers.mlp import GatedMlp
from pegboard.layers.norm import RMSNorm
from pegboard.layers.rope_scaling import rope_parameters
from pegboard.layers.rotary import Rotary
from pegboard.layers.vocabulary import LmHead, VocabEmbedding

__all__ = [
    "Attention",
    "CausalLM",
    "ColumnParallelLinear",
    "GateUpLinear",
    "GatedMlp",
    "Layer",
    "LmHead",
    "MergedColumnParallelLinear",
    "QKVParallelLinear",
    "RMSNorm",
    "ReplicatedLinear",
    "Rotary",
    "RowParallelLinear",
    "VocabEmbedding",
    "WeightMap",
    "WeightSlot",
    "load_weights",
    "packed_bytes",
    "rope_parameters",
    "walk_layers",
    "weight_slots",
]
