import threading
from collections.abc import Sequence
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from pegboard.api.errors import ContextLength, InvalidRequest, ModelError
from pegboard.api.models import ModelDescription
from pegboard.api.plugin import ComponentContext
from pegboard.api.renderers import ChatOptions
from pegboard.api.tokenizers import Tokenizer
from pegboard.rendering.chat import ChatTemplateRenderer

CHATML = (
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TOOLS_AND_THOUGHTS = """\
{%- if tools %}
    {{- 'tools:\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson }}
        {{- '\\n' }}
    {%- endfor %}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1, seen=false) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if message.role == 'user' and not ns.seen %}
        {%- set ns.seen = true %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if '</think>' in content %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '[' ~ message.role ~ ']' ~ content|trim }}
    {%- for call in message.tool_calls or [] %}
        {{- '<call>' + call.function.name + call.function.arguments|tojson + '</call>' }}
    {%- endfor %}
    {%- if loop.index0 == ns.last %}{{- '*' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '[assistant]' }}
{%- endif %}
"""
PARTS = (
    "{{ bos_token }}{% for message in messages %}<{{ message['role'] }}>"
    "{% if message['content'] is string %}{{ message['content'] | trim }}"
    "{% elif message['content'] is iterable %}{% for item in message['content'] %}"
    "{% if item['type'] == 'text' %}{{ item['text'] | trim }}{% endif %}{% endfor %}"
    "{% else %}{{ raise_exception('Invalid content type') }}{% endif %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}"
)
TEMPLATES = {"chatml": CHATML, "tools": TOOLS_AND_THOUGHTS, "parts": PARTS}

CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": " What is 2 + 2? <b>é</b> "},
    {"role": "assistant", "content": "<think>hm</think>\n\nIt is 4."},
    {"role": "user", "content": "And 3 + 3?"},
]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


class Letters(Tokenizer):
    """One id a character."""

    def __init__(self) -> None:
        pass

    vocab_size = 0x110000
    special_ids = frozenset()
    special_tokens = {"bos_token": "<s>", "eos_token": "</s>"}

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [0] * add_special_tokens + [ord(letter) for letter in text]

    def decode(self, token_ids: Sequence[int], **options: bool) -> str:
        return "".join(map(chr, token_ids))

    def token(self, token_id: int) -> str | None:
        return chr(token_id)

    def token_id(self, token: str) -> int | None:
        return ord(token)

    def max_chars_per_token(self) -> int:
        return 1


def renderer(template: str | None, max_model_len: int = 100_000) -> ChatTemplateRenderer:
    description = ModelDescription(
        path="a-model",
        format="hf",
        architectures=("A",),
        config={},
        dtype="float32",
        vocab_size=8,
        max_model_len=max_model_len,
        loader="safetensors",
        tokenizer="hf",
        chat_template=template,
    )
    return ChatTemplateRenderer(ComponentContext(plugin="builtin"), description, Letters())


def rendered(template: str, messages: list[Any], **options: Any) -> str:
    text = renderer(template).render_chat(messages, ChatOptions(**options)).text
    assert text is not None
    return text


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_text_equals_transformers(name: str, add_generation_prompt: bool, tools: Any) -> None:
    expected, _ = render_jinja_template(
        conversations=[CONVERSATION],
        chat_template=TEMPLATES[name],
        tools=tools,
        add_generation_prompt=add_generation_prompt,
        bos_token="<s>",
        eos_token="</s>",
    )
    ours = rendered(
        TEMPLATES[name], CONVERSATION, tools=tools, add_generation_prompt=add_generation_prompt
    )
    assert ours == expected[0]


def test_ids_are_those_of_the_text_without_added_tokens() -> None:
    prompt = renderer(CHATML).render_chat(CONVERSATION, ChatOptions())
    assert prompt.text is not None
    assert prompt.token_ids == [ord(letter) for letter in prompt.text]
    options = ChatOptions(add_special_tokens=True)
    assert renderer(CHATML).render_chat(CONVERSATION, options).token_ids[0] == 0


def test_parts_become_lines_where_the_template_wants_text() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    text = rendered(CHATML, [{"role": "user", "content": parts}])
    assert "<|im_start|>user\none\ntwo<|im_end|>" in text


def test_parts_stay_parts_where_the_template_reads_them() -> None:
    parts = [{"type": "text", "text": " one "}, {"type": "text", "text": "two"}]
    assert rendered(PARTS, [{"role": "user", "content": parts}]) == "<s><user>onetwo"


def test_tool_arguments_reach_the_template_as_objects() -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": '{"a": [1, 2]}'}}
    messages = [
        {"role": "user", "content": "add"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "3"},
    ]
    text = rendered(TOOLS_AND_THOUGHTS, messages)
    assert '<call>add{"a": [1, 2]}</call>' in text
    assert call["function"]["arguments"] == '{"a": [1, 2]}', "the caller's message has changed"


def test_final_message_is_left_open() -> None:
    messages = [*CONVERSATION, {"role": "assistant", "content": "The answer is "}]
    options = {"continue_final_message": True, "add_generation_prompt": False}
    assert rendered(CHATML, messages, **options).endswith("assistant\nThe answer is ")
    assert rendered(PARTS, messages, **options).endswith("<assistant>The answer is ")


def test_template_that_drops_the_final_message_cannot_continue_it() -> None:
    options = {"continue_final_message": True, "add_generation_prompt": False}
    with pytest.raises(InvalidRequest, match="cannot be continued"):
        rendered("nothing", CONVERSATION, **options)


def test_documents_and_further_variables_reach_the_template() -> None:
    template = "{{ documents[0].title }}{{ enable_thinking }}{{ depth }}"
    text = rendered(
        template,
        CONVERSATION,
        documents=[{"title": "T"}],
        template_kwargs={"enable_thinking": False, "depth": 3},
    )
    assert text == "TFalse3"


def test_request_template_replaces_the_models() -> None:
    own = renderer(CHATML)
    options = ChatOptions(chat_template="{{ messages|length }}")
    assert own.render_chat(CONVERSATION, options).text == "3"
    assert own.render_chat(CONVERSATION, options).text == "3"
    assert "<|im_start|>" in (own.render_chat(CONVERSATION, ChatOptions()).text or "")


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "at least one"),
        ("text", "must be a list"),
        (None, "must be a list"),
        ({"role": "user"}, "must be a list"),
        (["text"], "not an object"),
        ([{}], "no role"),
        ([{"role": "", "content": "x"}], "no role"),
        ([{"role": 7, "content": "x"}], "no role"),
        ([{"role": "user"}], "no content"),
        ([{"role": "user", "content": 7}], "neither text nor a list"),
        ([{"role": "user", "content": [7]}], "no content part"),
        ([{"role": "user", "content": [{"type": []}]}], "no content part"),
        ([{"role": "user", "content": [{"type": "text"}]}], "has no text"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            "takes text only",
        ),
        ([{"role": "user", "content": "x", "extra": object()}], "no JSON"),
        ([{"role": "user", "content": "x", "extra": {1: 2}}], "not text"),
        ([{"role": "assistant", "tool_calls": "x"}], "no list"),
        ([{"role": "assistant", "tool_calls": [{}]}], "names no function"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
            "not JSON",
        ),
    ],
)
def test_malformed_messages_are_refused(messages: Any, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as caught:
        rendered(CHATML, messages)
    assert caught.value.param == "messages"
    assert "\n" not in str(caught.value)


def test_endlessly_nested_message_is_refused() -> None:
    nested: Any = "x"
    for _ in range(10_000):
        nested = [nested]
    with pytest.raises(InvalidRequest, match="nested"):
        rendered(CHATML, [{"role": "user", "content": "x", "extra": nested}])


def test_templates_refusal_is_the_requests_fault() -> None:
    messages = [{"role": "assistant", "content": "I begin"}]
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        rendered(PARTS, messages)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"continue_final_message": True}, "exclude each other"),
        ({"chat_template": "{% if %}"}, "does not compile"),
        ({"chat_template": "{{ " + "(" * 5000}, "does not compile"),
        ({"chat_template": "x" * 300_000}, "longer than"),
        ({"chat_template": "{{ x|nosuchfilter }}"}, "does not compile"),
        ({"chat_template": "{% for i in range(99999999) %}{% endfor %}"}, "was stopped"),
        ({"chat_template": "{{ 1 / 0 }}"}, "division"),
        ({"template_kwargs": {"messages": []}}, "may not set"),
        ({"template_kwargs": {"chat_template": "x"}}, "may not set"),
        ({"template_kwargs": {"raise_exception": "x"}}, "may not set"),
        ({"template_kwargs": {"a b": 1}}, "may not set"),
        ({"template_kwargs": {"__class__": 1}}, "may not set"),
        ({"template_kwargs": {"a": object()}}, "no JSON"),
    ],
)
def test_options_that_cannot_be_served_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as caught:
        rendered(CHATML, CONVERSATION, **options)
    assert "\n" not in str(caught.value)


def test_model_without_a_template_says_so() -> None:
    with pytest.raises(InvalidRequest, match="--chat-template"):
        renderer(None).render_chat(CONVERSATION, ChatOptions())


def test_model_whose_template_does_not_compile_stops_the_start() -> None:
    with pytest.raises(ModelError, match=r"a-model.*--chat-template"):
        renderer("{% for %}")


def test_text_that_cannot_fit_is_refused_before_it_is_tokenised() -> None:
    messages = [{"role": "user", "content": "x" * 1000}]
    with pytest.raises(ContextLength, match="100 tokens"):
        renderer(CHATML, max_model_len=100).render_chat(messages, ChatOptions())


def test_threads_render_independently() -> None:
    own = renderer("{% for i in range(200) %}{{ messages[0].content }}{% endfor %}")
    results: dict[int, str | None] = {}

    def run(number: int) -> None:
        messages = [{"role": "user", "content": str(number)}]
        results[number] = own.render_chat(messages, ChatOptions()).text

    threads = [threading.Thread(target=run, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert results == {number: str(number) * 200 for number in range(10)}
