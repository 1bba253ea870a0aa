"""A `Tokenizer` over the tokenizers library, for components that build one from any format."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from pegboard.api.errors import InvalidRequest
from pegboard.api.models import ModelDescription
from pegboard.api.plugin import ComponentContext
from pegboard.api.tokenizers import Tokenizer

if TYPE_CHECKING:
    import tokenizers

__all__ = ["FastTokenizer"]


class FastTokenizer(Tokenizer):
    """Wraps a finished `tokenizers.Tokenizer`; a subclass's `__init__` builds it.

    Text is decoded as the library's decoder gives it; nothing is cleaned up afterwards.
    """

    def __init__(
        self,
        context: ComponentContext,
        description: ModelDescription,
        backend: "tokenizers.Tokenizer",
        special_tokens: Mapping[str, str],
        *,
        longest_token: int | None = None,
    ) -> None:
        """Take the tokenizer over.

        Args:
            context: of the component.
            description: whose model the tokenizer serves.
            backend: the finished tokenizer; its padding and truncation are switched off.
            special_tokens: roles to token text, such as {"bos_token": "<s>"}.
            longest_token: characters of the longest token, where it is known already.
        """
        super().__init__(context, description)
        backend.no_padding()
        backend.no_truncation()
        self._backend = backend
        self._special_tokens = dict(special_tokens)
        self._known_longest = longest_token
        self._vocab_size = backend.get_vocab_size(with_added_tokens=True)
        added = backend.get_added_tokens_decoder()
        self._special_ids = frozenset(i for i, token in added.items() if token.special)
        # A model's embedding may have more rows than its tokenizer has tokens; such ids are
        # legal and stand for no text.
        last_added = max(added, default=0) + 1
        self._num_ids = max(self._vocab_size, last_added, description.vocab_size)

    @property
    def vocab_size(self) -> int:
        """Number of ids it knows, added tokens included."""
        return self._vocab_size

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids left out of text by `skip_special_tokens`."""
        return self._special_ids

    @property
    def special_tokens(self) -> dict[str, str]:
        """Roles to token text for chat templates."""
        return dict(self._special_tokens)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`; special tokens written in it become their ids.

        Raises:
            InvalidRequest: the text holds lone surrogates, which no UTF-8 can spell.
        """
        try:
            return self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        except (TypeError, UnicodeEncodeError) as error:
            raise InvalidRequest(
                "the text is not valid Unicode (it holds a lone surrogate); send valid UTF-8"
            ) from error

    def decode(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> str:
        """Return the text of ids; incomplete UTF-8 becomes U+FFFD.

        `spaces_between_special_tokens` has no effect here: such tokenizers write no spaces
        that are not in the tokens.

        Raises:
            InvalidRequest: an id outside the vocabulary.
        """
        del spaces_between_special_tokens
        ids = list(token_ids)
        if ids and not (min(ids) >= 0 and max(ids) < self._num_ids):
            wrong = min(ids) if min(ids) < 0 else max(ids)
            raise InvalidRequest(
                f"token id {wrong} is outside the vocabulary; ids go from 0 to {self._num_ids - 1}"
            )
        return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)

    def token(self, token_id: int) -> str | None:
        """Return the vocabulary entry as it is spelt, or None outside the vocabulary."""
        if not 0 <= token_id < self._num_ids:
            return None
        return self._backend.id_to_token(token_id)

    def token_id(self, token: str) -> int | None:
        """Return the id of a vocabulary entry, or None."""
        return self._backend.token_to_id(token)

    def max_chars_per_token(self) -> int:
        """Return the length of the longest token; bounds the text a context can hold.

        A normalizer may shorten text before it is cut into tokens (three letters of decomposed
        Hangul become one), so the bound is generous where there is one.
        """
        return self._longest_token * (3 if self._backend.normalizer is not None else 1)

    @cached_property
    def _longest_token(self) -> int:
        if self._known_longest is not None:
            return self._known_longest
        return max(map(len, self._backend.get_vocab(with_added_tokens=True)), default=1)
