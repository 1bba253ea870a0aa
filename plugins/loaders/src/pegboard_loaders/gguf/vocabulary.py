"""The tokenizer section of a GGUF file's metadata, checked: tokens, kinds, merges, roles."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from pegboard.api.errors import ModelError
from pegboard_loaders.gguf.merges import merges_from_pairs, merges_from_scores
from pegboard_loaders.gguf.reader import GgufFile
from pegboard_loaders.gguf.words import word_rule

__all__ = ["TokenKind", "Vocabulary", "read_special_ids", "read_vocabulary"]

_PREFIX = "tokenizer.ggml."
_ROLES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",
    "mask_token": "mask_token_id",
}
_END_IDS = ("eos_token_id", "eot_token_id", "eom_token_id")
#: Texts that end a turn in the chat formats of the field, where a file names no such id.
_END_TEXTS = frozenset(
    ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|endoftext|>", "<end_of_turn>")
)


class TokenKind(IntEnum):
    """What a token is, as the file numbers it."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """All that a tokenizer is built from.

    Attributes:
        source: the file's path, for messages.
        model: "gpt2" (byte-level BPE) or "llama" (SentencePiece BPE).
        pre: name of the word rule; only byte-level tokenizers have one.
        tokens: token text by id.
        ids: id by token text.
        kinds: what each token is, as long as `tokens`.
        merges: pairs, the strongest first.
        roles: bos_token, eos_token… to token text.
        add_bos, add_eos, add_space_prefix: what goes around a prompt.
    """

    source: str
    model: str
    pre: str
    tokens: list[str]
    ids: dict[str, int]
    kinds: list[int]
    merges: list[tuple[str, str]]
    roles: dict[str, str]
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool


def read_vocabulary(file: GgufFile) -> Vocabulary:
    """Read and check the tokenizer section.

    Raises:
        ModelError: a key is missing, of the wrong type, or disagrees with another.
    """
    source, metadata = str(file.path), file.metadata
    model = _get(file, "model", str)
    if model not in ("gpt2", "llama"):
        raise ModelError(
            f"{source}: its tokenizer is of kind {model!r}; gpt2 and llama are supported"
        )
    tokens = _tokens(file)
    ids = {token: index for index, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        raise ModelError(f"{source}: tokenizer.ggml.tokens holds a token twice")
    pre = metadata.get(f"{_PREFIX}pre", "gpt-2") if model == "gpt2" else ""
    if model == "gpt2":
        merges = merges_from_pairs(_get(file, "merges", list), source)
        bos_by_default = word_rule(pre, source).add_bos
    else:
        scores = _numbers(file, "scores", len(tokens))
        merges = merges_from_scores(ids, scores)
        bos_by_default = True
    return Vocabulary(
        source=source,
        model=model,
        pre=pre,
        tokens=tokens,
        ids=ids,
        kinds=_kinds(file, len(tokens)),
        merges=merges,
        roles={role: tokens[i] for role, i in _role_ids(file, len(tokens)).items()},
        add_bos=_flag(file, "add_bos_token", bos_by_default),
        add_eos=_flag(file, "add_eos_token", False),
        add_space_prefix=_flag(file, "add_space_prefix", model == "llama"),
    )


def read_special_ids(file: GgufFile) -> tuple[dict[str, int], tuple[int, ...]]:
    """Return the ids of the roles, and the ids that end a sequence.

    Raises:
        ModelError: an id is outside the vocabulary.
    """
    tokens = _tokens(file)
    ends: dict[int, None] = {}
    for key in _END_IDS:
        index = _id(file, key, len(tokens))
        if index is not None:
            ends[index] = None
    kinds = _kinds(file, len(tokens))
    for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True)):
        if kind != TokenKind.NORMAL and token in _END_TEXTS:
            ends[index] = None
    return _role_ids(file, len(tokens)), tuple(ends)


def _tokens(file: GgufFile) -> list[str]:
    tokens = _get(file, "tokens", list)
    if not tokens:
        raise ModelError(f"{file.path}: tokenizer.ggml.tokens is empty")
    return tokens


def _get(file: GgufFile, key: str, kind: type) -> Any:  # noqa: ANN401 -- `kind` says the type
    value = file.metadata.get(_PREFIX + key)
    if not isinstance(value, kind):
        found = "missing" if value is None else f"a {type(value).__name__}"
        raise ModelError(
            f"{file.path}: {_PREFIX}{key} is {found}, and a {kind.__name__} is needed; "
            "the file carries no usable tokenizer"
        )
    return value


def _numbers(file: GgufFile, key: str, count: int) -> list[Any]:
    values = _get(file, key, np.ndarray)
    if len(values) != count:
        raise ModelError(
            f"{file.path}: {_PREFIX}{key} has {len(values)} entries for {count} tokens"
        )
    return values.tolist()


def _kinds(file: GgufFile, count: int) -> list[int]:
    if _PREFIX + "token_type" not in file.metadata:
        return [int(TokenKind.NORMAL)] * count
    return _numbers(file, "token_type", count)


def _flag(file: GgufFile, key: str, default: bool) -> bool:
    return bool(file.metadata.get(_PREFIX + key, default))


def _id(file: GgufFile, key: str, count: int) -> int | None:
    index = file.metadata.get(_PREFIX + key)
    if index is None or index in (0xFFFFFFFF, -1):
        return None
    if not isinstance(index, int) or not 0 <= index < count:
        raise ModelError(
            f"{file.path}: {_PREFIX}{key} is {index!r}, outside the {count} tokens of the file"
        )
    return index


def _role_ids(file: GgufFile, count: int) -> dict[str, int]:
    ids = {role: _id(file, key, count) for role, key in _ROLES.items()}
    return {role: index for role, index in ids.items() if index is not None}
