"""Prompts and messages: what is taken, what is refused, and how it is named."""

import pytest

from pegboard.api.errors import InvalidRequest
from pegboard.api.sampling_params import SamplingParams
from pegboard_server.app import own_routes
from pegboard_server.config import ServerConfig
from pegboard_server.prompts import check_messages, split_prompts, truncated
from pegboard_server.schemas import sampling
from pegboard_server.schemas.requests import ChatBody, CompletionBody


@pytest.mark.parametrize(
    ("value", "prompts"),
    [
        ("a", ["a"]),
        ("", [""]),
        (["a", ""], ["a", ""]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_every_form_of_prompt_becomes_a_list(value, prompts):
    assert split_prompts(value, 10) == prompts


@pytest.mark.parametrize("value", [[True], [1.0], [[1], []], [["a"]], {}, 1, [None]])
def test_what_is_no_prompt_is_refused(value):
    with pytest.raises(InvalidRequest) as caught:
        split_prompts(value, 10)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("keep", "side", "kept"),
    [
        (None, None, [1, 2, 3, 4]),
        (2, None, [3, 4]),
        (2, "left", [3, 4]),
        (2, "right", [1, 2]),
        (-1, None, [2, 3, 4]),
        (3, None, [2, 3, 4]),
    ],
)
def test_truncation_keeps_the_asked_side(keep, side, kept):
    assert truncated([1, 2, 3, 4], keep, side, longest=3) == kept


def test_size_of_a_conversation_is_that_of_its_texts():
    messages = [
        {"role": "system", "content": "abc"},
        {"role": "user", "content": [{"type": "text", "text": "de"}, {"type": "text", "text": ""}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "x"}]},
        {"role": "tool", "content": "f", "tool_call_id": "x"},
    ]
    assert check_messages(messages) == 6


def test_every_sampling_parameter_can_be_asked_for_or_is_the_servers_own():
    settled_here = {
        "logprobs",
        "max_tokens",
        "logit_bias",
        "repetition_detection",
        "extra_args",
    }
    not_over_http = {
        "bad_words_token_ids",
        "detokenize",
        "output_kind",
        "flat_logprobs",
    }
    reachable = set(sampling._SAMPLING_FIELDS) | settled_here

    assert set(SamplingParams.__struct_fields__) - not_over_http == reachable
    assert not_over_http <= set(sampling._REFUSED)
    for body in (ChatBody, CompletionBody):
        assert set(sampling._SAMPLING_FIELDS) <= set(body.model_fields)


def test_refused_fields_are_not_also_served():
    served = set(ChatBody.model_fields) | set(CompletionBody.model_fields)

    assert not served & set(sampling._REFUSED)
    assert not sampling._SILENT & set(sampling._REFUSED)


def test_only_probes_and_metrics_are_public():
    public = {route.path for route in own_routes() if route.scope == "public"}
    closed = {route.path for route in own_routes(protect_metrics=True) if route.scope == "public"}

    assert public == {"/health", "/ready", "/live", "/ping", "/metrics"}
    assert public - closed == {"/metrics"}


def test_server_is_private_by_default():
    config = ServerConfig()

    assert config.host == "127.0.0.1"
    assert config.allowed_origins == []
    assert not config.trust_request_chat_template
