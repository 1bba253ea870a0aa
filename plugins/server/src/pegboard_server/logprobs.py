"""Log-probabilities as the protocol writes them."""

from collections.abc import Sequence
from typing import Any

from pegboard.api.outputs import Logprob, PositionLogprobs
from pegboard_server.schemas.responses import (
    ChatLogprobs,
    CompletionLogprobs,
    TokenLogprob,
    TopLogprob,
)

__all__ = ["TextOffsets", "chat_logprobs", "prompt_logprobs_json"]

_LEAST = -9999.0


def _clamped(logprob: float) -> float:
    return logprob if logprob > _LEAST else _LEAST


def _token_text(token_id: int, entry: Logprob, as_ids: bool) -> str:
    if as_ids or entry.decoded_token is None:
        return f"token_id:{token_id}"
    return entry.decoded_token


def chat_logprobs(
    positions: Sequence[PositionLogprobs], token_ids: Sequence[int], top: int, *, as_ids: bool
) -> ChatLogprobs:
    """Return the logprobs of a chat choice.

    Args:
        positions: one entry a token, aligned with `token_ids`.
        token_ids: the tokens themselves.
        top: alternatives to show; -1 for all that are there.
        as_ids: write tokens as token_id:N.
    """
    content = []
    for token_id, position in zip(token_ids, positions, strict=False):
        chosen = position[token_id]
        alternatives = []
        if top:
            ranked = sorted(position.items(), key=lambda item: -item[1].logprob)
            for other_id, entry in ranked if top < 0 else ranked[:top]:
                text = _token_text(other_id, entry, as_ids)
                alternatives.append(
                    TopLogprob(
                        token=text, logprob=_clamped(entry.logprob), bytes=list(text.encode())
                    )
                )
        text = _token_text(token_id, chosen, as_ids)
        content.append(
            TokenLogprob(
                token=text,
                logprob=_clamped(chosen.logprob),
                bytes=list(text.encode()),
                top_logprobs=alternatives,
            )
        )
    return ChatLogprobs(content=content)


class TextOffsets:
    """Builds the four lists of a text completion, keeping the offset between chunks."""

    __slots__ = ("_as_ids", "_offset", "_top")

    def __init__(self, top: int, *, as_ids: bool) -> None:
        """Start at the text's beginning; `top` alternatives a position, -1 for all."""
        self._top = top
        self._as_ids = as_ids
        self._offset = 0

    def add(
        self, positions: Sequence[PositionLogprobs | None], token_ids: Sequence[int]
    ) -> CompletionLogprobs:
        """Return the lists of further tokens; a position without logprobs becomes null.

        A position of None is the first of a prompt: its token has no probability.
        """
        result = CompletionLogprobs(text_offset=[], token_logprobs=[], tokens=[], top_logprobs=[])
        for token_id, position in zip(token_ids, positions, strict=False):
            entry = None if position is None else position.get(token_id)
            text = f"token_id:{token_id}" if entry is None else self._text(token_id, entry)
            result.text_offset.append(self._offset)
            result.tokens.append(text)
            result.token_logprobs.append(None if entry is None else _clamped(entry.logprob))
            result.top_logprobs.append(None if position is None else self._alternatives(position))
            self._offset += len(text)
        return result

    def add_first(self, token_id: int, text: str | None) -> CompletionLogprobs:
        """Return the lists of a prompt's first token."""
        shown = f"token_id:{token_id}" if text is None or self._as_ids else text
        result = CompletionLogprobs(
            text_offset=[self._offset], token_logprobs=[None], tokens=[shown], top_logprobs=[None]
        )
        self._offset += len(shown)
        return result

    def _text(self, token_id: int, entry: Logprob) -> str:
        return _token_text(token_id, entry, self._as_ids)

    def _alternatives(self, position: PositionLogprobs) -> dict[str, float]:
        # The token itself comes first in a position, then the most likely ones.
        shown = list(position.items())
        if self._top >= 0:
            shown = shown[: self._top + 1]
        return {self._text(token_id, e): _clamped(e.logprob) for token_id, e in shown}


def prompt_logprobs_json(
    positions: Sequence[PositionLogprobs | None] | None,
) -> list[dict[str, Any] | None] | None:
    """Return prompt logprobs as id → {logprob, rank, decoded_token}, null where there are none."""
    if positions is None:
        return None
    result: list[dict[str, Any] | None] = []
    for position in positions:
        if position is None:
            result.append(None)
            continue
        result.append(
            {
                str(token_id): {
                    "logprob": _clamped(entry.logprob),
                    "rank": entry.rank,
                    "decoded_token": entry.decoded_token,
                }
                for token_id, entry in position.items()
            }
        )
    return result
