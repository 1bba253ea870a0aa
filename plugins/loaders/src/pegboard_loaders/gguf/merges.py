"""The merge list of a BPE tokenizer, from pairs as written or from the scores of pieces."""

from collections.abc import Sequence

from pegboard.api.errors import ModelError

__all__ = ["merges_from_pairs", "merges_from_scores"]


def merges_from_pairs(lines: Sequence[str], source: str) -> list[tuple[str, str]]:
    """Split each line at its space. Whether the parts are tokens, the tokenizer checks.

    Raises:
        ModelError: a line is no pair.
    """
    merges = []
    for number, line in enumerate(lines):
        left, space, right = line.partition(" ")
        if not space:
            raise ModelError(
                f"{source}: merge {number} of tokenizer.ggml.merges, {line!r}, is not a pair"
            )
        merges.append((left, right))
    return merges


def merges_from_scores(ids: dict[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Derive the merges of SentencePiece BPE, where the pair with the best-scored whole goes first.

    Every way to cut a piece into two pieces is a merge of that piece's rank; equal ranks are
    ordered by the ids of the parts.

    Args:
        ids: id by token text.
        scores: by id.
    """
    merges: list[tuple[str, str]] = []
    for token in sorted(ids, key=lambda token: (-scores[ids[token]], ids[token])):
        cuts = [
            (ids[token[:cut]], ids[token[cut:]], cut)
            for cut in range(1, len(token))
            if token[:cut] in ids and token[cut:] in ids
        ]
        if len(cuts) > 1:
            cuts.sort()
        merges += [(token[:cut], token[cut:]) for *_, cut in cuts]
    return merges
