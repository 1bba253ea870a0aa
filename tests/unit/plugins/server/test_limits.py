"""The depth scan agrees with a parser, whatever the strings hold, and stays linear."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pegboard_server.errors import HttpError
from pegboard_server.limits import _check_depth

TRICKY = st.text(alphabet='[]{}"\\ab\n\u2028é', max_size=12)
VALUES = st.recursive(
    TRICKY | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TRICKY, inner, max_size=3),
    max_leaves=20,
)


def depth_of(value):
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 0


def passes(body, limit):
    try:
        _check_depth(body, limit)
    except HttpError:
        return False
    return True


@given(VALUES, st.booleans())
def test_depth_is_that_of_the_parsed_value(value, ascii_only):
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    depth = depth_of(value)

    assert passes(body, max(1, depth))
    if depth > 1:
        assert not passes(body, depth - 1)


@pytest.mark.parametrize(
    "body",
    [
        b'"' + b'\\"' * 300_000 + b"[" * 100,
        b'"' * 600_001 + b"[" * 100,
        b"\\" * 600_000 + b"[" * 100,
        (b'{"' + b"\\\\" * 10) * 30_000,
    ],
)
@pytest.mark.timeout(30)  # a quadratic scan takes many minutes
def test_hostile_strings_take_linear_time(body):
    assert passes(body, 64) in (True, False)
