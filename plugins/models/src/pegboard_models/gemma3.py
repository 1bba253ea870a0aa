"""Gemma 3, text: mostly sliding layers, a norm before and after each part, norms of heads.

Norm weights are stored less one. Sliding and full layers turn by tables of their own. The
embedding is scaled, and shared with the head.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from pegboard.api.models import ModelContext
from pegboard.layers import (
    Attention,
    CausalLM,
    GatedMlp,
    Layer,
    QKVParallelLinear,
    RMSNorm,
    Rotary,
    RowParallelLinear,
    VocabEmbedding,
    WeightMap,
    rope_parameters,
)

__all__ = ["Gemma3ForCausalLM"]

_SLIDING, _FULL = "sliding_attention", "full_attention"
_FORMER_PATTERN = 6  # before `layer_types`: every sixth layer is full


def _norm(context: ModelContext, size: int) -> RMSNorm:
    return RMSNorm(context, size, context.config["rms_norm_eps"], weight_offset=1.0)


def _layer_types(config: Mapping[str, Any]) -> list[str]:
    types = config.get("layer_types")
    if types is not None:
        return list(types)
    pattern = config.get("sliding_window_pattern", _FORMER_PATTERN)
    return [
        _SLIDING if (index + 1) % pattern else _FULL for index in range(config["num_hidden_layers"])
    ]


def _rotary(context: ModelContext, layer_type: str) -> Rotary:
    """Read the layer type's table; before there was one a type, sliding layers had a bare base."""
    config = context.config
    parameters = rope_parameters(config, layer_type)
    if not config.get("rope_parameters"):
        if layer_type == _SLIDING:
            base = config.get("rope_local_base_freq", 10_000.0)
            parameters = {**parameters, "rope_type": "default", "rope_theta": base}
        else:
            parameters["rope_theta"] = config.get("rope_theta", 1_000_000.0)
    return Rotary(context, config["head_dim"], parameters)


class Gemma3Attention(Layer):
    """Grouped-query attention over normalised heads, all tokens or a window."""

    def __init__(self, context: ModelContext, index: int, layer_type: str, rotary: Rotary) -> None:
        """Build the layer `index`."""
        config = context.config
        hidden, heads, size = (
            config[name] for name in ("hidden_size", "num_attention_heads", "head_dim")
        )
        kv_heads = config["num_key_value_heads"]
        bias = config.get("attention_bias", False)
        self.qkv_proj = QKVParallelLinear(context, hidden, heads, kv_heads, size, bias=bias)
        self.o_proj = RowParallelLinear(context, heads * size, hidden, bias=bias)
        self.q_norm, self.k_norm = _norm(context, size), _norm(context, size)
        self.attn = Attention(
            context,
            index,
            heads,
            kv_heads,
            size,
            rotary=rotary,
            q_norm=self.q_norm,
            k_norm=self.k_norm,
            scale=config.get("query_pre_attn_scalar", size) ** -0.5,
            sliding_window=config["sliding_window"] if layer_type == _SLIDING else None,
            soft_cap=config.get("attn_logit_softcapping"),
        )

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return [num_tokens, hidden_size]."""
        return self.o_proj(self.attn(self.qkv_proj(x), positions))


class Gemma3DecoderLayer(Layer):
    """Attention and MLP, each between two norms."""

    def __init__(self, context: ModelContext, index: int, layer_type: str, rotary: Rotary) -> None:
        """Build the layer `index`."""
        config = context.config
        hidden = config["hidden_size"]
        activation = config.get("hidden_activation") or "gelu_pytorch_tanh"
        self.input_layernorm = _norm(context, hidden)
        self.self_attn = Gemma3Attention(context, index, layer_type, rotary)
        self.post_attention_layernorm = _norm(context, hidden)
        self.pre_feedforward_layernorm = _norm(context, hidden)
        self.mlp = GatedMlp(context, hidden, config["intermediate_size"], activation)
        self.post_feedforward_layernorm = _norm(context, hidden)

    def __call__(self, x: Tensor | None, residual: Tensor, positions: Tensor) -> Tensor:
        """Return what is still to be added to `residual`, which is updated in place.

        Args:
            x: [num_tokens, hidden_size] of the layer before; None before the first.
            residual: [num_tokens, hidden_size].
            positions: [num_tokens].
        """
        norm = self.input_layernorm
        x = self.self_attn(norm(residual) if x is None else norm.add(x, residual), positions)
        x = self.pre_feedforward_layernorm.add(self.post_attention_layernorm(x), residual)
        return self.post_feedforward_layernorm(self.mlp(x))


class Gemma3Model(Layer):
    """Embedding, layers and the last norm."""

    def __init__(self, context: ModelContext, *, tied: bool) -> None:
        """Build every layer."""
        config = context.config
        hidden = config["hidden_size"]
        self.embed_tokens = VocabEmbedding(
            context, config["vocab_size"], hidden, tied=tied, scale=hidden**0.5
        )
        types = _layer_types(config)
        tables = {kind: _rotary(context, kind) for kind in dict.fromkeys(types)}
        self.layers = [
            Gemma3DecoderLayer(context, index, kind, tables[kind])
            for index, kind in enumerate(types)
        ]
        self.norm = _norm(context, hidden)

    def __call__(
        self, input_ids: Tensor, positions: Tensor, intermediate: Tensor | None = None
    ) -> Tensor:
        """Return [num_tokens, hidden_size] after the last norm."""
        residual = self.embed_tokens(input_ids) if intermediate is None else intermediate
        x = None
        for layer in self.layers:
            x = layer(x, residual, positions)
        return self.norm(residual) if x is None else self.norm.add(x, residual)


class Gemma3ForCausalLM(CausalLM):
    """The decoder and its head; of a checkpoint with images, the text model alone."""

    weight_map = WeightMap(
        prefixes=(
            ("language_model.model.", "model."),
            ("language_model.lm_head.", "lm_head."),
            ("model.language_model.", "model."),
        ),
        ignored=("rotary_emb.", "vision_tower.", "multi_modal_projector."),
    )

    def __init__(self, context: ModelContext) -> None:
        """Build the model."""
        config = context.config
        tied = config.get("tie_word_embeddings", True)
        soft_cap = config.get("final_logit_softcapping")
        model = Gemma3Model(context, tied=tied)
        super().__init__(context, model, tied=tied, soft_cap=soft_cap)
