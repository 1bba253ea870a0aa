"""The pre-norm decoder that Llama, Mistral, Qwen 2 and Qwen 3 share.

Each layer adds attention, then a gated MLP, to a residual stream, each on the stream's norm. What
the families do differently is a value in `DecoderStyle`; the families' own files fill it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from torch import Tensor
from torch.compiler import is_compiling

from pegboard.api.forward_context import forward_context
from pegboard.api.models import ModelContext
from pegboard.api.ops import PackedWeights
from pegboard.layers import (
    Attention,
    GatedMlp,
    Layer,
    QKVParallelLinear,
    RMSNorm,
    Rotary,
    RowParallelLinear,
    VocabEmbedding,
)
from pegboard.layers.linear import PackedLinear
from pegboard.ops.decoder import DecoderLayerParts

__all__ = ["Decoder", "DecoderStyle", "layer_windows"]


class DecoderStyle(msgspec.Struct, frozen=True, kw_only=True):
    """What a family does its own way.

    Attributes:
        qkv_bias, output_bias, mlp_bias: which products have biases.
        qk_norm: queries and keys are normalised by head before they turn.
        windows: a layer each: last tokens a query sees; None for all.
    """

    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    windows: Sequence[int | None]


def layer_windows(config: Mapping[str, Any]) -> list[int | None]:
    """Return each layer's sliding window, from `layer_types` or the fields before there were any.

    Args:
        config: under Hugging Face's keys. Without `layer_types`, layers from `max_window_layers`
            on slide if `use_sliding_window` is set.
    """
    num_layers = config["num_hidden_layers"]
    window = config.get("sliding_window")
    types = config.get("layer_types")
    if types is not None:
        return [window if kind == "sliding_attention" else None for kind in types]
    if window is None or not config.get("use_sliding_window", False):
        return [None] * num_layers
    first = config.get("max_window_layers", 0)
    return [window if index >= first else None for index in range(num_layers)]


class DecoderAttention(Layer):
    """Grouped-query attention with rotary positions; `attn` does all between the products."""

    def __init__(
        self, context: ModelContext, index: int, style: DecoderStyle, rotary: Rotary, head_size: int
    ) -> None:
        """Build the layer `index`."""
        config = context.config
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        kv_heads = config.get("num_key_value_heads") or heads
        self.qkv_proj = QKVParallelLinear(
            context, hidden, heads, kv_heads, head_size, bias=style.qkv_bias
        )
        self.o_proj = RowParallelLinear(context, heads * head_size, hidden, bias=style.output_bias)
        eps = config["rms_norm_eps"]
        self.q_norm = RMSNorm(context, head_size, eps) if style.qk_norm else None
        self.k_norm = RMSNorm(context, head_size, eps) if style.qk_norm else None
        self._rotary = rotary
        self.attn = Attention(
            context,
            index,
            heads,
            kv_heads,
            head_size,
            rotary=rotary,
            q_norm=self.q_norm,
            k_norm=self.k_norm,
            sliding_window=style.windows[index],
        )

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return [num_tokens, hidden_size]."""
        return self.o_proj(self.attn(self.qkv_proj(x), positions))

    @property
    def rotary(self) -> Rotary:
        """What turns its queries and keys."""
        return self._rotary


class DecoderLayer(Layer):
    """Attention and MLP, each on the norm of the residual stream."""

    def __init__(
        self, context: ModelContext, index: int, style: DecoderStyle, rotary: Rotary, head_size: int
    ) -> None:
        """Build the layer `index`."""
        config = context.config
        hidden, eps = config["hidden_size"], config["rms_norm_eps"]
        activation = config.get("hidden_act", "silu")
        self.input_layernorm = RMSNorm(context, hidden, eps)
        self.self_attn = DecoderAttention(context, index, style, rotary, head_size)
        self.post_attention_layernorm = RMSNorm(context, hidden, eps)
        self.mlp = GatedMlp(
            context, hidden, config["intermediate_size"], activation, bias=style.mlp_bias
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

    def parts(self) -> DecoderLayerParts:
        """Return what the layer is made of, once it is loaded."""
        attention, mlp = self.self_attn, self.mlp
        packed = (attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj)
        qkv, output, gate_up, down = (_loaded(layer) for layer in packed)
        q_norm, k_norm = attention.q_norm, attention.k_norm
        return DecoderLayerParts(
            input_norm=self.input_layernorm.weight,
            mlp_norm=self.post_attention_layernorm.weight,
            eps=self.input_layernorm.eps,
            qkv=qkv,
            output=output,
            gate_up=gate_up,
            down=down,
            q_norm=None if q_norm is None else q_norm.weight,
            k_norm=None if k_norm is None else k_norm.weight,
            head_eps=0.0 if q_norm is None else q_norm.eps,
            cos_sin=attention.rotary.cos_sin,
            interleaved=attention.rotary.interleaved,
            attention=attention.attn.layer,
            sinks=attention.attn.sinks,
        )


def _loaded(layer: PackedLinear) -> PackedWeights:
    assert layer.packed is not None, "parts are asked for once the layer is loaded"
    return layer.packed


class Decoder(Layer):
    """Embedding, layers and the last norm."""

    def __init__(self, context: ModelContext, style: DecoderStyle) -> None:
        """Build every layer."""
        config = context.config
        hidden = config["hidden_size"]
        head_size = config.get("head_dim") or hidden // config["num_attention_heads"]
        rotary = Rotary.from_config(context, head_size)
        tied = config.get("tie_word_embeddings", False)
        self.embed_tokens = VocabEmbedding(context, config["vocab_size"], hidden, tied=tied)
        self.layers = [
            DecoderLayer(context, index, style, rotary, head_size)
            for index in range(config["num_hidden_layers"])
        ]
        self.norm = RMSNorm(context, hidden, config["rms_norm_eps"])
        # Ranks meet inside layers, so only one rank can run them in a single call.
        alone = context.tensor_parallel.size == 1
        self._run_layers = context.ops.get("decoder_layers") if alone else None
        self._prepared: PackedWeights | None = None

    def __call__(
        self, input_ids: Tensor, positions: Tensor, intermediate: Tensor | None = None
    ) -> Tensor:
        """Return [num_tokens, hidden_size] after the last norm."""
        residual = self.embed_tokens(input_ids) if intermediate is None else intermediate
        x = self._run(residual, positions)
        return self.norm(residual) if x is None else self.norm.add(x, residual)

    def _has_cache(self) -> bool:
        """Whether this pass has a cache, which one that only measures memory has not."""
        index = self.layers[0].self_attn.attn.layer.index
        return forward_context().metadata[index] is not None

    def _run(self, residual: Tensor, positions: Tensor) -> Tensor | None:
        """Run the layers, as one call where an op does that; return as a layer does."""
        if self._run_layers is not None and not is_compiling() and self._has_cache():
            if self._prepared is None:
                self._prepared = self._run_layers.prepare([layer.parts() for layer in self.layers])
            if self._prepared is not None:
                return self._run_layers(residual, positions, self._prepared)
            self._run_layers = None
        x = None
        for layer in self.layers:
            x = layer(x, residual, positions)
        return x
