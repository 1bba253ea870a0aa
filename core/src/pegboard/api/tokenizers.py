"""Tokenizers as the front end sees them. No torch, no transformers."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from pegboard.api.models import ModelDescription
from pegboard.api.plugin import ComponentContext, ComponentSpec

__all__ = ["Tokenizer", "TokenizerQuery", "TokenizerSpec"]


class TokenizerQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which tokenizer component: the checkpoint's own, or --tokenizer-mode's."""

    name: str


class TokenizerSpec(ComponentSpec, frozen=True, kw_only=True):
    """Describes a `Tokenizer`; its `target` is "module:function(context, description)"."""

    kind: ClassVar[str] = "tokenizers"

    def reasons_against(self, query: TokenizerQuery) -> list[str]:
        """Fits exactly the one that is asked for."""
        if query.name in (self.name, *self.aliases):
            return []
        return [f"{query.name} was asked for"]


class Tokenizer(ABC):
    """Text to ids and back. Thread-safe: encoding runs in a pool."""

    def __init__(self, context: ComponentContext, description: ModelDescription) -> None:
        """Read the tokenizer that the description names.

        Raises:
            ModelError: unreadable; one line that names the file.
        """
        self.context = context

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Number of ids it knows, added tokens included."""

    @property
    @abstractmethod
    def special_ids(self) -> frozenset[int]:
        """Ids left out of text by `skip_special_tokens`."""

    @property
    @abstractmethod
    def special_tokens(self) -> dict[str, str]:
        """Roles to token text for chat templates: bos_token, eos_token, pad_token, unk_token."""

    @abstractmethod
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`; with special tokens as the checkpoint asks."""

    @abstractmethod
    def decode(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> str:
        """Return the text of ids; incomplete UTF-8 becomes U+FFFD.

        Raises:
            InvalidRequest: an id outside the vocabulary.
        """

    @abstractmethod
    def token(self, token_id: int) -> str | None:
        """Return the vocabulary entry as it is spelt, or None outside the vocabulary."""

    @abstractmethod
    def token_id(self, token: str) -> int | None:
        """Return the id of a vocabulary entry, or None."""

    @abstractmethod
    def max_chars_per_token(self) -> int:
        """Return the length of the longest token; bounds the text a context can hold."""
