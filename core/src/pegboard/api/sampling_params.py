"""How one request is sampled. Part of every front end's contract and of the engine's messages."""

from typing import Any, Literal, Self

import msgspec

from pegboard.api._sampling_types import check_types
from pegboard.api.errors import InvalidRequest

__all__ = ["MAX_N", "OutputKind", "RepetitionDetection", "SamplingParams"]

#: Most completions of one prompt in one request.
MAX_N = 16_384
_GREEDY_BELOW = 1e-5
_LOWEST_TEMPERATURE = 0.01
_MAX_BAD_WORDS = 128
_MAX_LOGPROB_IDS = 128

OutputKind = Literal["cumulative", "delta", "final"]


class RepetitionDetection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """End a request whose last tokens repeat a pattern; its finish reason is "repetition".

    Attributes:
        max_pattern_size: longest pattern looked for, in tokens.
        min_pattern_size: shortest pattern looked for, in tokens.
        min_count: how often the pattern must stand at the end, at least 2.
    """

    max_pattern_size: int
    min_pattern_size: int = 1
    min_count: int = 2

    def __post_init__(self) -> None:
        """Check the types and the bounds."""
        if any(type(getattr(self, name)) is not int for name in self.__struct_fields__):
            raise InvalidRequest(
                "repetition_detection takes whole numbers only", param="repetition_detection"
            )
        if not 1 <= self.min_pattern_size <= self.max_pattern_size:
            raise InvalidRequest(
                "repetition_detection needs 1 <= min_pattern_size <= max_pattern_size; got "
                f"{self.min_pattern_size} and {self.max_pattern_size}",
                param="repetition_detection",
            )
        if self.min_count < 2:
            raise InvalidRequest(
                f"repetition_detection.min_count is {self.min_count}; at least 2 is needed",
                param="repetition_detection",
            )


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sampling parameters of one request; the field's usual names and rules.

    A value out of range raises `InvalidRequest` with the parameter's name when the struct is
    made. Rules that need the model (vocabulary, context length, limits) are `check_model`'s.
    Temperatures below 1e-5 mean greedy; those in between are raised to 0.01.

    Attributes:
        n: completions of the prompt; must be 1 if greedy.
        presence_penalty, frequency_penalty: over output tokens, [-2, 2].
        repetition_penalty: over prompt and output tokens, [1e-6, 1e6], so that logits stay
            finite in float32; 1 is off.
        temperature: [0, 2].
        top_p: (0, 1].
        top_k: 0 or -1 is off.
        min_p: [0, 1], relative to the most likely token.
        seed: of the request's random numbers; None (or -1) takes one from the engine's seed.
        stop: strings that end the text; found in the front end.
        stop_token_ids: token ids that end the sequence.
        bad_words: strings never produced; the front end turns them into `bad_words_token_ids`.
        bad_words_token_ids: token sequences never produced.
        ignore_eos: go on after the end-of-sequence token.
        max_tokens: most output tokens; None for what the context allows.
        min_tokens: no stop token before so many output tokens.
        logprobs: most likely tokens to report a position, -1 for the whole vocabulary.
        prompt_logprobs: the same for prompt positions.
        logprob_token_ids: report these ids a position instead.
        prompt_logprob_token_ids: report these ids at each prompt position.
        prompt_logprob_start: first prompt position to report on.
        flat_logprobs: give logprobs in the flat, garbage-collection-friendly container.
        detokenize: make text; False leaves only token ids.
        skip_special_tokens, spaces_between_special_tokens: of the text.
        include_stop_str_in_output: keep the stop string in the text.
        output_kind: what `AsyncLLM.generate` yields each time.
        stream_interval: yield at every so many tokens; the first and the last at once.
        logit_bias: token id to bias, clamped to [-100, 100].
        allowed_token_ids: only these may be produced.
        repetition_detection: end a looping request.
        skip_reading_prefix_cache: compute the whole prompt anew.
        extra_args: free arguments for plugins; JSON values, integers within 64 bits.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: list[str] = []
    stop_token_ids: list[int] = []
    bad_words: list[str] = []
    bad_words_token_ids: list[list[int]] = []
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    prompt_logprob_token_ids: list[int] | None = None
    prompt_logprob_start: int | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: OutputKind = "cumulative"
    stream_interval: int | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    repetition_detection: RepetitionDetection | None = None
    skip_reading_prefix_cache: bool = False
    extra_args: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        """Normalise what has several spellings, then check every type and range."""
        _normalise(self)
        _check_ranges(self)
        _check_lists(self)

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0

    def replace(self, **changes: Any) -> Self:  # noqa: ANN401 -- any field
        """Return a copy with some fields changed, checked anew."""
        return msgspec.structs.replace(self, **changes)

    def check_model(self, *, vocab_size: int, max_logprobs: int) -> None:
        """Check what only the model decides: ids inside the vocabulary, logprobs within limits.

        Args:
            vocab_size: number of token ids the model can produce.
            max_logprobs: most logprobs a position; -1 for no limit.

        Raises:
            InvalidRequest: naming the parameter.
        """
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(self, name)
            wanted = vocab_size if count == -1 else count
            if wanted is not None and max_logprobs != -1 and wanted > max_logprobs:
                raise InvalidRequest(
                    f"{name} is {count}; the server allows at most {max_logprobs} (--max-logprobs)",
                    param=name,
                )
        ids: dict[str, list[int]] = {
            "stop_token_ids": self.stop_token_ids,
            "logit_bias": list(self.logit_bias or ()),
            "allowed_token_ids": self.allowed_token_ids or [],
            "bad_words_token_ids": [t for word in self.bad_words_token_ids for t in word],
            "logprob_token_ids": self.logprob_token_ids or [],
            "prompt_logprob_token_ids": self.prompt_logprob_token_ids or [],
        }
        for name, values in ids.items():
            for token_id in values:
                if not 0 <= token_id < vocab_size:
                    raise InvalidRequest(
                        f"{name} has {token_id}; the vocabulary has ids 0 to {vocab_size - 1}",
                        param=name,
                    )


def _set(params: SamplingParams, name: str, value: object) -> None:
    msgspec.structs.force_setattr(params, name, value)


def _normalise(p: SamplingParams) -> None:
    if p.seed == -1:
        _set(p, "seed", None)
    if p.top_k == -1:
        _set(p, "top_k", 0)
    if isinstance(p.stop, str):
        _set(p, "stop", [p.stop])
    for name in ("logprobs", "prompt_logprobs"):
        value = getattr(p, name)
        if isinstance(value, bool):
            _set(p, name, 1 if value else None)
    for name in _LISTS:
        value: Any = getattr(p, name)
        if type(value) is tuple:
            _set(p, name, [*getattr(p, name)])
    check_types(p)
    detection: Any = p.repetition_detection
    if detection is not None and not isinstance(detection, RepetitionDetection):
        raise InvalidRequest(
            "repetition_detection must be a RepetitionDetection", param="repetition_detection"
        )
    _set(p, "stop_token_ids", list(dict.fromkeys(p.stop_token_ids)))
    if p.logit_bias:
        _set(p, "logit_bias", {t: max(-100.0, min(100.0, b)) for t, b in p.logit_bias.items()})
    _normalise_temperature(p)


def _normalise_temperature(p: SamplingParams) -> None:
    _check_one(p, "temperature")
    if 0.0 <= p.temperature < _GREEDY_BELOW:
        for name, value in (("temperature", 0.0), ("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
            _check_one(p, name)
            _set(p, name, value)
    elif _GREEDY_BELOW <= p.temperature < _LOWEST_TEMPERATURE:
        _set(p, "temperature", _LOWEST_TEMPERATURE)


#: field: (least, most, least is excluded, whole number)
_RANGES: dict[str, tuple[float, float, bool, bool]] = {
    "n": (1, MAX_N, False, True),
    "presence_penalty": (-2, 2, False, False),
    "frequency_penalty": (-2, 2, False, False),
    "repetition_penalty": (1e-6, 1e6, False, False),
    "temperature": (0, 2, False, False),
    "top_p": (0, 1, True, False),
    "top_k": (0, 2**31 - 1, False, True),
    "min_p": (0, 1, False, False),
    "seed": (-(2**63), 2**63 - 1, False, True),
    "max_tokens": (1, 2**31 - 1, False, True),
    "min_tokens": (0, 2**31 - 1, False, True),
    "logprobs": (-1, 2**31 - 1, False, True),
    "prompt_logprobs": (-1, 2**31 - 1, False, True),
    "prompt_logprob_start": (0, 2**31 - 1, False, True),
    "stream_interval": (1, 2**31 - 1, False, True),
}
_LISTS = (
    "stop",
    "stop_token_ids",
    "bad_words",
    "bad_words_token_ids",
    "allowed_token_ids",
    "logprob_token_ids",
    "prompt_logprob_token_ids",
)
_OPTIONAL = {
    "seed",
    "max_tokens",
    "logprobs",
    "prompt_logprobs",
    "prompt_logprob_start",
    "stream_interval",
}


def _in_range(value: Any, least: float, most: float, excluded: bool, whole: bool) -> bool:  # noqa: ANN401
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        return False
    # Comparisons alone: converting a huge int to float would overflow. A NaN fails the last one.
    if value > most:
        return False
    return value > least if excluded else value >= least


def _shown(value: Any) -> str:  # noqa: ANN401
    if isinstance(value, int) and abs(value) >= 2**64:
        return f"a number of {value.bit_length()} bits"
    return repr(value)[:80]


def _check_one(p: SamplingParams, name: str) -> None:
    least, most, excluded, whole = _RANGES[name]
    value = getattr(p, name)
    if value is None and name in _OPTIONAL:
        return
    if not _in_range(value, least, most, excluded, whole):
        kind = "a whole number" if whole else "a number"
        raise InvalidRequest(
            f"{name} is {_shown(value)}; it must be {kind}, {'above' if excluded else 'at least'} "
            f"{least:g} and at most {most:g}",
            param=name,
        )


def _check_ranges(p: SamplingParams) -> None:
    for name in _RANGES:
        _check_one(p, name)
    if p.n > 1 and p.is_greedy:
        raise InvalidRequest(
            f"n is {p.n} with temperature 0: all completions would be equal; ask for n=1 or a "
            "temperature above 0",
            param="n",
        )
    if p.max_tokens is not None and p.min_tokens > p.max_tokens:
        raise InvalidRequest(
            f"min_tokens is {p.min_tokens}, more than max_tokens={p.max_tokens}",
            param="min_tokens",
        )


def _check_lists(p: SamplingParams) -> None:
    if any(not s for s in p.stop):
        raise InvalidRequest("stop has an empty string; it would end every text", param="stop")
    if p.stop and not p.detokenize:
        raise InvalidRequest(
            "stop strings need detokenize=true; use stop_token_ids instead", param="stop"
        )
    for name in ("bad_words", "bad_words_token_ids"):
        if not all(getattr(p, name)):
            raise InvalidRequest(f"{name} has an empty entry", param=name)
    if len(p.bad_words) > _MAX_BAD_WORDS:
        raise InvalidRequest(
            f"bad_words has {len(p.bad_words)} entries; at most {_MAX_BAD_WORDS} are allowed",
            param="bad_words",
        )
    if p.allowed_token_ids is not None and not p.allowed_token_ids:
        raise InvalidRequest(
            "allowed_token_ids is empty; nothing could be produced", param="allowed_token_ids"
        )
    for name in ("logprob_token_ids", "prompt_logprob_token_ids"):
        ids = getattr(p, name)
        if ids is not None and len(ids) > _MAX_LOGPROB_IDS:
            raise InvalidRequest(
                f"{name} has {len(ids)} ids; at most {_MAX_LOGPROB_IDS} are allowed", param=name
            )
    if p.logprob_token_ids and p.logprobs not in (None, len(p.logprob_token_ids)):
        raise InvalidRequest(
            f"logprobs is {p.logprobs} but logprob_token_ids has {len(p.logprob_token_ids)} ids; "
            "leave logprobs out or make them equal",
            param="logprobs",
        )
