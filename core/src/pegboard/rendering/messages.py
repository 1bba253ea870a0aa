"""Chat messages as clients write them, checked and brought to the form templates read."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pegboard.api.errors import InvalidRequest

__all__ = ["normalize_messages", "plain_data"]

#: A value read from JSON, of any type until it is checked.
Json = Any

_MAX_DEPTH = 64
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}


def normalize_messages(
    messages: Sequence[Mapping[str, Any]], *, keep_parts: bool
) -> list[dict[str, Any]]:
    """Return fresh messages of plain data.

    Args:
        messages: as the OpenAI protocol writes them.
        keep_parts: leave lists of text parts as they are, for templates that read them; else
            they become one text with line breaks between.

    Raises:
        InvalidRequest: a message is malformed; says which.
    """
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence) or not messages:
        raise InvalidRequest("messages must be a list of at least one message", param="messages")
    return [_message(message, index, keep_parts) for index, message in enumerate(messages)]


def plain_data(value: Json, what: str, depth: int = 0) -> Json:
    """Return a copy that holds nothing but JSON's types.

    Raises:
        InvalidRequest: it holds something else, or is nested too deep.
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    if depth >= _MAX_DEPTH:
        raise InvalidRequest(f"{what} is nested more than {_MAX_DEPTH} deep", param=what)
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise InvalidRequest(f"{what} has a key that is not text", param=what)
        return {str(key): plain_data(item, what, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_data(item, what, depth + 1) for item in value]
    raise InvalidRequest(f"{what} holds a {type(value).__name__}, which is no JSON", param=what)


def _message(message: Json, index: int, keep_parts: bool) -> dict[str, Any]:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise InvalidRequest(
            f"{where} is a {type(message).__name__}, not an object", param="messages"
        )
    fields = plain_data(message, "messages")
    role = fields.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequest(f"{where} has no role", param="messages")
    calls = fields.pop("tool_calls", None)
    if fields.get("content") is None and not calls and role != "assistant":
        raise InvalidRequest(f"{where} ({role}) has no content", param="messages")
    fields["content"] = _content(fields.get("content"), where, keep_parts)
    if calls:
        fields["tool_calls"] = _tool_calls(calls, where)
    return fields


def _content(content: Json, where: str, keep_parts: bool) -> str | list[dict[str, str]]:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(
            f"{where}.content is neither text nor a list of parts", param="messages"
        )
    texts = [_part(part, f"{where}.content[{index}]") for index, part in enumerate(content)]
    if keep_parts:
        return [{"type": "text", "text": text} for text in texts]
    return "\n".join(texts)


def _part(part: Json, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type", "text") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        raise InvalidRequest(f"{where} is no content part", param="messages")
    key = _TEXT_PARTS.get(kind)
    if key is None:
        raise InvalidRequest(
            f"{where} has the type {kind!r}; this model takes text only", param="messages"
        )
    text = part.get(key)
    if not isinstance(text, str):
        raise InvalidRequest(f"{where} has no {key}", param="messages")
    return text


def _tool_calls(calls: Json, where: str) -> list[dict[str, Any]]:
    """Return calls whose arguments are objects: templates write them out themselves."""
    if not isinstance(calls, list):
        raise InvalidRequest(f"{where}.tool_calls is no list", param="messages")
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidRequest(f"{where}.tool_calls[{index}] names no function", param="messages")
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            function["arguments"] = _arguments(arguments, f"{where}.tool_calls[{index}]")
    return calls


def _arguments(text: str, where: str) -> Json:
    try:
        arguments = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"{where}.function.arguments is not JSON: {error}", param="messages"
        ) from error
    return plain_data(arguments, "messages")
