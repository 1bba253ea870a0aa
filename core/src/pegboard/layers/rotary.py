"""Rotary position embeddings: one table of cosines and sines, shared by the layers that use it."""

from collections.abc import Mapping
from typing import Any

import torch

from pegboard.api.models import ModelContext
from pegboard.layers.rope_scaling import rope_frequencies, rope_parameters

__all__ = ["Rotary"]


class Rotary:
    """The table that `rotary_embedding` and `rope_and_write_kv` read.

    Attributes:
        cos_sin: [max_model_len, rotary_size] float32: cosines, then sines.
        interleaved: pairs are neighbours; else the halves of the rotary part.
    """

    __slots__ = ("cos_sin", "interleaved")

    def __init__(
        self,
        context: ModelContext,
        head_size: int,
        parameters: Mapping[str, Any],
        *,
        interleaved: bool = False,
    ) -> None:
        """Compute the table.

        Args:
            context: where the model is built; says how many positions are needed.
            head_size: of queries and keys.
            parameters: as `rope_parameters` returns.
            interleaved: see the attribute.

        Raises:
            ModelError: an unknown rope_type.
        """
        length = context.max_model_len
        frequencies, factor = rope_frequencies(parameters, head_size, length)
        angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
        table = torch.empty((length, 2 * len(frequencies)), dtype=torch.float32)
        cosines, sines = table.chunk(2, dim=-1)
        torch.cos(angles, out=cosines).mul_(factor)
        torch.sin(angles, out=sines).mul_(factor)
        self.cos_sin = table.to(context.device)
        self.interleaved = interleaved

    @classmethod
    def from_config(
        cls,
        context: ModelContext,
        head_size: int,
        *,
        layer_type: str | None = None,
        interleaved: bool = False,
    ) -> "Rotary":
        """Read the parameters from the model's configuration; see `rope_parameters`."""
        parameters = rope_parameters(context.config, layer_type)
        return cls(context, head_size, parameters, interleaved=interleaved)
