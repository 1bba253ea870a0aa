"""Llama, and what has its form: SmolLM, Mistral with its sliding window, many derivatives.

Pre-norms, grouped-query attention with rotary positions, a gated MLP.
"""

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
)

__all__ = ["LlamaForCausalLM"]


class LlamaAttention(Layer):
    """Queries, keys and values from one product; all heads turn alike."""

    def __init__(self, context: ModelContext, index: int, head_size: int, rotary: Rotary) -> None:
        """Build the layer `index`."""
        config = context.config
        heads = config["num_attention_heads"]
        kv_heads = config.get("num_key_value_heads") or heads
        bias = config.get("attention_bias", False)
        hidden = config["hidden_size"]
        self.qkv_proj = QKVParallelLinear(context, hidden, heads, kv_heads, head_size, bias=bias)
        self.o_proj = RowParallelLinear(context, heads * head_size, hidden, bias=bias)
        self.attn = Attention(
            context,
            index,
            heads,
            kv_heads,
            head_size,
            rotary=rotary,
            sliding_window=config.get("sliding_window"),
        )

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return [num_tokens, hidden_size]."""
        return self.o_proj(self.attn(self.qkv_proj(x), positions))


class LlamaDecoderLayer(Layer):
    """Attention and MLP, each on the norm of the residual stream."""

    def __init__(self, context: ModelContext, index: int, head_size: int, rotary: Rotary) -> None:
        """Build the layer `index`."""
        config = context.config
        hidden, eps = config["hidden_size"], config["rms_norm_eps"]
        self.input_layernorm = RMSNorm(context, hidden, eps)
        self.self_attn = LlamaAttention(context, index, head_size, rotary)
        self.post_attention_layernorm = RMSNorm(context, hidden, eps)
        self.mlp = GatedMlp(
            context,
            hidden,
            config["intermediate_size"],
            config.get("hidden_act", "silu"),
            bias=config.get("mlp_bias", False),
        )

    def __call__(self, x: Tensor | None, residual: Tensor, positions: Tensor) -> Tensor:
        """Return what is still to be added to `residual`, which is updated in place.

        Args:
            x: [num_tokens, hidden_size] of the layer before; None before the first.
            residual: [num_tokens, hidden_size].
            positions: [num_tokens].
        """
        norm = self.input_layernorm
        x = self.self_attn(norm(residual) if x is None else norm.add(x, residual), positions)
        return self.mlp(self.post_attention_layernorm.add(x, residual))


class LlamaModel(Layer):
    """The decoder without its head."""

    def __init__(self, context: ModelContext) -> None:
        """Build every layer."""
        config = context.config
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        head_size = config.get("head_dim") or hidden // heads
        rotary = Rotary.from_config(context, head_size)
        self.embed_tokens = VocabEmbedding(
            context,
            config["vocab_size"],
            hidden,
            tied=config.get("tie_word_embeddings", False),
        )
        self.layers = [
            LlamaDecoderLayer(context, index, head_size, rotary)
            for index in range(config["num_hidden_layers"])
        ]
        self.norm = RMSNorm(context, hidden, config["rms_norm_eps"])

    def __call__(
        self, input_ids: Tensor, positions: Tensor, intermediate: Tensor | None = None
    ) -> Tensor:
        """Return [num_tokens, hidden_size] after the last norm."""
        residual = self.embed_tokens(input_ids) if intermediate is None else intermediate
        x = None
        for layer in self.layers:
            x = layer(x, residual, positions)
        return self.norm(residual) if x is None else self.norm.add(x, residual)


class LlamaForCausalLM(CausalLM):
    """The decoder and its head."""

    def __init__(self, context: ModelContext) -> None:
        """Build the model."""
        super().__init__(context, LlamaModel(context))
