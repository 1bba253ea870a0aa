"""Renderers: chat messages to token ids (and media), independent of HTTP."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from pegboard.api.messages import MediaInput
from pegboard.api.models import ModelDescription
from pegboard.api.plugin import ComponentContext, ComponentSpec
from pegboard.api.tokenizers import Tokenizer

__all__ = ["ChatOptions", "RenderedPrompt", "Renderer", "RendererQuery", "RendererSpec"]


class RendererQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which renderer: by the tokenizer's name, or asked for by name."""

    name: str


class RendererSpec(ComponentSpec, frozen=True, kw_only=True):
    """Describes a `Renderer`; its `target` is the class. `tokenizers` it serves; empty for any."""

    kind: ClassVar[str] = "renderers"

    tokenizers: tuple[str, ...] = ()

    def reasons_against(self, query: RendererQuery) -> list[str]:
        """Fits if named, or if it serves the tokenizer."""
        if query.name in (self.name, *self.aliases) or not self.tokenizers:
            return []
        if query.name in self.tokenizers:
            return []
        return [f"serves tokenizers {', '.join(self.tokenizers)}, not {query.name}"]


class ChatOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How messages become a prompt.

    Attributes:
        chat_template: Jinja source instead of the checkpoint's, or None.
        add_generation_prompt: end with the assistant's opening.
        continue_final_message: leave the last message open.
        tools: JSON tool definitions as the OpenAI protocol writes them, or None.
        documents: for templates that take them.
        template_kwargs: further variables of the template.
        add_special_tokens: let the tokenizer add its own; templates usually write them.
    """

    chat_template: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    tools: list[dict[str, Any]] | None = None
    documents: list[dict[str, Any]] | None = None
    template_kwargs: dict[str, Any] = {}
    add_special_tokens: bool = False


class RenderedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt ready for the engine: `text` is None where it was given as ids."""

    token_ids: list[int]
    text: str | None = None
    media: list[MediaInput] = []


class Renderer(ABC):
    """Messages to a prompt. Thread-safe; bounded in time and size."""

    def __init__(
        self, context: ComponentContext, description: ModelDescription, tokenizer: Tokenizer
    ) -> None:
        """Compile the checkpoint's template in a sandbox.

        Raises:
            ModelError: the template does not compile.
        """
        self.context = context
        self.description = description
        self.tokenizer = tokenizer

    @abstractmethod
    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], options: ChatOptions
    ) -> RenderedPrompt:
        """Render a conversation.

        Args:
            messages: as the OpenAI protocol writes them; content is text or a list of parts.
            options: see `ChatOptions`.

        Raises:
            InvalidRequest: no template, the template refuses the messages, or it exceeds its
                bounds of time, steps or size.
        """
