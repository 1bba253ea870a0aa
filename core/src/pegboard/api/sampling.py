"""Logits processors: plugins that change logits before a token is sampled."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from pegboard.api.plugin import ComponentContext, ComponentSpec
from pegboard.api.sampling_params import SamplingParams

if TYPE_CHECKING:
    import torch

__all__ = [
    "LogitsProcessor",
    "LogitsProcessorConfig",
    "LogitsProcessorQuery",
    "LogitsProcessorSpec",
]


class LogitsProcessorQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which processor, by name (--logits-processors)."""

    name: str


class LogitsProcessorSpec(ComponentSpec, frozen=True, kw_only=True):
    """Describes a `LogitsProcessor`; its `target` is the class.

    Attributes:
        argmax_invariant: it never changes which token is most likely; skipped for greedy rows.
    """

    kind: ClassVar[str] = "logits_processors"

    argmax_invariant: bool = False

    def reasons_against(self, query: LogitsProcessorQuery) -> list[str]:
        """Fits exactly the one that is asked for."""
        if query.name in (self.name, *self.aliases):
            return []
        return [f"{query.name} was asked for"]


class LogitsProcessorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds a processor allocates its buffers for."""

    max_num_rows: int
    vocab_size: int
    device: str


class LogitsProcessor(ABC):
    """Keeps its own state a row, updated by diffs; touches only rows that ask for it."""

    def __init__(self, context: ComponentContext, config: LogitsProcessorConfig) -> None:
        """Keep what it is built for."""
        self.context = context
        self.config = config

    @classmethod
    def validate(cls, params: SamplingParams) -> None:
        """Check a request's `extra_args` in the front end.

        Raises:
            InvalidRequest: naming the argument.
        """
        del params

    @abstractmethod
    def add_row(
        self, row: int, params: SamplingParams, token_ids: Sequence[int], num_prompt_tokens: int
    ) -> bool:
        """Take a request in; return whether it does anything for it."""

    @abstractmethod
    def remove_row(self, row: int) -> None:
        """Forget a row; unknown rows are ignored."""

    @abstractmethod
    def apply(self, logits: "torch.Tensor", rows: "torch.Tensor", batch: Any) -> None:  # noqa: ANN401
        """Change logits in place.

        Args:
            logits: [num_rows, vocab_size] float32.
            rows: [num_rows] int64; the batch row of each line.
            batch: read-only view: `token_ids` [max_num_rows, max_model_len] int32 and
                `num_tokens` [max_num_rows] int32, on the device.
        """
