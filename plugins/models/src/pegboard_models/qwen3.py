"""Qwen 3, dense: Llama's form with norms over each head of queries and keys."""

from pegboard.api.models import ModelContext
from pegboard.layers import CausalLM
from pegboard_models.decoder import Decoder, DecoderStyle, layer_windows

__all__ = ["Qwen3ForCausalLM"]


class Qwen3ForCausalLM(CausalLM):
    """Heads have a size of their own; biases only where the configuration asks for them."""

    def __init__(self, context: ModelContext) -> None:
        """Build the model."""
        bias = context.config.get("attention_bias", False)
        style = DecoderStyle(
            qkv_bias=bias,
            output_bias=bias,
            qk_norm=True,
            windows=layer_windows(context.config),
        )
        super().__init__(context, Decoder(context, style))
