"""A plugin whose models have one planted fault each; the kit must catch every one."""

from collections.abc import Mapping
from typing import Any

import torch

from pegboard.api.models import ModelContext
from pegboard_models.gemma3 import Gemma3ForCausalLM
from pegboard_models.llama import LlamaForCausalLM, MistralForCausalLM
from pegboard_models.qwen3 import Qwen3ForCausalLM


class Changed:
    """A context whose configuration differs."""

    def __init__(self, context: ModelContext, **changes: Any) -> None:
        self._context = context
        self.config: Mapping[str, Any] = {**context.config, **changes}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class WrongRope(LlamaForCausalLM):
    """Rotary without the llama3 scaling."""

    def __init__(self, context: ModelContext) -> None:
        plain = {"rope_type": "default", "rope_theta": 10_000.0}
        super().__init__(Changed(context, rope_parameters=plain))


class WrongEpsilon(LlamaForCausalLM):
    """A norm's epsilon that was forgotten in the configuration."""

    def __init__(self, context: ModelContext) -> None:
        super().__init__(Changed(context, rms_norm_eps=1e-1))


class SwappedWeights(LlamaForCausalLM):
    """Gate and up projection confused on loading."""

    def load_weights(self, weights) -> None:
        swap = {"gate_proj": "up_proj", "up_proj": "gate_proj"}
        super().load_weights(
            (".".join(swap.get(p, p) for p in name.split(".")), t) for name, t in weights
        )


class HeadOffByOneRow(LlamaForCausalLM):
    """Logits of one token moved to the next."""

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return super().compute_logits(hidden).roll(1, -1)


class IgnoresWindow(MistralForCausalLM):
    """Full attention where the checkpoint slides."""

    def __init__(self, context: ModelContext) -> None:
        super().__init__(Changed(context, sliding_window=None))


class SwappedLayerTypes(Gemma3ForCausalLM):
    """Sliding layers full and full ones sliding."""

    def __init__(self, context: ModelContext) -> None:
        swap = {"sliding_attention": "full_attention", "full_attention": "sliding_attention"}
        types = [swap[t] for t in context.config["layer_types"]]
        super().__init__(Changed(context, layer_types=types))


class PositionsOffByOne(Qwen3ForCausalLM):
    """Positions restart in each chunk: right for a whole prompt, wrong after it."""

    def __call__(self, input_ids, positions, intermediate=None) -> torch.Tensor:
        shifted = positions - positions.min() if positions.numel() > 1 else positions
        return super().__call__(input_ids, shifted, intermediate)


class RemembersTheLastBatch(LlamaForCausalLM):
    """State that leaks from one step to the next."""

    last: torch.Tensor | None = None

    def __call__(self, input_ids, positions, intermediate=None) -> torch.Tensor:
        hidden = super().__call__(input_ids, positions, intermediate)
        if self.last is not None:
            hidden = hidden + 0.05 * self.last
        self.last = hidden[-1:].clone()
        return hidden


class IgnoresUnknownTensors(LlamaForCausalLM):
    """Loads what it knows and says nothing of the rest."""

    def load_weights(self, weights) -> None:
        known = set(self.weight_shapes())
        super().load_weights((n, t) for n, t in weights if n in known)
