"""Every bad request gets one clear 4xx in the protocol's form; nothing gives 500."""

import json
import socket
from urllib.parse import urlsplit

import httpx
import pytest
from tests.support.served import serve

from pegboard_server.app import own_routes

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


@pytest.fixture(scope="module")
def served():
    with serve(config={"max_request_body_bytes": 200_000, "max_json_depth": 20}) as running:
        yield running


@pytest.fixture(scope="module")
def http(served):
    with httpx.Client(base_url=served.url, timeout=20) as client:
        yield client


def assert_error(response, status, param=None, words=""):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status
    assert error["message"]
    assert "\n" not in error["message"]
    if param is not None:
        assert error["param"] == param, error
    assert words in error["message"]


CHAT_FIELDS = [
    ("temperature", -0.1),
    ("temperature", 2.5),
    ("temperature", "hot"),
    ("temperature", True),
    ("temperature", 10**400),
    ("top_p", 0),
    ("top_p", 1.5),
    ("top_k", -2),
    ("top_k", 1.5),
    ("min_p", 2),
    ("presence_penalty", 3),
    ("frequency_penalty", -3),
    ("repetition_penalty", 0),
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_tokens", 10**30),
    ("max_tokens", 100_000),
    ("max_tokens", "ten"),
    ("max_completion_tokens", 100_000),
    ("n", 0),
    ("n", 10**9),
    ("n", "two"),
    ("seed", 2**70),
    ("stop", ""),
    ("stop", ["a", ""]),
    ("stop", ["x"] * 1000),
    ("logit_bias", {"a": 1}),
    ("logit_bias", {"100000": 1}),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", [100_000]),
    ("allowed_token_ids", []),
    ("allowed_token_ids", [100_000]),
    ("bad_words", [""]),
    ("top_logprobs", 3),
    ("prompt_logprobs", 10_000),
    ("prompt_logprob_start", 1),
    ("prompt_logprob_token_ids", [100_000]),
    ("flat_logprobs", True),
    ("detokenize", False),
    ("output_kind", "final"),
    ("stream_options", {"include_usage": True}),
    ("response_format", {"type": "json_object"}),
    ("response_format", {"type": "json_schema", "json_schema": {}}),
    ("structured_outputs", {"regex": "a+"}),
    ("guided_json", {}),
    ("tools", []),
    ("tools", [TOOL]),
    ("tool_choice", "auto"),
    ("functions", [{"name": "f"}]),
    ("use_beam_search", True),
    ("chat_template", "{{ messages }}"),
    ("thinking_token_budget", 10),
    ("watermarking", {"on": True}),
    ("kv_transfer_params", {"a": 1}),
    ("modalities", ["text", "audio"]),
    ("priority", 5),
    ("cache_salt", ""),
    ("cache_salt", "a/b"),
    ("truncate_prompt_tokens", 0),
    ("truncation_side", "middle"),
    ("truncation_side", 3),
    ("repetition_detection", {"max_pattern_size": 0}),
    ("repetition_detection", {"what": 1}),
    ("messages", []),
    ("messages", "hi"),
    ("messages", [1]),
    ("messages", None),
    ("stream", "yes"),
    ("model", 7),
]


@pytest.mark.parametrize(("field", "value"), CHAT_FIELDS, ids=str)
def test_bad_chat_field_is_refused_by_name(http, field, value):
    body = {"messages": MESSAGES, field: value}

    response = http.post(CHAT, json=body)

    assert_error(response, 400)
    error = response.json()["error"]
    assert (error["param"] or "").partition(".")[0].partition("[")[0] == field, error


BAD_MESSAGES = [
    [{}],
    [{"role": "user"}],
    [{"role": "nobody", "content": "x"}],
    [{"role": 3, "content": "x"}],
    [{"role": "user", "content": None}],
    [{"role": "user", "content": 5}],
    [{"role": "user", "content": []}],
    [{"role": "user", "content": ["x"]}],
    [{"role": "user", "content": [{"type": "text"}]}],
    [{"role": "user", "content": [{"type": "text", "text": 5}]}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}],
    [{"role": "user", "content": [{"type": ["x"]}]}],
    [{"role": "user", "content": "ok"}, {"role": "user"}],
]


@pytest.mark.parametrize("messages", BAD_MESSAGES, ids=str)
def test_bad_message_is_refused_and_located(http, messages):
    response = http.post(CHAT, json={"messages": messages})

    assert_error(response, 400)
    assert response.json()["error"]["param"].startswith(f"messages[{len(messages) - 1}]")


BAD_PROMPTS = [
    None,
    5,
    {"a": 1},
    [],
    [[]],
    ["a", 1],
    [1, "a"],
    [True],
    [1.5],
    [[1], "a"],
    [-1],
    [100_000],
    [10**30],
    ["x"] * 2000,
]


@pytest.mark.parametrize("prompt", BAD_PROMPTS, ids=lambda p: str(p)[:20])
def test_bad_prompt_is_refused(http, prompt):
    assert_error(http.post(TEXT, json={"prompt": prompt}), 400, "prompt")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("suffix", "end"),
        ("logprobs", 10_000),
        ("logprobs", -2),
        ("logprobs", True),
        ("max_tokens", 0),
        ("best_of", 3),
        ("prompt_embeds", "AAAA"),
        ("logprob_token_ids", [1]),
    ],
)
def test_bad_completion_field_is_refused_by_name(http, field, value):
    assert_error(http.post(TEXT, json={"prompt": "a", field: value}), 400, field)


@pytest.mark.parametrize("top", [21, -1, -7, 10**12])
def test_top_logprobs_out_of_range_are_refused_by_that_name(http, top):
    body = {"messages": MESSAGES, "logprobs": True, "top_logprobs": top}
    assert_error(http.post(CHAT, json=body), 400, "top_logprobs", "20")


def test_prompts_times_n_are_bounded(http):
    body = {"prompt": ["a"] * 100, "n": 50}
    assert_error(http.post(TEXT, json=body), 400, "n", "5000")


def test_prompt_past_the_context_names_both_numbers(http):
    response = http.post(TEXT, json={"prompt": "x" * 600})

    assert_error(response, 400, "input_tokens", "601")
    assert "512" in response.json()["error"]["message"]


def test_absurdly_long_text_is_refused_before_it_is_tokenised(http, served):
    calls = len(served.client.calls)

    assert_error(http.post(TEXT, json={"prompt": "x" * 100_000}), 400, "input_text")

    assert len(served.client.calls) == calls


def test_streams_are_refused_with_a_status_too(http):
    response = http.post(TEXT, json={"prompt": "x" * 600, "stream": True})

    assert_error(response, 400, "input_tokens")


RAW_BODIES = [
    b"",
    b"{",
    b"nonsense",
    b"[]",
    b"3",
    b"null",
    b'"text"',
    b"\xff\xfe\x00",
    b'{"prompt": "\xc3\x28"}',
    b'{"prompt": "\\ud800", "messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"prompt": "a"',
    b'{"prompt": "a" "b"}',
    b'{"a":' * 5000 + b"1" + b"}" * 5000,
    b"[" * 100_000,
    b'{"prompt": "a", "x": ' + b"[" * 30 + b"]" * 30 + b"}",
    b'"' + b'\\"' * 50_000,
    b"\x00" * 100,
    b'{"messages": 1e999}',
]
POSTS = [route.path for route in own_routes() if route.methods == ("POST",)]


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("body", RAW_BODIES, ids=lambda b: repr(b[:16]))
def test_malformed_body_is_refused_on_every_route(http, path, body):
    response = http.post(path, content=body, headers={"content-type": "application/json"})

    assert_error(response, 400)


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("kind", ["text/plain", "", "application/x-www-form-urlencoded", "json"])
def test_wrong_content_type_is_refused_on_every_route(http, path, kind):
    response = http.post(path, content=b"{}", headers={"content-type": kind})

    assert_error(response, 400, "Content-Type")


@pytest.mark.parametrize("path", [route.path for route in own_routes()])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_no_method_gives_a_500(http, path, method):
    response = http.request(method, path)

    assert response.status_code < 500
    if response.status_code == 405:
        assert_error(response, 405)
        assert method not in response.headers["allow"].split(", ")


JUNK = [None, True, -1, 1.5, "", "x", [], [None], {}, {"a": []}, 10**25, [[[]]]]


@pytest.mark.parametrize("path", POSTS)
def test_no_junk_in_any_field_gives_a_500(http, path):
    from pegboard_server.schemas import requests

    fields = {
        CHAT: requests.ChatBody,
        TEXT: requests.CompletionBody,
        "/tokenize": requests.TokenizeBody,
        "/detokenize": requests.DetokenizeBody,
    }[path].model_fields
    for name in fields:
        for junk in JUNK:
            body = {"prompt": "a"} if path in (TEXT, "/tokenize") else {"messages": MESSAGES}
            if path == "/detokenize":
                body = {"tokens": [97]}
            body[name] = junk
            response = http.post(path, json=body)
            assert response.status_code < 500, (name, junk, response.text)


def test_body_past_the_limit_is_413_announced_or_not(http):
    big = b'{"prompt": "' + b"x" * 300_000 + b'"}'
    headers = {"content-type": "application/json"}

    assert_error(http.post(TEXT, content=big, headers=headers), 413)

    pieces = (big[i : i + 10_000] for i in range(0, len(big), 10_000))
    try:
        response = http.post(TEXT, content=pieces, headers=headers)
    except httpx.WriteError:
        return  # the server answered and closed before everything was sent
    assert_error(response, 413)


def test_tokenize_needs_a_prompt_or_messages(http):
    assert_error(http.post("/tokenize", json={}), 400)
    assert_error(http.post("/tokenize", json={"prompt": "a", "messages": MESSAGES}), 400)


@pytest.mark.parametrize("tokens", [[-1], [10**6], ["a"], [1.5]], ids=str)
def test_detokenize_refuses_what_is_no_token(http, tokens):
    response = http.post("/detokenize", json={"tokens": tokens})

    assert_error(response, 400)
    assert response.json()["error"]["param"].startswith("tokens")


def test_unknown_path_is_404(http):
    assert_error(http.get("/nothing/here"), 404)


def exchange(url, data, wait_s=10):
    """Send raw bytes; return all that comes until the server closes."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=wait_s) as raw:
        raw.sendall(data)
        pieces = []
        try:
            while piece := raw.recv(65536):
                pieces.append(piece)
        except ConnectionResetError:
            pass
    return b"".join(pieces)


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"GET \xff\xfe HTTP/1.1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=repr,
)
def test_what_is_not_http_is_a_400(served, data):
    answer = exchange(served.url, data)

    assert answer.startswith(b"HTTP/1.1 400")
    body = answer.partition(b"\r\n\r\n")[2]
    if body:
        assert json.loads(body)["error"]["code"] == 400


@pytest.mark.parametrize(
    "headers",
    [
        b"X: " + b"y" * 100_000,
        b"".join(b"X%d: y\r\n" % i for i in range(400)),
        b"".join(b"X%d: %s\r\n" % (i, b"y" * 1000) for i in range(100)),
    ],
    ids=["long", "many", "both"],
)
def test_too_many_headers_are_refused(served, headers):
    answer = exchange(served.url, b"GET /health HTTP/1.1\r\n" + headers + b"\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 431")


def test_endless_header_is_refused_before_it_ends(served):
    answer = exchange(served.url, b"GET /health HTTP/1.1\r\nX: " + b"y" * 100_000)

    assert answer.startswith(b"HTTP/1.1 431")


def test_the_server_still_answers_after_all_that(http):
    assert http.post(TEXT, json={"prompt": "ab"}).json()["choices"][0]["text"] == "AB"
    assert http.get("/load").json() == {"server_load": 0}
