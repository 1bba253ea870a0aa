"""Declares the model architectures."""

from pegboard.api import API_VERSION, PluginInfo, hookimpl
from pegboard.api.models import ModelArchitectureSpec

PLUGIN = PluginInfo(
    name="models",
    version="0.1.0",
    api=API_VERSION,
    summary="Model architectures: Llama, Mistral, Qwen 2 and 3, Gemma 3.",
)


@hookimpl
def model_architectures() -> list[ModelArchitectureSpec]:
    """One class an architecture."""
    return [
        ModelArchitectureSpec(
            name="LlamaForCausalLM",
            aliases=("LLaMAForCausalLM", "MistralForCausalLM"),
            target="pegboard_models.llama:LlamaForCausalLM",
            summary="Llama 1 to 3, SmolLM 1 and 2, Mistral.",
        ),
    ]
