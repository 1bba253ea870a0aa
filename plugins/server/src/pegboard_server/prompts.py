"""What a body asks to be continued, as prompts for the engine."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from pegboard.api.engine import EngineClient, Prompt, TextPrompt, TokensPrompt
from pegboard.api.errors import ContextLength, InvalidRequest
from pegboard.api.renderers import ChatOptions, RenderedPrompt

__all__ = [
    "check_messages",
    "check_output_budget",
    "check_text",
    "encode",
    "render",
    "split_prompts",
    "text_or_tokens",
    "truncated",
]

#: Texts longer than this are encoded and rendered in a thread, shorter ones at once.
_INLINE_CHARS = 8192
_ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function"))
_TEXT_PARTS = {"text": "text", "refusal": "refusal", "thinking": "thinking"}
_MEDIA_PARTS = ("image", "audio", "video", "input_audio", "prompt_embeds", "file")


def split_prompts(value: Any, max_prompts: int) -> list[str | list[int]]:  # noqa: ANN401 -- JSON
    """Return the prompts of a completion body: text, texts, ids or lists of ids.

    Raises:
        InvalidRequest: it is none of these, or empty.
    """
    if value is None:
        raise InvalidRequest("prompt is missing", param="prompt")
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise InvalidRequest(
            "prompt must be a string, a list of strings, a list of token ids, or a list of those",
            param="prompt",
        )
    if not value:
        raise InvalidRequest("prompt is an empty list", param="prompt")
    if _are_ids(value):
        return [value]
    if len(value) > max_prompts:
        raise InvalidRequest(
            f"prompt holds {len(value)} prompts; at most {max_prompts} are allowed (--max-prompts)",
            param="prompt",
        )
    if all(isinstance(one, str) for one in value):
        return value
    if all(isinstance(one, list) and one and _are_ids(one) for one in value):
        return value
    raise InvalidRequest(
        "prompt must hold only strings, only token ids, or only non-empty lists of token ids",
        param="prompt",
    )


def _are_ids(values: list[Any]) -> bool:
    return all(type(value) is int for value in values)


def check_text(client: EngineClient, text: str, param: str) -> None:
    """Refuse a text that no context could hold, before it is tokenised.

    Raises:
        ContextLength: it is too long.
    """
    limit = client.config.model.max_model_len * max(1, client.tokenizer.max_chars_per_token())
    if len(text) > limit:
        raise ContextLength(
            f"{param} has {len(text)} characters; a context of "
            f"{client.config.model.max_model_len} tokens holds at most {limit}",
            param="input_text",
        )


def check_output_budget(client: EngineClient, name: str, value: int | None) -> None:
    """Refuse an output longer than any context.

    Raises:
        InvalidRequest: naming the parameter.
    """
    longest = client.config.model.max_model_len
    if value is not None and value > longest:
        raise InvalidRequest(
            f"{name} is {str(value)[:24]}, more than the model's context of {longest} tokens",
            param=name,
        )


def text_or_tokens(
    client: EngineClient,
    prompt: str | list[int],
    *,
    cache_salt: str | None,
    add_special_tokens: bool,
) -> Prompt:
    """Return a completion's prompt for the engine.

    Raises:
        InvalidRequest: an id outside the vocabulary.
        ContextLength: longer than the context.
    """
    if isinstance(prompt, str):
        check_text(client, prompt, "prompt")
        return TextPrompt(
            prompt=prompt, cache_salt=cache_salt, add_special_tokens=add_special_tokens
        )
    vocab = client.config.model.description.vocab_size
    lowest, highest = min(prompt), max(prompt)
    if lowest < 0 or highest >= vocab:
        wrong = lowest if lowest < 0 else highest
        raise InvalidRequest(
            f"prompt has the token id {str(wrong)[:24]}; the vocabulary has ids 0 to {vocab - 1}",
            param="prompt",
        )
    return TokensPrompt(prompt_token_ids=prompt, cache_salt=cache_salt)


async def encode(client: EngineClient, text: str, *, add_special_tokens: bool) -> list[int]:
    """Return the ids of a text; long ones in a thread, so that other streams go on."""
    check_text(client, text, "prompt")
    tokenizer = client.tokenizer
    if len(text) <= _INLINE_CHARS:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    return await asyncio.to_thread(tokenizer.encode, text, add_special_tokens=add_special_tokens)


async def render(
    client: EngineClient, messages: Sequence[Mapping[str, Any]], options: ChatOptions
) -> RenderedPrompt:
    """Return a conversation as a prompt.

    Raises:
        InvalidRequest: the messages are malformed, or the template refuses them.
        ContextLength: no context could hold them.
    """
    size = check_messages(messages)
    limit = client.config.model.max_model_len * max(1, client.tokenizer.max_chars_per_token())
    if size > limit:
        raise ContextLength(
            f"messages have {size} characters; a context of "
            f"{client.config.model.max_model_len} tokens holds at most {limit}",
            param="input_text",
        )
    renderer = client.renderer
    if size <= _INLINE_CHARS:
        return renderer.render_chat(messages, options)
    return await asyncio.to_thread(renderer.render_chat, messages, options)


def check_messages(messages: Sequence[Mapping[str, Any]]) -> int:
    """Check the form of a conversation and return its number of characters.

    Raises:
        InvalidRequest: naming the message.
    """
    if not messages:
        raise InvalidRequest("messages is empty; at least one message is needed", param="messages")
    size = 0
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        role = message.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise InvalidRequest(
                f"{where}.role is {str(role)[:32]!r}; it must be one of "
                f"{', '.join(sorted(_ROLES))}",
                param=f"{where}.role",
            )
        content = message.get("content")
        if content is None:
            if role == "assistant" and message.get("tool_calls"):
                continue
            raise InvalidRequest(f"{where}.content is missing", param=f"{where}.content")
        size += _content_size(content, f"{where}.content")
    return size


def _content_size(content: Any, where: str) -> int:  # noqa: ANN401 -- JSON
    if isinstance(content, str):
        return len(content)
    if not isinstance(content, list) or not content:
        raise InvalidRequest(f"{where} must be text or a list of parts", param=where)
    size = 0
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind.startswith(_MEDIA_PARTS):
            raise InvalidRequest(
                f"{where}[{index}] is a part of type {kind[:32]!r}; this model takes only text",
                param=where,
            )
        field = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
        text = part.get(field) if field else None
        if not isinstance(text, str):
            raise InvalidRequest(
                f'{where}[{index}] must be a part such as {{"type": "text", "text": "…"}}',
                param=where,
            )
        size += len(text)
    return size


def truncated(token_ids: list[int], keep: int | None, side: str | None, longest: int) -> list[int]:
    """Return the prompt's ids cut to `keep` (-1: the context), from the left unless told.

    Raises:
        InvalidRequest: `keep` is out of range.
    """
    if keep is None:
        return token_ids
    if keep < -1 or keep == 0 or keep > longest:
        raise InvalidRequest(
            f"truncate_prompt_tokens is {str(keep)[:24]}; it must be -1 or 1 to {longest}",
            param="truncate_prompt_tokens",
        )
    count = longest if keep == -1 else keep
    return token_ids[:count] if side == "right" else token_ids[-count:]
