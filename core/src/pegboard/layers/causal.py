"""What every decoder with a language-model head has in common, around the decoder itself."""

from collections.abc import Iterable, Mapping
from typing import ClassVar

from torch import Tensor

from pegboard.api.models import ModelContext
from pegboard.layers.base import Layer, weight_slots
from pegboard.layers.loading import WeightMap, load_weights
from pegboard.layers.vocabulary import LmHead

__all__ = ["CausalLM"]


class CausalLM(Layer):
    """A decoder as `model` and its head as `lm_head`; satisfies `pegboard.api.models.Model`.

    A family subclasses it and hands its decoder over.

    Attributes:
        weight_map: how the family's checkpoints spell names.
        model: the decoder; has `embed_tokens`, and is called as the model is.
        lm_head: the head.
    """

    weight_map: ClassVar[WeightMap] = WeightMap()

    def __init__(
        self,
        context: ModelContext,
        model: Layer,
        *,
        tied: bool | None = None,
        soft_cap: float | None = None,
    ) -> None:
        """Add the head.

        Args:
            context: where the model is built.
            model: the decoder.
            tied: whether the head is the embedding; None reads `tie_word_embeddings`.
            soft_cap: of the logits.
        """
        config = context.config
        if tied is None:
            tied = config.get("tie_word_embeddings", False)
        self.model = model
        self.lm_head = LmHead(
            context,
            config["vocab_size"],
            config["hidden_size"],
            embedding=model.embed_tokens if tied else None,  # type: ignore[attr-defined]
            soft_cap=soft_cap,
        )

    def __call__(
        self, input_ids: Tensor, positions: Tensor, intermediate: Tensor | None = None
    ) -> Tensor:
        """See `pegboard.api.models.Model`."""
        return self.model(input_ids, positions, intermediate)  # type: ignore[operator]

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """See `pegboard.api.models.Model`."""
        return self.lm_head(hidden)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """See `pegboard.api.models.Model`."""
        load_weights(self, weights, self.weight_map)

    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """See `pegboard.api.models.Model`."""
        return {name: slot.shape for name, slot in weight_slots(self).items() if not slot.optional}
