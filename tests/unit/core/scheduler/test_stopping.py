"""When a sequence ends, and why."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pegboard.api.sampling_params import RepetitionDetection, SamplingParams
from pegboard.scheduler.stopping import Finish, StopRules, repeats

PROMPT = [1, 2, 3]


def check(output: list[int], *, max_len: int = 100, **params: object) -> Finish | None:
    rules = StopRules(
        SamplingParams(**params), [90], num_prompt_tokens=len(PROMPT), max_len=max_len
    )
    return rules.check(PROMPT + output)


@pytest.mark.parametrize(
    ("output", "params", "expected"),
    [
        ([5], {}, None),
        ([90], {}, Finish("stop")),
        ([90], {"ignore_eos": True}, None),
        ([90], {"ignore_eos": True, "stop_token_ids": [90]}, Finish("stop", 90)),
        ([90], {"stop_token_ids": [90]}, Finish("stop")),
        ([80], {"stop_token_ids": [80]}, Finish("stop", 80)),
        ([5, 6], {"max_tokens": 2}, Finish("length")),
        ([5, 90], {"max_tokens": 2}, Finish("stop")),
        ([5, 80], {"max_tokens": 2, "stop_token_ids": [80]}, Finish("stop", 80)),
        ([5, 90], {"min_tokens": 2}, None),
        ([5, 6, 90], {"min_tokens": 2}, Finish("stop")),
        ([5, 90], {"min_tokens": 2, "max_tokens": 2}, Finish("length")),
        ([5] * 4, {"max_tokens": None, "max_len": 7}, Finish("length")),
        ([5] * 4, {"max_tokens": 90, "max_len": 7}, Finish("length")),
    ],
)
def test_order_of_the_rules(
    output: list[int], params: dict[str, object], expected: Finish | None
) -> None:
    assert check(output, **params) == expected  # type: ignore[arg-type]


def test_length_goes_before_repetition_which_waits_for_min_tokens() -> None:
    rule = RepetitionDetection(max_pattern_size=2, min_count=3)

    assert check([4, 4, 4], repetition_detection=rule) == Finish("repetition")
    assert check([4, 4, 4], repetition_detection=rule, max_tokens=3) == Finish("length")
    assert check([4, 4, 4], repetition_detection=rule, min_tokens=4) is None
    assert check([4, 4], repetition_detection=rule) is None


def test_repetition_looks_at_the_output_only() -> None:
    rule = RepetitionDetection(max_pattern_size=3, min_pattern_size=3, min_count=2)

    assert check([1, 2, 3], repetition_detection=rule) is None
    assert check([1, 2, 3, 1, 2, 3], repetition_detection=rule) == Finish("repetition")


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 1), max_size=14),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(2, 4),
)
def test_repetition_is_found_exactly_where_it_is(
    tokens: list[int], smallest: int, more: int, count: int
) -> None:
    rule = RepetitionDetection(
        min_pattern_size=smallest, max_pattern_size=smallest + more, min_count=count
    )
    expected = any(
        len(tokens) >= size * count and tokens[-size * count :] == tokens[-size:] * count
        for size in range(smallest, smallest + more + 1)
    )

    assert repeats(tokens, len(tokens), rule) == expected
