"""Declares the broken models."""

from pegboard.api.models import ModelArchitectureSpec
from pegboard.api.plugin import PluginInfo, hookimpl

PLUGIN = PluginInfo(name="broken_models", version="0", api="1.0", summary="Planted faults.")

EXAMPLES = {
    "WrongRope": "llama",
    "WrongEpsilon": "llama",
    "SwappedWeights": "llama",
    "HeadOffByOneRow": "llama",
    "IgnoresWindow": "mistral",
    "SwappedLayerTypes": "gemma3",
    "PositionsOffByOne": "qwen3",
    "RemembersTheLastBatch": "llama",
    "IgnoresUnknownTensors": "llama",
}


@hookimpl
def model_architectures() -> list[ModelArchitectureSpec]:
    return [
        ModelArchitectureSpec(
            name=name,
            target=f"tests.unit.core.conformance.broken_models:{name}",
            example=f"pegboard_models.examples:{example}",
        )
        for name, example in EXAMPLES.items()
    ]
