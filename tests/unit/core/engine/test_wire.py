"""Messages survive the wire; what is no message is an error of its own."""

import pytest

from pegboard.api.errors import InvalidRequest
from pegboard.api.messages import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest
from pegboard.api.sampling_params import SamplingParams
from pegboard.engine.wire import (
    CoreKind,
    Ping,
    WireError,
    Wish,
    decode_from_core,
    decode_to_core,
    encode,
)


def test_messages_arrive_as_they_were_sent() -> None:
    request = EngineCoreRequest(
        request_id="r",
        prompt_token_ids=[1, 2],
        sampling=SamplingParams(stop=["x"], logit_bias={3: 1.5}, bad_words_token_ids=[[4]]),
    )
    for wish, body in (
        (Wish.ADD, request),
        (Wish.ABORT, ["a", "b"]),
        (Wish.PING, Ping(sent=1.0)),
        (Wish.STOP, None),
    ):
        assert decode_to_core(encode(wish, body)) == (wish, body)
    outputs = EngineCoreOutputs(outputs=[EngineCoreOutput(request_id="r", new_token_ids=[7])])
    assert decode_from_core(encode(CoreKind.OUTPUTS, outputs)) == (CoreKind.OUTPUTS, outputs)


@pytest.mark.parametrize(
    "frames",
    [[], [b"A"], [b"?", b"\xc0"], [b"A", b"\x00junk"], [b"X", b"\xa1x"], [b"A", b"", b""],
     [b"", b""], [b"A", b"\x93\x01\x02\x03"], [b"O", b"\xc0"]],
)  # fmt: skip
def test_what_is_no_message_is_an_error(frames: list[bytes]) -> None:
    with pytest.raises(WireError):
        decode_to_core(frames)


def test_values_out_of_range_do_not_decode() -> None:
    good = encode(Wish.ADD, EngineCoreRequest(
        request_id="r", prompt_token_ids=[1], sampling=SamplingParams(max_tokens=77)
    ))  # fmt: skip
    bad = [good[0], good[1].replace(b"max_tokens\x4d", b"max_tokens\x00")]
    assert bad != good
    with pytest.raises(WireError) as raised:
        decode_to_core(bad)
    assert raised.value.request_id == "r"


@pytest.mark.parametrize("value", [2**70, "\ud800", object(), {2**64: 1}])
def test_what_cannot_be_sent_is_the_callers_error(value: object) -> None:
    with pytest.raises(InvalidRequest, match="cannot be sent"):
        encode(Wish.ADD, {"extra": [value]})
