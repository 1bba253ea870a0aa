"""What a client of the engine gets back."""

from typing import Any

import msgspec

from pegboard.api.messages import FinishReason, LoraRequest

__all__ = ["CompletionOutput", "Logprob", "PositionLogprobs", "RequestMetrics", "RequestOutput"]


class Logprob(msgspec.Struct, frozen=True):
    """One reported token: natural log-probability, rank (1 is the most likely), its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


#: Token id to `Logprob` at one position; the token itself comes first.
PositionLogprobs = dict[int, Logprob]


class CompletionOutput(msgspec.Struct, kw_only=True):
    """One completion of a request; text, ids and logprobs are a delta where deltas were asked for.

    Attributes:
        index: 0 to n - 1.
        cumulative_logprob: sum over the sequence so far, if logprobs were asked for.
        finish_reason: None while it runs.
        stop_reason: the stop string, or stop token id, that ended it; None for end of sequence.
    """

    index: int
    text: str = ""
    token_ids: list[int] = []
    cumulative_logprob: float | None = None
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


class RequestMetrics(msgspec.Struct, kw_only=True):
    """Times of a request, in seconds since the epoch, and counts."""

    arrival_time: float = 0.0
    queued_ts: float = 0.0
    scheduled_ts: float = 0.0
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0
    num_generation_tokens: int = 0
    num_preemptions: int = 0


class RequestOutput(msgspec.Struct, kw_only=True):
    """A request as its client sees it.

    Attributes:
        request_id: the client's own id.
        prompt: the text, where it was text.
        prompt_logprobs: one entry a prompt position; None at the first, which nothing precedes, and
            before `SamplingParams.prompt_logprob_start`. Complete when it comes.
        outputs: the completions, by index.
        finished: all completions are.
        num_cached_tokens: prompt tokens that came from the prefix cache.
    """

    request_id: str
    prompt: str | None = None
    prompt_token_ids: list[int] = []
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    outputs: list[CompletionOutput] = []
    finished: bool = False
    metrics: RequestMetrics | None = None
    lora_request: LoraRequest | None = None
    num_cached_tokens: int = 0
    extra: dict[str, Any] = {}
