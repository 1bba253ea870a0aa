"""What the endpoints answer, whole and in chunks. Unset fields are left out of the JSON."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

__all__ = [
    "ChatChoice",
    "ChatChunk",
    "ChatChunkChoice",
    "ChatLogprobs",
    "ChatResponse",
    "Completion",
    "CompletionChoice",
    "CompletionLogprobs",
    "Delta",
    "Message",
    "ModelCard",
    "ModelList",
    "TokenLogprob",
    "TopLogprob",
    "Usage",
]


class Usage(msgspec.Struct, kw_only=True):
    """Token counts of a request."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: dict[str, int] | UnsetType = UNSET


class TopLogprob(msgspec.Struct, kw_only=True):
    """One alternative at a position."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob, kw_only=True):
    """A position: its token and the alternatives."""

    top_logprobs: list[TopLogprob] = []


class ChatLogprobs(msgspec.Struct, kw_only=True):
    """`logprobs` of a chat choice."""

    content: list[TokenLogprob]


class Message(msgspec.Struct, kw_only=True):
    """The answer of a chat."""

    role: str
    content: str | None
    refusal: None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    reasoning: str | None = None


class ChatChoice(msgspec.Struct, kw_only=True):
    """One answer of a chat."""

    index: int
    message: Message
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatResponse(msgspec.Struct, kw_only=True):
    """The whole answer to a chat request."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    service_tier: None = None
    system_fingerprint: str | None
    usage: Usage
    prompt_logprobs: list[Any] | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET
    metrics: dict[str, float | None] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


class Delta(msgspec.Struct, kw_only=True):
    """What a chunk adds to an answer."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    """One answer's part of a chunk."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, kw_only=True):
    """One event of a chat stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType = UNSET
    system_fingerprint: str | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET
    metrics: dict[str, float | None] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


class CompletionLogprobs(msgspec.Struct, kw_only=True):
    """`logprobs` of a text completion; four lists of one length."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One text completion, or a chunk's part of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: list[Any] | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Completion(msgspec.Struct, kw_only=True):
    """The whole answer to a completion request, or one event of its stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    system_fingerprint: str | UnsetType | None = UNSET
    usage: Usage | UnsetType = UNSET
    metrics: dict[str, float | None] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


class ModelCard(msgspec.Struct, kw_only=True):
    """One entry of `/v1/models`."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "pegboard"
    root: str
    parent: str | None = None
    max_model_len: int
    permission: list[dict[str, Any]] = []


class ModelList(msgspec.Struct, kw_only=True):
    """`/v1/models`."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
