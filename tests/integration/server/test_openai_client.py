"""The official client against the server on a real socket."""

import openai
import pytest
from tests.support.served import serve


@pytest.fixture(scope="module")
def served():
    with serve() as running:
        yield running


@pytest.fixture
def client(served):
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def chat(client, **kwargs):
    return client.chat.completions.create(
        model="fake-model", messages=[{"role": "user", "content": "hi there"}], **kwargs
    )


def test_chat_answers_whole(client):
    answer = chat(client, max_tokens=12)

    assert answer.object == "chat.completion"
    assert answer.model == "fake-model"
    assert answer.id.startswith("chatcmpl-")
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == "USER: HI THE"
    assert answer.choices[0].finish_reason == "length"
    prompt = len("user: hi there\nassistant: ")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (prompt, 12)
    assert answer.usage.total_tokens == prompt + 12


def test_chat_streams_the_same_text_in_the_protocols_order(client):
    whole = chat(client).choices[0].message.content

    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))

    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == len(whole)
    assert len({c.id for c in chunks}) == 1


def test_chat_with_n_gives_every_choice_whole_and_streamed(client):
    whole = chat(client, n=3, max_tokens=4)
    texts = ["", "", ""]
    for chunk in chat(client, n=3, max_tokens=4, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""

    assert [c.index for c in whole.choices] == [0, 1, 2]
    assert texts == [c.message.content for c in whole.choices]


def test_chat_logprobs_have_the_chosen_token_and_alternatives(client):
    content = chat(client, max_tokens=2, logprobs=True, top_logprobs=2).choices[0].logprobs.content

    assert [c.token for c in content] == ["U", "S"]
    assert content[0].bytes == [ord("U")]
    assert len(content[0].top_logprobs) == 2
    assert content[0].top_logprobs[0].logprob >= content[0].top_logprobs[1].logprob


def test_chat_stream_carries_logprobs(client):
    chunks = chat(client, max_tokens=2, logprobs=True, top_logprobs=1, stream=True)
    tokens = [
        entry.token
        for chunk in chunks
        for choice in chunk.choices
        if choice.logprobs
        for entry in choice.logprobs.content
    ]

    assert tokens == ["U", "S"]


def test_stop_string_ends_and_is_named(client):
    choice = chat(client, stop=[" HI"]).choices[0]

    assert (choice.message.content, choice.finish_reason) == ("USER:", "stop")
    assert choice.stop_reason == " HI"


def test_completion_answers_whole(client):
    answer = client.completions.create(model="fake-model", prompt="abc", max_tokens=2)

    assert answer.object == "text_completion"
    assert answer.choices[0].text == "AB"
    assert answer.usage.prompt_tokens == 4


def test_completion_takes_every_form_of_prompt(client):
    def texts(prompt):
        answer = client.completions.create(model="fake-model", prompt=prompt)
        return [c.text for c in answer.choices]

    assert texts("ab") == ["AB"]
    assert texts(["ab", "cd"]) == ["AB", "CD"]
    assert texts([97, 98]) == ["AB"]
    assert texts([[97, 98], [99]]) == ["AB", "C"]


def test_completion_choices_are_numbered_prompt_by_prompt(client):
    answer = client.completions.create(
        model="fake-model", prompt=["ab", "cd"], n=2, temperature=1.0
    )

    assert [(c.index, c.text) for c in answer.choices] == [
        (0, "AB"),
        (1, "AB"),
        (2, "CD"),
        (3, "CD"),
    ]


def test_completion_stream_of_several_prompts_adds_up(client):
    texts = {}
    usage = None
    for chunk in client.completions.create(
        model="fake-model",
        prompt=["abc", "defg"],
        n=2,
        stream=True,
        stream_options={"include_usage": True},
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text

    assert texts == {0: "ABC", 1: "ABC", 2: "DEFG", 3: "DEFG"}
    assert usage.prompt_tokens == 4 + 5
    assert usage.completion_tokens == 2 * (3 + 4)


def test_completion_echo_with_logprobs_covers_prompt_and_output(client):
    choice = client.completions.create(
        model="fake-model", prompt=[97, 98, 99], max_tokens=1, echo=True, logprobs=1
    ).choices[0]

    assert choice.text == "abcA"
    assert choice.logprobs.tokens == ["a", "b", "c", "A"]
    assert choice.logprobs.text_offset == [0, 1, 2, 3]
    assert choice.logprobs.token_logprobs[0] is None
    assert choice.logprobs.top_logprobs[0] is None
    assert len(choice.logprobs.top_logprobs[1]) == 2


def test_echo_with_no_output_scores_the_prompt_alone(client):
    answer = client.completions.create(
        model="fake-model", prompt="abc", max_tokens=0, echo=True, logprobs=0
    )

    assert answer.choices[0].text == "abc"
    assert answer.usage.completion_tokens == 0
    assert len(answer.choices[0].logprobs.tokens) == 4


def test_models_are_listed_and_found(client):
    listed = client.models.list().data

    assert [m.id for m in listed] == ["fake-model", "alias"]
    assert client.models.retrieve("alias").id == "alias"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nothing")


def test_unknown_model_is_not_found_and_named(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "x"}])

    assert caught.value.body["param"] == "model"
    assert "gpt-9" in caught.value.body["message"]


def test_bad_sampling_value_is_a_bad_request_that_names_it(client):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, temperature=-1)

    assert caught.value.body["param"] == "temperature"
    assert caught.value.body["code"] == 400


def test_tools_are_refused_by_name(client):
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    with pytest.raises(openai.BadRequestError, match="parsers are not installed"):
        chat(client, tools=[tool])


def test_unknown_parameter_is_reported_not_swallowed(client):
    answer = chat(client, max_tokens=1, extra_body={"colour": "blue"})

    assert answer.warnings == ["unknown parameter 'colour' was ignored"]


async def test_async_client_streams(served):
    client = openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)
    async with client:
        stream = await client.chat.completions.create(
            model="fake-model", messages=[{"role": "user", "content": "ab"}], stream=True
        )
        text = [c.choices[0].delta.content or "" async for c in stream]

    assert "".join(text) == "USER: AB\nASSISTANT: "
