"""Token ids to text as they come: UTF-8 safe across tokens, linear in the number of tokens.

The text that has been given out never changes, and all of it together is what decoding the whole
sequence behind its prompt gives. Knows no requests and no stop strings.
"""

from collections.abc import Sequence

from pegboard.api.tokenizers import Tokenizer

__all__ = ["IncrementalDetokenizer"]

_REPLACEMENT = "\ufffd"
#: Tokens of context that decide how the next one reads (a leading space, a joined mark).
_CONTEXT_TOKENS = 8
#: The window is cut back to its context when it is longer than this.
_WINDOW_TOKENS = 24
#: A UTF-8 character has at most four bytes: past this many tokens an open end is not one.
_MAX_OPEN_TOKENS = 8


class IncrementalDetokenizer:
    """The text of one growing sequence.

    Keeps a short window of the last ids and how many characters of the window's text are out.
    Text that ends in U+FFFD may be an incomplete character, and waits for the next ids.
    """

    __slots__ = ("_open", "_skip", "_spaces", "_taken", "_tokenizer", "_window")

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        """Start behind a prompt, whose last tokens decide how the first output token reads."""
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._spaces = spaces_between_special_tokens
        self._window: list[int] = list(prompt_token_ids[-_CONTEXT_TOKENS:])
        context = self._decode()
        if context.endswith(_REPLACEMENT):  # the prompt ends inside a character
            self._window, context = [], ""
        self._taken = len(context)
        self._open = 0  # ids since text was last complete

    def _decode(self) -> str:
        if not self._window:
            return ""
        return self._tokenizer.decode(
            self._window,
            skip_special_tokens=self._skip,
            spaces_between_special_tokens=self._spaces,
        )

    def push(self, token_ids: Sequence[int]) -> str:
        """Take ids and return the text that is certain now; may be empty."""
        if not token_ids:
            return ""
        self._window += token_ids
        self._open += len(token_ids)
        text = self._decode()
        end = len(text)
        if not text.endswith(_REPLACEMENT):
            self._open = 0
        elif self._open <= _MAX_OPEN_TOKENS:
            return ""
        else:
            end -= 1  # bytes that are no text: all but the last mark is settled
        piece = text[self._taken : end]
        self._taken = max(self._taken, end)
        if len(self._window) > _WINDOW_TOKENS:
            self._cut(len(text) - self._taken)
        return piece

    def finish(self) -> str:
        """Return the text that was held back, incomplete characters as U+FFFD."""
        if not self._open:
            return ""
        text = self._decode()
        piece = text[self._taken :]
        self._taken, self._open = len(text), 0
        return piece

    def _cut(self, num_pending: int) -> None:
        """Keep only the context; its text ends as the window's did, so `num_pending` stays."""
        whole = self._window
        self._window = whole[-_CONTEXT_TOKENS:]
        text = self._decode()
        if len(text) < num_pending:
            self._window = whole
        else:
            self._taken = len(text) - num_pending
