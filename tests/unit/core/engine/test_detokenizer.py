"""Text given out piece by piece is the whole sequence's text, for any way of cutting it."""

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.arithmetic_parts import ByteTokenizer
from tests.support.checkpoints import describe_gguf, smollm2_gguf
from tests.support.texts import TEXTS

from pegboard.api.plugin import ComponentContext
from pegboard.api.tokenizers import Tokenizer
from pegboard.engine.detokenizer import IncrementalDetokenizer
from pegboard_loaders.gguf.tokenizer import GgufTokenizer

__all__ = ["smollm2_gguf"]


@pytest.fixture(scope="module")
def tokenizer(smollm2_gguf: Path) -> Tokenizer:
    return GgufTokenizer(ComponentContext(plugin="loaders"), describe_gguf(smollm2_gguf))


def _cut(ids: Sequence[int], cuts: Sequence[int]) -> list[list[int]]:
    bounds = sorted({0, len(ids), *(c % (len(ids) + 1) for c in cuts)})
    return [list(ids[a:b]) for a, b in pairwise(bounds)]


def _stream(
    tokenizer: Tokenizer, pieces: Sequence[Sequence[int]], prompt: Sequence[int] = (), **how: bool
) -> str:
    detokenizer = IncrementalDetokenizer(tokenizer, prompt, **how)
    return "".join(detokenizer.push(piece) for piece in pieces) + detokenizer.finish()


_CUTS = st.lists(st.integers(0, 10_000), max_size=40)
_FIXTURE = settings(
    deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@_FIXTURE
@given(text=st.one_of(st.sampled_from(TEXTS), st.text(max_size=60)), cuts=_CUTS)
def test_stream_of_a_text_is_the_text(tokenizer: Tokenizer, text: str, cuts: list[int]) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert _stream(tokenizer, _cut(ids, cuts)) == tokenizer.decode(ids)


@_FIXTURE
@given(
    ids=st.lists(st.integers(0, 49_151), max_size=120),
    cuts=_CUTS,
    skip_special_tokens=st.booleans(),
)
def test_stream_of_any_ids_is_their_whole_decode(
    tokenizer: Tokenizer, ids: list[int], cuts: list[int], skip_special_tokens: bool
) -> None:
    streamed = _stream(tokenizer, _cut(ids, cuts), skip_special_tokens=skip_special_tokens)
    assert streamed == tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)


@_FIXTURE
@given(ids=st.lists(st.integers(0, 257), max_size=200), cuts=_CUTS)
def test_stream_of_raw_bytes_is_their_whole_decode(ids: list[int], cuts: list[int]) -> None:
    tokenizer = _byte_tokenizer()
    assert _stream(tokenizer, _cut(ids, cuts)) == tokenizer.decode(ids)


def _byte_tokenizer() -> Tokenizer:
    return ByteTokenizer(ComponentContext(plugin="fake"), None)  # type: ignore[arg-type]


def test_no_incomplete_character_is_given_out() -> None:
    detokenizer = IncrementalDetokenizer(_byte_tokenizer())
    pieces = [detokenizer.push([byte]) for byte in "é€😀".encode()]
    assert pieces == ["", "é", "", "", "€", "", "", "", "😀"]
    assert detokenizer.finish() == ""


def test_what_stays_incomplete_comes_at_the_end() -> None:
    detokenizer = IncrementalDetokenizer(_byte_tokenizer())
    assert detokenizer.push([0xE2, 0x82]) == ""
    assert detokenizer.finish() == "\ufffd"


def test_prompt_that_ends_inside_a_character_changes_nothing() -> None:
    tokenizer = _byte_tokenizer()
    out = list(b"abc")
    assert _stream(tokenizer, [out], prompt=[0xE2, 0x82]) == "abc"


def test_work_is_linear_in_the_number_of_tokens() -> None:
    class Counting(ByteTokenizer):
        decoded = 0

        def decode(self, token_ids: Sequence[int], **how: bool) -> str:
            self.decoded += len(token_ids)
            return super().decode(token_ids, **how)

    tokenizer = Counting(ComponentContext(plugin="fake"), None)  # type: ignore[arg-type]
    rng = random.Random(3)
    ids = [rng.randrange(256) for _ in range(4000)]  # bytes that are mostly no text: the worst
    _stream(tokenizer, [[i] for i in ids])
    assert tokenizer.decoded < 60 * len(ids)
