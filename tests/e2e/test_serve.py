"""`platform serve` with the default model: real text over a real socket, and real faults."""

import asyncio
import json
import os
import re
import signal
import threading
import time

import httpx
import openai
import pytest
from tests.support.platform_serve import is_alive, platform_serve

from pegboard.api.errors import PegboardError
from pegboard.config.env import read_environment

pytestmark = pytest.mark.e2e

FLAGS = ("--max-model-len", "1024", "--kv-cache-memory-bytes", "128M", "--dtype", "float32")
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
PROMPTS = [
    "The sun rises in the",
    "Water boils at a temperature of",
    "Once upon a time there was a",
    "The three primary colors are",
    "def add(a, b):\n    return",
    "My favourite season is",
    "The largest planet is",
    "To make tea, first",
]


@pytest.fixture(scope="module", autouse=True)
def default_model():
    """Skip where the default model is not there: tests fetch nothing."""
    from pegboard.engine.default_model import find_default_model

    try:
        find_default_model(read_environment().cache)
    except PegboardError:
        pytest.skip("needs the default model; platform serve prints the command that fetches it")


@pytest.fixture(scope="module")
def served():
    with platform_serve(*FLAGS) as running:
        yield running


@pytest.fixture(scope="module")
def client(served):
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def model(client):
    return client.models.list().data[0].id


def complete(client, model, prompt, **kwargs):
    return client.completions.create(model=model, prompt=prompt, temperature=0, **kwargs)


def number(served, name):
    """Return a metric's value."""
    text = httpx.get(f"{served.url}/metrics").text
    match = re.search(rf"^pegboard:{name}{{[^}}]*}} (\S+)$", text, re.M)
    assert match, name
    return float(match.group(1))


def until(condition, limit_s=15.0):
    end = time.monotonic() + limit_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        pause.wait(0.05)


def test_ready_line_says_what_was_chosen_and_how_to_try_it(served):
    until(lambda: f"curl {served.url}/v1/chat/completions" in served.output())
    text = served.output()

    assert "CPU_ATTN" in text or "REFERENCE" in text


def test_server_process_holds_no_torch(served):
    with open(f"/proc/{served.pid}/maps") as maps:
        assert "libtorch" not in maps.read()


def test_chat_answers_a_question(client, model):
    answer = client.chat.completions.create(
        model=model, messages=FRANCE, temperature=0, max_tokens=20
    )

    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"


def test_stream_is_the_whole_answer_in_pieces(client, model):
    whole = complete(client, model, PROMPTS[0], max_tokens=24).choices[0].text
    chunks = list(
        complete(
            client,
            model,
            PROMPTS[0],
            max_tokens=24,
            stream=True,
            stream_options={"include_usage": True},
        )
    )

    assert "".join(c.choices[0].text for c in chunks if c.choices) == whole
    assert chunks[-1].usage.completion_tokens == 24


async def test_texts_are_the_same_alone_and_together(served, client, model):
    alone = [complete(client, model, p, max_tokens=12).choices[0].text for p in PROMPTS]
    many = openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0)

    async def ask(prompt):
        stream = await many.completions.create(
            model=model, prompt=prompt, temperature=0, max_tokens=12, stream=True
        )
        return "".join([chunk.choices[0].text async for chunk in stream])

    async with many:
        together = await asyncio.gather(*(ask(prompt) for prompt in PROMPTS))

    assert together == alone


def test_several_prompts_in_one_request_match_single_ones(client, model):
    alone = [complete(client, model, p, max_tokens=6).choices[0].text for p in PROMPTS[:3]]
    answer = complete(client, model, PROMPTS[:3], max_tokens=6)

    assert [c.text for c in answer.choices] == alone
    assert answer.usage.completion_tokens == 18


def test_seed_repeats_and_choices_differ(client, model):
    def ask(seed):
        answer = client.completions.create(
            model=model, prompt=PROMPTS[2], temperature=1.2, n=3, seed=seed, max_tokens=12
        )
        return [c.text for c in answer.choices]

    first = ask(7)
    assert first == ask(7)
    assert len(set(first)) > 1


def test_logprobs_spell_the_text_and_rank_the_greedy_token_first(client, model):
    choice = complete(client, model, PROMPTS[0], max_tokens=8, logprobs=3).choices[0]
    logprobs = choice.logprobs

    assert "".join(logprobs.tokens) == choice.text
    assert len(logprobs.tokens) == 8
    for token, value, top in zip(
        logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True
    ):
        assert value <= 0
        assert top[token] == max(top.values())


def test_echoed_logprobs_of_a_continuation_match_those_of_its_generation(client, model):
    made = complete(client, model, PROMPTS[0], max_tokens=4, logprobs=0).choices[0]
    text = PROMPTS[0] + made.text
    read = complete(client, model, text, max_tokens=0, echo=True, logprobs=0).choices[0]

    assert read.text == text
    assert read.logprobs.tokens[-4:] == made.logprobs.tokens
    assert read.logprobs.token_logprobs[-4:] == pytest.approx(
        made.logprobs.token_logprobs, abs=2e-2
    )


def test_stop_string_ends_the_text_before_it(client, model):
    whole = complete(client, model, PROMPTS[3], max_tokens=24).choices[0].text
    mark = whole[len(whole) // 2 :][:4]
    choice = complete(client, model, PROMPTS[3], max_tokens=24, stop=[mark]).choices[0]

    assert choice.text == whole[: whole.index(mark)]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", mark)


def test_tokenize_agrees_with_usage_and_detokenize_with_the_text(served, client, model):
    tokens = httpx.post(f"{served.url}/tokenize", json={"prompt": PROMPTS[4]}).json()["tokens"]
    usage = complete(client, model, PROMPTS[4], max_tokens=1).usage
    text = httpx.post(f"{served.url}/detokenize", json={"tokens": tokens}).json()["prompt"]

    assert usage.prompt_tokens == len(tokens)
    assert text == PROMPTS[4]


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "x " * 3000},
        {"prompt": ""},
        {"temperature": -1},
        {"max_tokens": -1},
        {"logprobs": 1000},
        {"stop_token_ids": [10**6]},
        {"prompt": [10**6]},
    ],
    ids=str,
)
def test_bad_input_is_a_400_and_the_engine_goes_on(served, client, model, fields):
    answer = httpx.post(
        f"{served.url}/v1/completions", json={"prompt": "a", "model": model, **fields}
    )

    assert answer.status_code == 400, answer.text
    assert complete(client, model, "a", max_tokens=1).choices[0].finish_reason == "length"


@pytest.mark.parametrize("stream", [True, False])
def test_client_that_leaves_frees_its_blocks(served, model, stream):
    free = number(served, "kv_cache_free_blocks")
    body = {
        "model": model,
        "prompt": "Tell me a long story about a river. " * 8 + str(time.time_ns()),
        "max_tokens": 700,
        "ignore_eos": True,
        "stream": stream,
    }
    with httpx.Client(base_url=served.url, timeout=0.5) as http:
        if stream:
            with http.stream("POST", "/v1/completions", json=body, timeout=30) as answer:
                assert next(answer.iter_lines()).startswith("data: ")
        else:
            with pytest.raises(httpx.ReadTimeout):
                http.post("/v1/completions", json=body)

    until(lambda: number(served, "num_requests_running") == 0)
    until(lambda: number(served, "kv_cache_free_blocks") == free)
    assert httpx.get(f"{served.url}/load").json() == {"server_load": 0}


def test_metrics_count_what_was_served(served, client, model):
    prompts, outputs = (
        number(served, "prompt_tokens_total"),
        number(served, "generation_tokens_total"),
    )
    usage = complete(client, model, PROMPTS[6], max_tokens=5).usage

    until(lambda: number(served, "prompt_tokens_total") == prompts + usage.prompt_tokens)
    assert number(served, "generation_tokens_total") == outputs + 5
    assert number(served, "time_to_first_token_seconds_count") > 0


def open_stream(served, tokens=600):
    """Return a connection whose stream has begun."""
    http = httpx.Client(base_url=served.url, timeout=30)
    body = {"prompt": "Once", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    request = http.build_request("POST", "/v1/completions", json=body)
    response = http.send(request, stream=True)
    lines = response.iter_lines()
    assert next(lines).startswith("data: ")
    return http, lines


def test_killed_engine_core_fails_open_streams_and_ends_the_server():
    with platform_serve(*FLAGS) as served:
        http, lines = open_stream(served)
        (core,) = served.children()
        os.kill(core, signal.SIGKILL)
        rest = [line[6:] for line in lines if line.startswith("data: ")]
        http.close()
        status = served.wait(20)

    assert rest[-1] == "[DONE]"
    assert json.loads(rest[-2])["error"]["code"] == 500
    assert status not in (0, None)
    assert "engine" in served.lines[-1]


def test_sigterm_finishes_open_streams_and_leaves_no_process():
    with platform_serve(*FLAGS) as served:
        children = served.children()
        http, lines = open_stream(served, tokens=40)
        os.kill(served.pid, signal.SIGTERM)
        rest = [line[6:] for line in lines if line.startswith("data: ")]
        http.close()
        status = served.wait(30)

    assert rest[-1] == "[DONE]"
    assert json.loads(rest[-2])["choices"][0]["finish_reason"] == "length"
    assert status == 0
    assert not [pid for pid in children if is_alive(pid)]


def test_killed_server_leaves_no_process():
    with platform_serve(*FLAGS) as served:
        children = served.children()
        os.kill(served.pid, signal.SIGKILL)
        served.wait(10)

    until(lambda: not [pid for pid in children if is_alive(pid)])
