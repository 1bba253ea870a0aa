"""Shapes and options of the protocol that the official client does not show."""

import json

import httpx
import pytest
from tests.support.fake_engine import with_prometheus
from tests.support.served import serve

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def served():
    with serve(setup=with_prometheus) as running:
        yield running


@pytest.fixture(scope="module")
def http(served):
    with httpx.Client(base_url=served.url) as client:
        yield client


def post(http, path, **body):
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(http, path, **body):
    answer = http.post(path, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in answer.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


def test_chat_answer_has_every_field_of_the_protocol(http):
    answer = post(http, CHAT, messages=HI)

    assert set(answer) == {
        "id",
        "object",
        "created",
        "model",
        "choices",
        "service_tier",
        "system_fingerprint",
        "usage",
    }
    choice = answer["choices"][0]
    assert set(choice) == {"index", "message", "logprobs", "finish_reason", "stop_reason"}
    assert set(choice["message"]) == {
        "role",
        "content",
        "refusal",
        "annotations",
        "audio",
        "function_call",
        "reasoning",
    }
    assert set(answer["usage"]) == {"prompt_tokens", "total_tokens", "completion_tokens"}
    assert answer["system_fingerprint"].startswith("pegboard-")


def test_chat_chunks_leave_out_what_is_not_set(http):
    first, second, *_ = events(http, CHAT, messages=HI)

    assert set(first) == {"id", "object", "created", "model", "choices"}
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert second["choices"][0] == {
        "index": 0,
        "delta": {"content": "U"},
        "logprobs": None,
        "finish_reason": None,
    }


def test_usage_can_come_on_every_chunk(http):
    chunks = events(
        http,
        TEXT,
        prompt="abc",
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )

    assert [c["usage"]["completion_tokens"] for c in chunks] == [1, 2, 3, 3]
    assert chunks[-1]["choices"] == []


def test_without_include_usage_there_is_none(http):
    assert all("usage" not in c for c in events(http, TEXT, prompt="abc"))
    assert all("usage" not in c for c in events(http, CHAT, messages=HI))


def test_token_ids_are_returned_on_request(http):
    whole = post(http, TEXT, prompt="ab", return_token_ids=True)["choices"][0]
    chunks = events(http, TEXT, prompt="ab", return_token_ids=True)
    chat = events(http, CHAT, messages=HI, return_token_ids=True, max_tokens=2)

    assert whole["token_ids"] == [65, 66]
    assert whole["prompt_token_ids"] == [256, 97, 98]
    assert chunks[0]["choices"][0]["prompt_token_ids"] == [256, 97, 98]
    assert [t for c in chunks for t in c["choices"][0]["token_ids"]] == [65, 66]
    assert chat[0]["prompt_token_ids"] == list(b"user: hi\nassistant: ")
    assert [t for c in chat[1:] for t in c["choices"][0]["token_ids"]] == list(b"US")


def test_tokens_can_be_written_as_ids(http):
    chat = post(
        http, CHAT, messages=HI, max_tokens=1, logprobs=True, return_tokens_as_token_ids=True
    )
    text = post(http, TEXT, prompt="a", logprobs=0, return_tokens_as_token_ids=True)

    assert chat["choices"][0]["logprobs"]["content"][0]["token"] == "token_id:85"
    assert text["choices"][0]["logprobs"]["tokens"] == ["token_id:65"]


def test_prompt_logprobs_map_ids_and_begin_with_null(http):
    positions = post(http, TEXT, prompt=[97, 98], prompt_logprobs=1)["choices"][0][
        "prompt_logprobs"
    ]
    chat = post(http, CHAT, messages=HI, prompt_logprobs=0)["prompt_logprobs"]

    assert positions[0] is None
    assert positions[1]["98"] == {"logprob": -0.5, "rank": 1, "decoded_token": "b"}
    assert len(positions[1]) == 2
    assert chat[0] is None


def test_prompt_logprobs_begin_where_asked(http):
    body = {"prompt": [97, 98, 99], "prompt_logprobs": 0, "prompt_logprob_start": 2}
    positions = post(http, TEXT, **body)["choices"][0]["prompt_logprobs"]

    assert positions[:2] == [None, None]
    assert list(positions[2]) == ["99"]


def test_chat_stream_with_echo_begins_with_the_open_message(http):
    messages = [*HI, {"role": "assistant", "content": "Once"}]
    body = {"continue_final_message": True, "add_generation_prompt": False, "echo": True}
    chunks = events(http, CHAT, messages=messages, max_tokens=1, **body)
    whole = post(http, CHAT, messages=messages, max_tokens=1, **body)

    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    assert text == "OnceU"
    assert whole["choices"][0]["message"]["content"] == "OnceU"


def test_completion_stream_with_echo_begins_with_the_prompt(http):
    chunks = events(http, TEXT, prompt=[97, 98], echo=True)

    assert [c["choices"][0]["text"] for c in chunks] == ["abA", "B"]


def test_sampling_fields_reach_the_engine(http, served):
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.1,
        "seed": 42,
        "stop": ["zz"],
        "stop_token_ids": [5],
        "bad_words": ["no"],
        "ignore_eos": True,
        "min_tokens": 2,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "include_stop_str_in_output": True,
        "stream_interval": 3,
    }
    post(http, TEXT, prompt="abc", logit_bias={"7": 500}, vllm_xargs={"x": 1}, **fields)
    params = served.client.calls[-1][1]

    assert {name: getattr(params, name) for name in fields} == fields
    assert params.logit_bias == {7: 100.0}
    assert params.extra_args == {"x": 1}


def test_chat_options_reach_the_renderer(http, served):
    post(
        http,
        CHAT,
        messages=HI,
        chat_template_kwargs={"enable_thinking": False},
        reasoning_effort="low",
        documents=[{"text": "d"}],
        tools=[{"type": "function", "function": {"name": "f"}}],
        tool_choice="none",
    )
    options = served.client.renderer.options

    assert options.template_kwargs == {"enable_thinking": False, "reasoning_effort": "low"}
    assert options.documents == [{"text": "d"}]
    assert options.tools[0]["function"]["name"] == "f"


def test_chat_without_a_limit_may_fill_the_context(http, served):
    post(http, CHAT, messages=HI)
    assert served.client.calls[-1][1].max_tokens is None
    post(http, CHAT, messages=HI, max_tokens=5, max_completion_tokens=3)
    assert served.client.calls[-1][1].max_tokens == 3
    post(http, TEXT, prompt="a")
    assert served.client.calls[-1][1].max_tokens == 16


def test_prompt_can_be_truncated_by_either_side(http):
    left = post(http, TEXT, prompt="abcdef", truncate_prompt_tokens=2)
    right = post(http, TEXT, prompt=[97, 98, 99], truncate_prompt_tokens=2, truncation_side="right")
    assert left["choices"][0]["text"] == "EF"
    assert right["choices"][0]["text"] == "AB"


def test_neutral_values_of_unserved_fields_are_taken_in_silence(http):
    answer = post(
        http,
        CHAT,
        messages=HI,
        user="me",
        metadata={"a": "b"},
        store=False,
        response_format={"type": "text"},
        modalities=["text"],
        use_beam_search=False,
        tools=None,
        structured_outputs=None,
    )
    assert "warnings" not in answer


def test_warnings_come_in_streams_too(http):
    chat = events(http, CHAT, messages=HI, colour=1)
    text = events(http, TEXT, prompt="ab", colour=1)

    assert "colour" in chat[0]["warnings"][0]
    assert "colour" in text[0]["warnings"][0]
    assert "warnings" not in text[1]


def test_request_id_of_the_client_is_in_the_answer_but_not_the_engines_key(http, served):
    for _ in range(2):
        answer = http.post(TEXT, json={"prompt": "a"}, headers={"x-request-id": "mine"})
        assert answer.json()["id"] == "cmpl-mine"
    assert len(set(served.client.started)) == len(served.client.started)


def test_request_ids_are_echoed_where_asked_for():
    with serve({"enable_request_id_headers": True}) as served:
        given = httpx.get(f"{served.url}/health", headers={"x-request-id": "mine"})
        made = httpx.get(f"{served.url}/health", headers={"x-request-id": "bad id"})
    assert given.headers["x-request-id"] == "mine"
    assert len(made.headers["x-request-id"]) == 32


def test_trace_context_and_priority_reach_the_engine():
    with serve(policy="priority") as served:
        httpx.post(
            f"{served.url}{TEXT}",
            json={"prompt": "a", "priority": 1},
            headers={"traceparent": "00-a-b-01", "x-vllm-priority": "-3"},
        )
        assert served.client.calls[-1][2] == {
            "priority": -3,
            "trace": {"traceparent": "00-a-b-01"},
        }


def test_reports_are_there_where_the_operator_wants_them():
    config = {
        "enable_prompt_tokens_details": True,
        "enable_per_request_metrics": True,
        "enable_force_include_usage": True,
    }
    with serve(config) as served, httpx.Client(base_url=served.url) as http:
        answer = post(http, CHAT, messages=HI)
        chunks = events(http, CHAT, messages=HI)

    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    assert answer["metrics"]["time_to_first_token_ms"] == pytest.approx(10, abs=1)
    assert chunks[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}


def test_defaults_of_the_model_apply_where_the_request_is_silent():
    def with_defaults(client):
        client.config.model.default_sampling = {"temperature": 0.6, "stop_token_ids": [9]}

    with serve(setup=with_defaults) as served, httpx.Client(base_url=served.url) as http:
        post(http, TEXT, prompt="a")
        silent = served.client.calls[-1][1]
        post(http, TEXT, prompt="a", temperature=0.9, stop_token_ids=[8])
        spoken = served.client.calls[-1][1]

    assert (silent.temperature, silent.stop_token_ids) == (0.6, [9])
    assert (spoken.temperature, spoken.stop_token_ids) == (0.9, [8, 9])


def test_trusted_template_reaches_the_renderer_and_its_error_is_a_400():
    with serve({"trust_request_chat_template": True}) as served:
        answer = httpx.post(
            f"{served.url}{CHAT}", json={"messages": HI, "chat_template": "{{ broken"}
        )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "chat_template"


def test_tokenize_and_detokenize_are_inverse(http):
    tokens = post(http, "/tokenize", prompt="héllo", return_token_strs=True)
    chat = post(http, "/tokenize", messages=HI)

    assert tokens["count"] == len(tokens["tokens"]) == len(tokens["token_strs"]) == 7
    assert tokens["max_model_len"] == 512
    assert post(http, "/detokenize", tokens=tokens["tokens"])["prompt"] == "héllo"
    assert bytes(chat["tokens"]).decode() == "user: hi\nassistant: "


def test_probes_and_reports(http):
    for path in ("/health", "/ready", "/live", "/ping"):
        answer = http.get(path)
        assert (answer.status_code, answer.content) == (200, b"")
    assert http.head("/health").status_code == 200
    assert http.post("/ping").status_code == 200
    assert http.get("/version").json().keys() == {"version"}
    assert http.get("/platform/plugins").json()["platform"] == "fake"


def test_model_cards_are_the_fields(http):
    card = http.get("/v1/models").json()["data"][0]

    assert card["object"] == "model"
    assert card["owned_by"] == "pegboard"
    assert card["root"] == "/models/fake"
    assert card["max_model_len"] == 512
    assert card["permission"][0]["id"].startswith("modelperm-")


def test_metrics_show_engine_and_http_under_the_fields_names(http):
    post(http, TEXT, prompt="ab")
    http.get("/no/such/path/zebra")
    text = http.get("/metrics").text

    label = '{engine="0",model_name="fake-model"}'
    for prefix in ("vllm", "pegboard"):
        assert f"{prefix}:num_requests_running{label} 2.0" in text
        assert f"{prefix}:kv_cache_usage_perc{label} 0.25" in text
        assert f"{prefix}:prompt_tokens_total{label} 7.0" in text
        assert f"{prefix}:time_to_first_token_seconds_count{label} 1.0" in text
        assert f"{prefix}:inter_token_latency_seconds_sum{label} 0.32" in text
        assert f'{prefix}:request_success_total{{engine="0",finished_reason="stop"' in text
    assert 'http_requests_total{handler="/v1/completions",method="POST",status="200"}' in text
    assert "zebra" not in text
    assert "process_resident_memory_bytes" in text
    assert 'le="0.001"' in text
