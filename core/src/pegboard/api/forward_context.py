"""The one ambient value: what a forward pass needs beside its tensors.

Attention, state mixers and experts are opaque ops that take a layer index and read this. It is
entered with `with` by the model runner around a forward pass, in the thread that runs it.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from pegboard.api.errors import EngineError

if TYPE_CHECKING:
    import torch

    from pegboard.api.attention import AttentionImpl

__all__ = ["ForwardContext", "enter_forward_context", "forward_context"]


class ForwardContext:
    """What one forward pass needs, by layer index.

    Attributes:
        attention: layer index to its implementation.
        kv_caches: layer index to its cache tensors.
        metadata: layer index to the step's metadata of its KV group; None entries in a
            memory-profiling pass, where attention writes zeros.
        slot_mapping: layer index to [num_tokens] int64 slots of its KV group.
        num_tokens: new tokens in the step, without padding.
        extra: what a platform or plugin adds.
    """

    __slots__ = ("attention", "extra", "kv_caches", "metadata", "num_tokens", "slot_mapping")

    def __init__(
        self,
        *,
        attention: "Sequence[AttentionImpl]",
        kv_caches: "Sequence[tuple[torch.Tensor, ...]]",
        metadata: Sequence[Any],
        slot_mapping: "Sequence[torch.Tensor | None]",
        num_tokens: int,
        extra: dict[str, Any] | None = None,
    ) -> None:
        """Keep references; nothing is copied."""
        self.attention = attention
        self.kv_caches = kv_caches
        self.metadata = metadata
        self.slot_mapping = slot_mapping
        self.num_tokens = num_tokens
        self.extra = extra or {}


_CURRENT: ContextVar[ForwardContext | None] = ContextVar("pegboard_forward_context", default=None)


@contextmanager
def enter_forward_context(context: ForwardContext) -> Generator[ForwardContext]:
    """Make `context` the current one for the `with` block."""
    token = _CURRENT.set(context)
    try:
        yield context
    finally:
        _CURRENT.reset(token)


def forward_context() -> ForwardContext:
    """Return the current context.

    Raises:
        EngineError: outside a forward pass.
    """
    context = _CURRENT.get()
    if context is None:
        raise EngineError("no forward pass is running: attention layers run inside a model runner")
    return context
