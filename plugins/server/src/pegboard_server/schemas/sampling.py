"""The fields that chat and text completion requests share, and what becomes of them."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from pegboard.api.errors import InvalidRequest
from pegboard.api.sampling_params import OutputKind, RepetitionDetection, SamplingParams

__all__ = ["GenerationBody", "Int", "StreamOptions", "Warnings"]

Int = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
Warnings = list[str]

#: Fields of the protocol that say nothing about the output; taken in silence.
_SILENT = frozenset(
    (
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prompt_cache_options",
        "session_id",
        "verbosity",
        "parallel_tool_calls",
        "include_reasoning",
    )
)
#: Fields that would change the output and cannot be served: field to what is missing.
_REFUSED = {
    "audio": "this server makes no audio",
    "bad_words_token_ids": "requests give bad_words",
    "best_of": "it was removed from the protocol; ask for n completions",
    "detokenize": "answers are text; ask for return_token_ids to get the ids too",
    "ec_transfer_params": "no connector is configured",
    "flat_logprobs": "answers have the protocol's form; it is for the offline API",
    "function_call": "tool parsers are not installed",
    "functions": "tool parsers are not installed",
    "guided_choice": "structured output backends are not installed",
    "guided_decoding_backend": "structured output backends are not installed",
    "guided_grammar": "structured output backends are not installed",
    "guided_json": "structured output backends are not installed",
    "guided_regex": "structured output backends are not installed",
    "guided_whitespace_pattern": "structured output backends are not installed",
    "kv_transfer_params": "no connector is configured",
    "media_io_kwargs": "requests may not set it",
    "mm_processor_kwargs": "requests may not set it",
    "output_kind": "stream decides it",
    "prompt_embeds": "prompt embeddings are not served",
    "routed_experts_prompt_start": "routed experts are not reported",
    "structured_outputs": "structured output backends are not installed",
    "thinking_token_budget": "no reasoning parser is installed",
    "watermarking": "it is not built",
    "web_search_options": "this server has no tools",
}
#: Fields whose values that change nothing are taken: field to those values.
_REFUSED_UNLESS: dict[str, tuple[Any, ...]] = {
    "modalities": (["text"],),
    "use_beam_search": (False,),
    "thinking_token_budget": (-1,),
    "best_of": (1,),
    "detokenize": (True,),
    "flat_logprobs": (False,),
}


class StreamOptions(BaseModel):
    """`stream_options`."""

    model_config = ConfigDict(strict=True, extra="ignore")

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class RepetitionDetectionBody(BaseModel):
    """`repetition_detection`."""

    model_config = ConfigDict(strict=True, extra="forbid")

    max_pattern_size: Int
    min_pattern_size: Int = 1
    min_count: Int = 2


class GenerationBody(BaseModel):
    """What both completion endpoints take. Types are strict; ranges are `SamplingParams`'."""

    model_config = ConfigDict(strict=True, extra="allow")

    model: str | None = None
    n: Int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: Int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[TokenId] | None = None
    ignore_eos: bool | None = None
    max_tokens: Int | None = None
    min_tokens: Int | None = None
    prompt_logprobs: Int | None = None
    prompt_logprob_token_ids: list[TokenId] | None = None
    prompt_logprob_start: Int | None = None
    logprob_token_ids: list[TokenId] | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    repetition_detection: RepetitionDetectionBody | None = None
    skip_reading_prefix_cache: bool | None = None
    vllm_xargs: dict[str, Any] | None = None
    length_penalty: float | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stream_interval: Int | None = None
    priority: Int | None = None
    request_id: Annotated[str, Field(max_length=128)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    truncate_prompt_tokens: Int | None = None
    truncation_side: str | None = None
    response_format: dict[str, Any] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None

    def check_unknown(self) -> Warnings:
        """Return a warning for each field that is ignored.

        Raises:
            InvalidRequest: a field would change the output and cannot be served.
        """
        warnings = []
        for name, value in (self.model_extra or {}).items():
            if name in _SILENT or value is None:
                continue
            if value in _REFUSED_UNLESS.get(name, ()):
                continue
            if name in _REFUSED or name in _REFUSED_UNLESS or name.startswith("trace_"):
                reason = _REFUSED.get(name, "it is not built")
                raise InvalidRequest(f"{name} cannot be served: {reason}", param=name)
            warnings.append(f"unknown parameter {name[:64]!r} was ignored")
        if self.length_penalty not in (None, 1.0):
            warnings.append("length_penalty was ignored: it is only for beam search")
        return warnings

    def check_shared(self, *, max_n: int, max_stop_strings: int) -> None:
        """Check what does not depend on the model and is not sampling.

        Raises:
            InvalidRequest: naming the parameter.
        """
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options needs stream=true", param="stream_options")
        self._check_prompt_logprobs()
        if self.n is not None and self.n > max_n:
            raise InvalidRequest(
                f"n is {self.n}; the server allows at most {max_n} (--max-n)", param="n"
            )
        if isinstance(self.stop, list) and len(self.stop) > max_stop_strings:
            raise InvalidRequest(
                f"stop has {len(self.stop)} strings; at most {max_stop_strings} are allowed "
                "(--max-stop-strings)",
                param="stop",
            )
        if self.truncation_side not in (None, "left", "right"):
            raise InvalidRequest("truncation_side must be left or right", param="truncation_side")
        if self.cache_salt is not None and any(c in self.cache_salt for c in "@/\\\0"):
            raise InvalidRequest("cache_salt may not hold @, /, \\ or NUL", param="cache_salt")
        kind = (self.response_format or {"type": "text"}).get("type")
        if kind != "text":
            raise InvalidRequest(
                f"response_format {kind!r} cannot be served: structured output backends are not "
                "installed",
                param="response_format",
            )

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether the answer reports on the prompt's positions."""
        return self.prompt_logprobs is not None or self.prompt_logprob_token_ids is not None

    def _check_prompt_logprobs(self) -> None:
        for name in ("prompt_logprobs", "prompt_logprob_token_ids"):
            if getattr(self, name) is not None and self.stream:
                raise InvalidRequest(f"{name} cannot be streamed; leave out stream", param=name)
        if self.prompt_logprob_start is not None and not self.wants_prompt_logprobs:
            raise InvalidRequest(
                "prompt_logprob_start needs prompt_logprobs or prompt_logprob_token_ids",
                param="prompt_logprob_start",
            )

    def sampling_params(
        self,
        defaults: Mapping[str, Any],
        output_kind: OutputKind,
        **given: Any,  # noqa: ANN401 -- values of sampling fields
    ) -> SamplingParams:
        """Return the sampling parameters: request, then the server's defaults, then Pegboard's.

        Args:
            defaults: the model's default sampling values, by field name.
            output_kind: how outputs should come.
            given: what the endpoint decides (max_tokens, logprobs, …); None is left out.

        Raises:
            InvalidRequest: a value is out of range.
        """
        known = SamplingParams.__struct_fields__
        values = {k: v for k, v in defaults.items() if k in known and v is not None}
        stop_ids = list(values.get("stop_token_ids", ()))
        for name in _SAMPLING_FIELDS:
            value = getattr(self, name)
            if value is not None:
                values[name] = value
        if self.stop_token_ids and stop_ids:
            values["stop_token_ids"] = [*self.stop_token_ids, *stop_ids]
        if isinstance(self.stop, str):
            values["stop"] = [self.stop]
        if self.logit_bias:
            values["logit_bias"] = _token_biases(self.logit_bias)
        if self.repetition_detection is not None:
            values["repetition_detection"] = RepetitionDetection(
                **self.repetition_detection.model_dump()
            )
        if self.vllm_xargs is not None:
            values["extra_args"] = self.vllm_xargs
        values.update((k, v) for k, v in given.items() if v is not None)
        return SamplingParams(output_kind=output_kind, **values)


_SAMPLING_FIELDS = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "stop_token_ids",
    "bad_words",
    "allowed_token_ids",
    "ignore_eos",
    "min_tokens",
    "prompt_logprobs",
    "prompt_logprob_token_ids",
    "prompt_logprob_start",
    "logprob_token_ids",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
    "stream_interval",
    "skip_reading_prefix_cache",
)


def _token_biases(biases: dict[str, float]) -> dict[int, float]:
    result = {}
    for key, bias in biases.items():
        if not (key.isascii() and key.isdecimal() and len(key) <= 10):
            raise InvalidRequest(
                f"logit_bias has the key {key[:32]!r}; keys are token ids", param="logit_bias"
            )
        if bias != bias:
            raise InvalidRequest(f"logit_bias of {key} is not a number", param="logit_bias")
        result[int(key)] = bias
    return result
