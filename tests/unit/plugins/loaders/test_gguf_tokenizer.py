import random
from pathlib import Path

import pytest
import tokenizers
from tests.support.checkpoints import describe_gguf
from tests.support.gguf_files import write_gguf
from tests.support.texts import TEXTS, random_text
from transformers import AutoTokenizer

from pegboard.api.errors import ModelError
from pegboard.api.plugin import ComponentContext
from pegboard.builtin.hf_tokenizer import HfTokenizer
from pegboard_loaders.gguf.merges import merges_from_scores
from pegboard_loaders.gguf.reader import GgufFile
from pegboard_loaders.gguf.tokenizer import GgufTokenizer, build_tokenizer
from pegboard_loaders.gguf.vocabulary import read_vocabulary
from pegboard_loaders.gguf.words import word_rule
from pegboard_loaders.hf_config import HfConfigReader

CONTEXT = ComponentContext(plugin="loaders")


@pytest.fixture(scope="module")
def tokenizer(smollm2_gguf: Path) -> GgufTokenizer:
    return GgufTokenizer(CONTEXT, describe_gguf(smollm2_gguf))


@pytest.fixture(scope="module")
def published() -> tokenizers.Tokenizer:
    """SmolLM2's word rule as its publisher writes it in tokenizer.json."""
    return tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )


def test_words_equal_the_published_rule(published: tokenizers.pre_tokenizers.Sequence) -> None:
    ours = word_rule("smollm", "a file").build()
    for text in [*TEXTS, *(random_text(random.Random(seed)) for seed in range(300))]:
        expected = [word for word, _ in published.pre_tokenize_str(text)]
        assert [word for word, _ in ours.pre_tokenize_str(text)] == expected


def test_ids_and_text_equal_transformers(tokenizer: GgufTokenizer, smollm2_folder: Path) -> None:
    theirs = AutoTokenizer.from_pretrained(smollm2_folder)
    hf = HfTokenizer(CONTEXT, HfConfigReader(CONTEXT).read(str(smollm2_folder)))
    for text in [*TEXTS, *(random_text(random.Random(seed)) for seed in range(100))]:
        for add in (True, False):
            ids = theirs(text, add_special_tokens=add)["input_ids"]
            assert tokenizer.encode(text, add_special_tokens=add) == ids
            assert hf.encode(text, add_special_tokens=add) == ids
        for skip in (True, False):
            expected = theirs.decode(ids, skip_special_tokens=skip)
            assert tokenizer.decode(ids, skip_special_tokens=skip) == expected
            assert hf.decode(ids, skip_special_tokens=skip) == expected


def test_text_survives_the_round_trip(tokenizer: GgufTokenizer) -> None:
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_special_tokens_are_known(tokenizer: GgufTokenizer) -> None:
    assert tokenizer.encode("<|im_start|>user") == [1, *tokenizer.encode("user")]
    assert {0, 1, 2} <= tokenizer.special_ids
    assert tokenizer.special_tokens["eos_token"] == "<|im_end|>"
    assert tokenizer.decode([1, 2]) == ""
    assert tokenizer.vocab_size == 49152


def sentence_piece_file(path: Path, **changes: object) -> Path:
    """Write a small SentencePiece vocabulary: pieces whose scores say what merges first."""
    pieces = ["▁", "h", "e", "l", "o", "▁h", "he", "ll", "llo", "hello", "▁hello", "<turn>", "日"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    kinds = [2, 3, 3] + [6] * 256 + [1] * 11 + [4, 1]
    scores = [0.0] * 259 + [-float(len(pieces) - index) for index in range(len(pieces))]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **changes,
    }
    return write_gguf(path, "llama", metadata, {})


def sentence_piece(path: Path, **changes: object) -> tokenizers.Tokenizer:
    return build_tokenizer(read_vocabulary(GgufFile(sentence_piece_file(path, **changes))))


def test_sentence_piece_merges_by_score_and_falls_back_to_bytes(tmp_path: Path) -> None:
    backend = sentence_piece(tmp_path / "a.gguf")
    encoded = backend.encode("hello é日")
    assert encoded.tokens == ["<s>", "▁hello", "▁", "<0xC3>", "<0xA9>", "日"]
    assert backend.decode(encoded.ids) == "hello é日"
    assert backend.encode("hello<turn>", add_special_tokens=False).tokens == ["▁hello", "<turn>"]


def test_sentence_piece_without_space_prefix(tmp_path: Path) -> None:
    changes = {
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_eos_token": True,
    }
    backend = sentence_piece(tmp_path / "a.gguf", **changes)
    assert backend.encode("hello").tokens == ["hello", "</s>"]


def test_merges_follow_scores_then_parts() -> None:
    merges = merges_from_scores(
        {"a": 0, "b": 1, "ab": 2, "ba": 3, "aba": 4}, [0.0, 0.0, -1.0, -2.0, -3.0]
    )
    assert merges == [("a", "b"), ("b", "a"), ("a", "ba"), ("ab", "a")]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tokenizer.ggml.model": "t5"}, "'t5'"),
        ({"tokenizer.ggml.scores": [0.0]}, "1 entries for"),
        ({"tokenizer.ggml.bos_token_id": 10**6}, "outside"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "twice"),
        ({"tokenizer.ggml.tokens": 7}, "tokens is a int"),
        ({"tokenizer.ggml.token_type": [1, 2]}, "2 entries for"),
    ],
)
def test_inconsistent_vocabulary_is_refused(
    tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(ModelError, match=reason):
        sentence_piece(tmp_path / "a.gguf", **changes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tokenizer.ggml.pre": "nobody-knows"}, "nobody-knows"),
        ({"tokenizer.ggml.merges": ["ab"]}, "merge 0"),
        ({"tokenizer.ggml.merges": ["a x"]}, "cannot be built"),
        ({"tokenizer.ggml.merges": ["b a"]}, "cannot be built"),
        ({"tokenizer.ggml.merges": 3}, "merges is a int"),
    ],
)
def test_inconsistent_byte_level_vocabulary_is_refused(
    tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": ["a", "b", "ab"],
        "tokenizer.ggml.merges": ["a b"],
        **changes,
    }
    path = write_gguf(tmp_path / "a.gguf", "llama", metadata, {})
    with pytest.raises(ModelError, match=reason):
        build_tokenizer(read_vocabulary(GgufFile(path)))
