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
            aliases=("LLaMAForCausalLM",),
            target="pegboard_models.llama:LlamaForCausalLM",
            example="pegboard_models.examples:llama",
            summary="Llama 1 to 3, SmolLM 1 and 2, and other models in that form.",
        ),
        ModelArchitectureSpec(
            name="MistralForCausalLM",
            target="pegboard_models.llama:MistralForCausalLM",
            example="pegboard_models.examples:mistral",
            summary="Mistral, with and without a sliding window.",
        ),
        ModelArchitectureSpec(
            name="Qwen2ForCausalLM",
            target="pegboard_models.qwen2:Qwen2ForCausalLM",
            example="pegboard_models.examples:qwen2",
            summary="Qwen 2 and 2.5.",
        ),
        ModelArchitectureSpec(
            name="Qwen3ForCausalLM",
            target="pegboard_models.qwen3:Qwen3ForCausalLM",
            example="pegboard_models.examples:qwen3",
            summary="Qwen 3, dense.",
        ),
        ModelArchitectureSpec(
            name="Gemma3ForCausalLM",
            target="pegboard_models.gemma3:Gemma3ForCausalLM",
            example="pegboard_models.examples:gemma3",
            summary="Gemma 3, text.",
        ),
    ]
