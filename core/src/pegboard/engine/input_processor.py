"""What a client asked for becomes checked requests for the engine core, one a completion.

Every check that needs the model's numbers is here, so that bad input never reaches the engine
core. Thread-safe: tokenising runs in a pool.
"""

import random
import secrets
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pegboard.api.engine import Prompt, TextPrompt, TokensPrompt
from pegboard.api.errors import ContextLength, InvalidRequest
from pegboard.api.messages import EngineCoreRequest, LoraRequest
from pegboard.api.sampling import LogitsProcessor
from pegboard.api.sampling_params import SamplingParams
from pegboard.api.tokenizers import Tokenizer
from pegboard.config.engine import EngineConfig

__all__ = ["InputProcessor", "PreparedRequest"]

_MAX_BAD_WORD_TOKENS = 1024
_MAX_SALT_CHARS = 1024
_SEED_SPAN = 2**63
_MAX_EXTRA_INT = 2**64


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """One client's request, checked and tokenised.

    Attributes:
        request_id: the client's own.
        prompt: the text, where it was text.
        prompt_token_ids: shared by all completions.
        params: as the client gave them.
        children: `params.n` requests for the engine core, by completion index.
        arrival_time: seconds since the epoch.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    children: list[EngineCoreRequest]
    arrival_time: float


class InputProcessor:
    """Checks and tokenises for one model."""

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: Tokenizer,
        logits_processors: Iterable[type[LogitsProcessor]] = (),
    ) -> None:
        """Read the model's limits; `logits_processors` check their own arguments."""
        self._model = config.model
        self._vocab_size = config.model.description.vocab_size
        self._eos = list(config.model.description.eos_token_ids)
        self._tokenizer = tokenizer
        self._max_chars = config.model.max_model_len * max(1, tokenizer.max_chars_per_token())
        self._logits_processors = tuple(logits_processors)
        self._seeds = random.Random(config.model.seed)  # noqa: S311 -- sampling, not secrets
        self._seeds_lock = threading.Lock()

    def process(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        priority: int = 0,
        lora: LoraRequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
        arrival_time: float | None = None,
    ) -> PreparedRequest:
        """Check everything, cheapest first, and tokenise.

        Raises:
            InvalidRequest: naming the parameter.
            ContextLength: the prompt leaves no room for a token of output; says both numbers.
        """
        self._check_params(params, lora)
        self._check_salt(prompt.cache_salt)
        _check_priority(priority)
        token_ids = self.prompt_token_ids(prompt)
        sampling = self._sampling(params, len(token_ids))
        arrival = time.time() if arrival_time is None else arrival_time
        inner = f"{request_id}-{secrets.token_hex(4)}"
        children = [
            EngineCoreRequest(
                request_id=inner if params.n == 1 else f"{index}_{inner}",
                prompt_token_ids=token_ids,
                sampling=child,
                eos_token_ids=self._eos,
                arrival_time=arrival,
                priority=priority,
                cache_salt=prompt.cache_salt,
                trace_headers=dict(trace_headers) if trace_headers else None,
            )
            for index, child in enumerate(_fan_out(sampling, params.n))
        ]
        return PreparedRequest(request_id, prompt.prompt, token_ids, params, children, arrival)

    def prompt_token_ids(self, prompt: Prompt) -> list[int]:
        """Return a prompt's ids, checked against the vocabulary and the context.

        Raises:
            InvalidRequest: empty, of a wrong type, or an id outside the vocabulary.
            ContextLength: it leaves no room for a token of output.
        """
        if isinstance(prompt, TokensPrompt):
            token_ids = prompt.prompt_token_ids
            self._check_ids(token_ids)
        else:
            token_ids = self.tokenize(prompt)
        self._check_length(len(token_ids))
        return token_ids

    def tokenize(self, prompt: TextPrompt) -> list[int]:
        """Return the ids of a text, unless it is longer than any text that fits."""
        text = prompt.prompt
        if not isinstance(text, str):
            raise InvalidRequest(
                f"the prompt is {type(text).__name__}; give text or token ids", param="prompt"
            )
        if len(text) > self._max_chars:
            raise ContextLength(
                f"the prompt has {len(text)} characters; {self._model.max_model_len} tokens, the "
                f"model's context, are at most {self._max_chars}",
                param="prompt",
            )
        try:
            token_ids = self._tokenizer.encode(text, add_special_tokens=prompt.add_special_tokens)
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"the prompt is not valid Unicode: {error.reason} at character {error.start}",
                param="prompt",
            ) from error
        if not token_ids:
            raise InvalidRequest("the prompt is empty; give at least one token", param="prompt")
        return token_ids

    def _check_ids(self, token_ids: Sequence[int]) -> None:
        if not token_ids:
            raise InvalidRequest("the prompt is empty; give at least one token", param="prompt")
        if any(type(t) is not int for t in token_ids):
            raise InvalidRequest("the prompt's token ids must be whole numbers", param="prompt")
        for token_id in (min(token_ids), max(token_ids)):
            if not 0 <= token_id < self._vocab_size:
                raise InvalidRequest(
                    f"the prompt has token id {token_id}; the vocabulary has ids 0 to "
                    f"{self._vocab_size - 1}",
                    param="prompt",
                )

    def _check_length(self, num_tokens: int) -> None:
        limit = self._model.max_model_len
        if num_tokens >= limit:
            raise ContextLength(
                f"the prompt has {num_tokens} tokens; the model's context is {limit}, output "
                f"included, so at most {limit - 1} fit",
                param="prompt",
            )

    def _check_params(self, params: SamplingParams, lora: LoraRequest | None) -> None:
        params.check_model(vocab_size=self._vocab_size, max_logprobs=self._model.max_logprobs)
        if lora is not None:
            raise InvalidRequest(
                f"adapter {lora.name!r} was asked for; this engine serves no adapters",
                param="lora",
            )
        if params.extra_args:
            self._check_extra(params)

    def _check_extra(self, params: SamplingParams) -> None:
        extra = params.extra_args or {}
        if not self._logits_processors:
            names = ", ".join(sorted(map(str, extra)))
            raise InvalidRequest(
                f"extra_args has {names}; nothing enabled here takes it (--logits-processors)",
                param="extra_args",
            )
        for name, value in extra.items():
            if isinstance(value, int) and not -(_MAX_EXTRA_INT // 2) <= value < _MAX_EXTRA_INT:
                raise InvalidRequest(
                    f"extra_args.{name} is {value}, which is beyond 64 bits", param="extra_args"
                )
        for processor in self._logits_processors:
            processor.validate(params)

    def _check_salt(self, salt: str | None) -> None:
        if salt is None:
            return
        if not isinstance(salt, str) or not 0 < len(salt) <= _MAX_SALT_CHARS:
            raise InvalidRequest(
                f"cache_salt must be a text of 1 to {_MAX_SALT_CHARS} characters",
                param="cache_salt",
            )
        try:
            salt.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"cache_salt is not valid Unicode: {error.reason}", param="cache_salt"
            ) from error

    def _sampling(self, params: SamplingParams, num_prompt_tokens: int) -> SamplingParams:
        room = self._model.max_model_len - num_prompt_tokens
        wanted = room if params.max_tokens is None else min(params.max_tokens, room)
        if params.min_tokens > wanted:
            raise ContextLength(
                f"min_tokens is {params.min_tokens}, but behind a prompt of {num_prompt_tokens} "
                f"tokens the model's context of {self._model.max_model_len} leaves {room}",
                param="min_tokens",
            )
        seed = params.seed
        if seed is None:
            with self._seeds_lock:
                seed = self._seeds.randrange(_SEED_SPAN)
        return params.replace(
            n=1,
            seed=seed,
            max_tokens=wanted,
            bad_words_token_ids=params.bad_words_token_ids + self._bad_word_ids(params.bad_words),
        )

    def _bad_word_ids(self, words: Sequence[str]) -> list[list[int]]:
        """Tokenise each word as a text's start and behind a space."""
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            for text in (word, f" {word.lstrip()}"):
                ids = self._tokenizer.encode(text, add_special_tokens=False)
                if ids:
                    found[tuple(ids)] = None
        total = sum(map(len, found))
        if total > _MAX_BAD_WORD_TOKENS:
            raise InvalidRequest(
                f"bad_words make {total} tokens; at most {_MAX_BAD_WORD_TOKENS} are allowed",
                param="bad_words",
            )
        return [list(ids) for ids in found]


def _check_priority(priority: object) -> None:
    if type(priority) is not int or not -_SEED_SPAN <= priority < _SEED_SPAN:
        raise InvalidRequest(
            f"priority is {ascii(priority)[:40]}; it must be a whole number of 64 bits",
            param="priority",
        )


def _fan_out(sampling: SamplingParams, n: int) -> list[SamplingParams]:
    if n == 1:
        return [sampling]
    base = sampling.seed or 0
    span = 2 * _SEED_SPAN
    return [
        sampling.replace(seed=(base + index + _SEED_SPAN) % span - _SEED_SPAN) for index in range(n)
    ]
