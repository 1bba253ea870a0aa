"""The gated MLP of most decoders."""

from torch import Tensor

from pegboard.api.errors import ModelError
from pegboard.api.models import ModelContext
from pegboard.layers.base import Layer
from pegboard.layers.linear import GateUpLinear, RowParallelLinear
from pegboard.ops.reference import Activation

__all__ = ["GatedMlp"]

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}


class GatedMlp(Layer):
    """down(act(gate(x)) * up(x)), with gate and up as one product."""

    def __init__(
        self,
        context: ModelContext,
        hidden_size: int,
        intermediate_size: int,
        activation: str,
        *,
        bias: bool = False,
    ) -> None:
        """Build both products.

        Args:
            activation: as Hugging Face names it.

        Raises:
            ModelError: an unknown activation; names those that are known.
        """
        kind = _ACTIVATIONS.get(activation)
        if kind is None:
            known = ", ".join(_ACTIVATIONS)
            raise ModelError(f"hidden_act {activation!r} is not supported; supported are {known}")
        self.gate_up_proj = GateUpLinear(context, hidden_size, intermediate_size, kind, bias=bias)
        self.down_proj = RowParallelLinear(context, intermediate_size, hidden_size, bias=bias)

    def __call__(self, x: Tensor) -> Tensor:
        """Return [num_tokens, hidden_size], whole on every rank."""
        return self.down_proj(self.gate_up_proj(x))
