"""Qwen 2 and 2.5: Llama's form with biases on queries, keys and values."""

from pegboard.api.models import ModelContext
from pegboard.layers import CausalLM
from pegboard_models.decoder import Decoder, DecoderStyle, layer_windows

__all__ = ["Qwen2ForCausalLM"]


class Qwen2ForCausalLM(CausalLM):
    """Later layers may slide."""

    def __init__(self, context: ModelContext) -> None:
        """Build the model."""
        style = DecoderStyle(qkv_bias=True, windows=layer_windows(context.config))
        super().__init__(context, Decoder(context, style))
