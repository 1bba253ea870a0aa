"""Log-probabilities as clients see them: decoded tokens, cumulative sums, a flat container."""

from collections.abc import Iterator, Sequence
from typing import overload

from pegboard.api.errors import RequestError
from pegboard.api.messages import TokenLogprobs
from pegboard.api.outputs import Logprob, PositionLogprobs
from pegboard.api.tokenizers import Tokenizer

__all__ = ["FlatLogprobs", "LogprobsDecoder"]


class FlatLogprobs(Sequence[PositionLogprobs]):
    """Positions in flat arrays: a handful of objects however long the text; dicts on access."""

    __slots__ = ("decoded", "logprobs", "ranks", "starts", "token_ids")

    def __init__(self) -> None:
        """Start empty."""
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.ranks: list[int] = []
        self.decoded: list[str | None] = []
        self.starts: list[int] = [0]

    def append(self, entry: TokenLogprobs, decoded: Sequence[str | None]) -> None:
        """Add one position."""
        self.token_ids += entry.token_ids
        self.logprobs += entry.logprobs
        self.ranks += entry.ranks
        self.decoded += decoded
        self.starts.append(len(self.token_ids))

    def extend(self, other: "FlatLogprobs") -> None:
        """Add another's positions."""
        base = len(self.token_ids)
        self.token_ids += other.token_ids
        self.logprobs += other.logprobs
        self.ranks += other.ranks
        self.decoded += other.decoded
        self.starts += [base + s for s in other.starts[1:]]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def _at(self, index: int) -> PositionLogprobs:
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(f"position {index} of {len(self)}")
        return {
            self.token_ids[i]: Logprob(self.logprobs[i], self.ranks[i], self.decoded[i])
            for i in range(self.starts[index], self.starts[index + 1])
        }

    @overload
    def __getitem__(self, index: int) -> PositionLogprobs: ...
    @overload
    def __getitem__(self, index: slice) -> list[PositionLogprobs]: ...
    def __getitem__(self, index: int | slice) -> PositionLogprobs | list[PositionLogprobs]:
        if isinstance(index, slice):
            return [self._at(i) for i in range(*index.indices(len(self)))]
        return self._at(index)

    def __iter__(self) -> Iterator[PositionLogprobs]:
        return (self._at(i) for i in range(len(self)))


class LogprobsDecoder:
    """Turns the engine core's entries into clients' ones. Shared by all requests of a model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Decode with `tokenizer`; texts of single tokens are kept."""
        self._tokenizer = tokenizer
        self._texts: dict[int, str | None] = {}

    def text(self, token_id: int) -> str | None:
        """Return a token's own text, or None for an id without any."""
        try:
            return self._texts[token_id]
        except KeyError:
            text = self._decode(token_id)
            self._texts[token_id] = text
            return text

    def _decode(self, token_id: int) -> str | None:
        try:
            return self._tokenizer.decode([token_id], skip_special_tokens=False)
        except RequestError:  # rows of the embedding past the vocabulary
            return None

    def texts(self, entry: TokenLogprobs) -> list[str | None]:
        """Return the texts of a position's tokens."""
        return [self.text(t) for t in entry.token_ids]

    def position(self, entry: TokenLogprobs) -> PositionLogprobs:
        """Return a position as a dict, its token first."""
        return {
            token_id: Logprob(logprob, rank, self.text(token_id))
            for token_id, logprob, rank in zip(
                entry.token_ids, entry.logprobs, entry.ranks, strict=True
            )
        }
