"""Stop strings are found however the text arrives, and nothing of them gets out."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pegboard.engine.stop_strings import StopMatch, StopStrings


def _run(pieces: list[str], stops: list[str], *, include: bool = False) -> tuple[str, str | None]:
    finder = StopStrings(stops, include_in_output=include)
    out = ""
    for piece in pieces:
        found = finder.push(piece)
        if isinstance(found, StopMatch):
            return out + found.text, found.stop
        out += found
    return out + finder.finish(), None


def _brute(text: str, stops: list[str], *, include: bool) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        ending = sorted((s for s in stops if text[:end].endswith(s)), key=len, reverse=True)
        if ending:
            return text[: end if include else end - len(ending[0])], ending[0]
    return text, None


@given(
    text=st.text("abc", max_size=30),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=4),
    cuts=st.lists(st.integers(0, 30), max_size=10),
    include=st.booleans(),
)
def test_result_is_that_of_a_search_character_by_character(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    bounds = sorted({0, len(text), *(c for c in cuts if c < len(text))})
    pieces = [text[a:b] for a, b in pairwise(bounds)]
    assert _run(pieces, stops, include=include) == _brute(text, stops, include=include)


def test_what_may_become_a_stop_string_is_held_back() -> None:
    finder = StopStrings(["END"])
    assert finder.push("the E") == "the"
    assert finder.push("N") == " "
    assert finder.push("x") == "E"
    assert finder.finish() == "Nx"


def test_included_stop_string_is_given_out_and_nothing_is_held_back() -> None:
    finder = StopStrings(["END"], include_in_output=True)
    assert finder.push("the EN") == "the EN"
    assert finder.push("D of it") == StopMatch("END", "D")


def test_stop_string_before_the_least_length_is_let_through() -> None:
    finder = StopStrings(["ab"])
    assert finder.push("xab", may_stop=False) == "xab"
    assert finder.push("b") == ""
    assert finder.push("ab") == StopMatch("ab", "b")


def test_without_stop_strings_text_passes_at_once() -> None:
    assert StopStrings([]).push("text") == "text"
