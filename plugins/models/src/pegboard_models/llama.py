"""Llama 1 to 3 and what has its form: SmolLM, and Mistral, whose layers may all slide."""

from pegboard.api.models import ModelContext
from pegboard.layers import CausalLM
from pegboard_models.decoder import Decoder, DecoderStyle

__all__ = ["LlamaForCausalLM", "MistralForCausalLM"]


class LlamaForCausalLM(CausalLM):
    """Biases only where the configuration asks for them."""

    def __init__(self, context: ModelContext) -> None:
        """Build the model."""
        config = context.config
        bias = config.get("attention_bias", False)
        style = DecoderStyle(
            qkv_bias=bias,
            output_bias=bias,
            mlp_bias=config.get("mlp_bias", False),
            windows=[None] * config["num_hidden_layers"],
        )
        super().__init__(context, Decoder(context, style))


class MistralForCausalLM(CausalLM):
    """Llama with one sliding window for all layers, or none."""

    def __init__(self, context: ModelContext) -> None:
        """Build the model."""
        config = context.config
        windows = [config.get("sliding_window")] * config["num_hidden_layers"]
        super().__init__(context, Decoder(context, DecoderStyle(windows=windows)))
