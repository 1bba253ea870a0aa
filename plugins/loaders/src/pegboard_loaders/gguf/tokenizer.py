"""The tokenizer that a GGUF file carries, built for the tokenizers library.

Two families: byte-level BPE ("gpt2"), where the file names the rule that cuts text into words,
and SentencePiece BPE ("llama"), where merges follow from the pieces' scores.
"""

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, processors

from pegboard.api.errors import ModelError
from pegboard.api.fast_tokenizer import FastTokenizer
from pegboard.api.models import ModelDescription
from pegboard.api.plugin import ComponentContext
from pegboard_loaders.gguf.reader import GgufFile
from pegboard_loaders.gguf.vocabulary import TokenKind, Vocabulary, read_vocabulary
from pegboard_loaders.gguf.words import word_rule

__all__ = ["GgufTokenizer", "build_tokenizer"]

_SPACE = "▁"


class GgufTokenizer(FastTokenizer):
    """Vocabulary, merges and special tokens from a GGUF file's metadata."""

    def __init__(self, context: ComponentContext, description: ModelDescription) -> None:
        """Build the tokenizer of the file that the description, or the configuration, names.

        Raises:
            ModelError: the file is malformed, or its tokenizer is of an unknown kind.
        """
        model = getattr(context.config, "model", None)
        path = Path(getattr(model, "tokenizer_path", None) or description.path)
        vocabulary = read_vocabulary(GgufFile(path))
        super().__init__(
            context,
            description,
            build_tokenizer(vocabulary),
            vocabulary.roles,
            longest_token=max(map(len, vocabulary.tokens)),
        )


def build_tokenizer(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """Build the tokenizer of a vocabulary.

    Raises:
        ModelError: its merges, pieces or word rule cannot be used.
    """
    try:
        if vocabulary.model == "gpt2":
            backend = _byte_level(vocabulary)
        else:
            backend = _sentence_piece(vocabulary)
    except ModelError:
        raise
    except Exception as error:  # the library raises bare Exception for what it cannot take
        raise ModelError(f"{vocabulary.source}: its tokenizer cannot be built: {error}") from error
    _add_tokens(backend, vocabulary)
    _add_ends(backend, vocabulary)
    return backend


def _byte_level(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    rule = word_rule(vocabulary.pre, vocabulary.source)
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocabulary.ids,
            merges=vocabulary.merges,
            ignore_merges=rule.ignore_merges,
        )
    )
    if rule.normalize_nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = rule.build()
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentence_piece(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocabulary.ids,
            merges=vocabulary.merges,
            unk_token=vocabulary.roles.get("unk_token"),
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    steps: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    replace = normalizers.Replace(" ", _SPACE)
    if vocabulary.add_space_prefix:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), replace])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        backend.normalizer = replace
    backend.decoder = decoders.Sequence(steps)
    return backend


def _add_tokens(backend: tokenizers.Tokenizer, vocabulary: Vocabulary) -> None:
    """Make control tokens special and user-defined ones unbreakable."""
    special, plain = [], []
    for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True):
        if kind in (TokenKind.CONTROL, TokenKind.UNKNOWN):
            special.append(AddedToken(token, normalized=False, special=True))
        elif kind == TokenKind.USER_DEFINED:
            plain.append(AddedToken(token, normalized=False, special=False))
    backend.add_tokens(plain)
    backend.add_special_tokens(special)


def _add_ends(backend: tokenizers.Tokenizer, vocabulary: Vocabulary) -> None:
    """Put the beginning and end of sequence around a prompt, as the file asks."""
    pieces, ids = ["$A"], []
    bos, eos = vocabulary.roles.get("bos_token"), vocabulary.roles.get("eos_token")
    if vocabulary.add_bos and bos is not None:
        pieces.insert(0, bos)
        ids.append((bos, vocabulary.ids[bos]))
    if vocabulary.add_eos and eos is not None:
        pieces.append(eos)
        ids.append((eos, vocabulary.ids[eos]))
    if ids:
        backend.post_processor = processors.TemplateProcessing(
            single=pieces, special_tokens=list(dict(ids).items())
        )
