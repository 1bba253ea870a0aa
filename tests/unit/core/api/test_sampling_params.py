"""Whatever a caller puts into a field is refused by its name, or goes over the wire unharmed."""

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from pegboard.api.errors import InvalidRequest
from pegboard.api.sampling_params import RepetitionDetection, SamplingParams

JUNK: list[Any] = [
    None, True, False, 0, -1, 1, 1.5, 1e308, -1e308, 1e-320, math.nan, math.inf, -math.inf,
    10**40, 2**63, 2**64, -(2**70), "x", "", "\ud800", b"x", object(), len, (1,), {1}, [],
    [1], ["a"], ["\ud800"], [""], [None], [math.nan], [1.5], [True], [b"x"], [[1]], [[]],
    [["a"]], [[1.5]], {}, {1: 1}, {1: math.nan}, {1: math.inf}, {"a": 1}, {1: "a"}, {1: None},
    {True: 1}, {1.5: 1}, {1: 10**400},
]  # fmt: skip


@pytest.mark.parametrize("field", SamplingParams.__struct_fields__)
def test_junk_is_refused_by_name_or_survives_the_wire(field: str) -> None:
    others = {} if field == "temperature" else {"temperature": 1.0}
    for value in JUNK:
        refusal, params = _build({**others, field: value})
        if refusal is not None:
            assert refusal.param == field
            message = str(refusal)
            assert message.isascii()
            assert "\n" not in message
            assert len(message) < 300
            continue
        sent = msgspec.msgpack.encode(params)
        assert msgspec.msgpack.decode(sent, type=SamplingParams) == params, value


def _build(values: dict[str, Any]) -> tuple[InvalidRequest | None, SamplingParams | None]:
    try:
        return None, SamplingParams(**values)
    except InvalidRequest as error:
        return error, None


@pytest.mark.parametrize("field", RepetitionDetection.__struct_fields__)
def test_junk_in_repetition_detection_is_refused(field: str) -> None:
    fine: dict[str, Any] = {"max_pattern_size": 9}
    for value in JUNK:
        if type(value) is int and value >= 2:
            continue
        if value == 1 and type(value) is int and field != "min_count":
            continue
        with pytest.raises(InvalidRequest):
            RepetitionDetection(**{**fine, field: value})


def test_penalties_that_pass_keep_float32_logits_finite() -> None:
    for penalty in (1e-6, 1e6):
        factor = np.float32(SamplingParams(repetition_penalty=penalty).repetition_penalty)
        assert np.isfinite(np.float32(1e4) * factor)
        assert np.isfinite(np.float32(1e4) / factor)
    for penalty in (1e-320, 9e-7, 1.1e6, 1e308):
        with pytest.raises(InvalidRequest, match="repetition_penalty"):
            SamplingParams(repetition_penalty=penalty)


def test_tuples_are_lists() -> None:
    params = SamplingParams(stop=("a",), stop_token_ids=(3, 3))  # type: ignore[arg-type]
    assert params.stop == ["a"]
    assert params.stop_token_ids == [3]
