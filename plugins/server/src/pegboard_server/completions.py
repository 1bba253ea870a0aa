"""`POST /v1/completions`."""

import asyncio
import time
from typing import Any

from msgspec import UNSET

from pegboard.api.errors import InvalidRequest
from pegboard.api.outputs import CompletionOutput, RequestOutput
from pegboard_server.chat import priority_of, trace_headers
from pegboard_server.generation import (
    EngineCall,
    UsageCount,
    all_or_none,
    finish_of,
    open_outputs,
    request_metrics,
    run_to_end,
)
from pegboard_server.limits import read_json
from pegboard_server.logprobs import TextOffsets, prompt_logprobs_json
from pegboard_server.prompts import (
    check_output_budget,
    encode,
    split_prompts,
    text_or_tokens,
    truncated,
)
from pegboard_server.responder import HttpRequest
from pegboard_server.schemas.requests import CompletionBody
from pegboard_server.schemas.responses import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
)
from pegboard_server.sse import EventStream, encode_event, send_events
from pegboard_server.state import ServerState

__all__ = ["completions"]

_DEFAULT_MAX_TOKENS = 16


async def completions(state: ServerState, request: HttpRequest) -> None:
    """Answer a completion request, whole or as a stream."""
    body = await read_json(request, CompletionBody, state.config)
    job = await _CompletionJob.prepare(state, request, body)
    if body.stream:
        await request.while_connected(job.stream(request))
    else:
        response = await request.while_connected(job.whole())
        await request.answer_json(response)


class _CompletionJob:
    """One completion request, checked; a call of the engine for each of its prompts."""

    __slots__ = (
        "as_ids",
        "body",
        "calls",
        "created",
        "id",
        "model",
        "prompt_only",
        "state",
        "usage",
        "warnings",
    )

    def __init__(self, state: ServerState, body: CompletionBody, public_id: str) -> None:
        config = state.config
        self.state = state
        self.body = body
        self.id = public_id
        self.created = int(time.time())
        self.model = state.served_name(body.model)
        self.warnings = body.check_unknown()
        body.check_shared(max_n=config.max_n, max_stop_strings=config.max_stop_strings)
        if body.suffix:
            raise InvalidRequest(
                "suffix cannot be served: this model does not fill in the middle", param="suffix"
            )
        if body.echo and body.stream and body.logprobs is not None:
            raise InvalidRequest("echo with logprobs cannot be streamed", param="echo")
        if body.echo and body.logprobs is not None and body.prompt_logprob_start:
            raise InvalidRequest(
                "echo with logprobs reports on the whole prompt; leave out prompt_logprob_start",
                param="prompt_logprob_start",
            )
        if body.logprob_token_ids is not None and body.logprobs is None:
            raise InvalidRequest("logprob_token_ids needs logprobs", param="logprob_token_ids")
        wanted = body.return_tokens_as_token_ids
        self.as_ids = config.return_tokens_as_token_ids if wanted is None else wanted
        self.prompt_only = body.max_tokens == 0 and bool(body.echo)
        self.usage = UsageCount(details=config.enable_prompt_tokens_details)
        self.calls: list[EngineCall] = []

    @classmethod
    async def prepare(
        cls, state: ServerState, request: HttpRequest, body: CompletionBody
    ) -> "_CompletionJob":
        """Check everything and make the calls.

        Raises:
            RequestError: the request cannot be served.
        """
        job = cls(state, body, f"cmpl-{body.request_id or request.request_id}")
        client = state.client
        prompts = split_prompts(body.prompt, state.config.max_prompts)
        params = job._sampling()
        _check_fan_out(len(prompts), params.n, state.config.max_prompts)
        priority = priority_of(state, request, body.priority)
        for prompt in prompts:
            job.calls.append(
                EngineCall(
                    request_id=state.engine_request_id(job.id),
                    prompt=await job._prompt(prompt),
                    params=params,
                    priority=priority,
                    trace_headers=trace_headers(request),
                    prompt_text=await job._echo_text(prompt) if body.echo else None,
                )
            )
        params.check_model(
            vocab_size=client.config.model.description.vocab_size,
            max_logprobs=client.config.model.max_logprobs,
        )
        return job

    def _sampling(self) -> Any:  # noqa: ANN401 -- SamplingParams, checked by its own struct
        body = self.body
        client = self.state.client
        defaults = client.config.model.default_sampling
        check_output_budget(client, "max_tokens", body.max_tokens)
        max_tokens = body.max_tokens
        if max_tokens is None:
            max_tokens = defaults.get("max_tokens", _DEFAULT_MAX_TOKENS)
        prompt_logprobs = body.prompt_logprobs
        if body.echo and body.logprobs is not None and prompt_logprobs is None:
            prompt_logprobs = body.logprobs
        return body.sampling_params(
            defaults,
            "delta" if body.stream else "final",
            max_tokens=1 if self.prompt_only else max_tokens,
            logprobs=None if body.logprob_token_ids else body.logprobs,
            prompt_logprobs=prompt_logprobs,
        )

    async def _prompt(self, prompt: str | list[int]) -> Any:  # noqa: ANN401 -- a Prompt
        body = self.body
        client = self.state.client
        special = body.add_special_tokens is not False
        if body.truncate_prompt_tokens is None:
            return text_or_tokens(
                client, prompt, cache_salt=body.cache_salt, add_special_tokens=special
            )
        if isinstance(prompt, str):
            prompt = await encode(client, prompt, add_special_tokens=special)
        longest = client.config.model.max_model_len
        kept = truncated(prompt, body.truncate_prompt_tokens, body.truncation_side, longest)
        if not kept:
            raise InvalidRequest("prompt is empty", param="prompt")
        return text_or_tokens(client, kept, cache_salt=body.cache_salt, add_special_tokens=special)

    async def _echo_text(self, prompt: str | list[int]) -> str:
        if isinstance(prompt, str):
            return prompt
        decode = self.state.client.tokenizer.decode
        return await asyncio.to_thread(decode, prompt, skip_special_tokens=False)

    def _completion(self, choices: list[CompletionChoice]) -> Completion:
        return Completion(id=self.id, created=self.created, model=self.model, choices=choices)

    def _offsets(self) -> TextOffsets:
        top = self.body.logprobs or 0
        return TextOffsets(-1 if self.body.logprob_token_ids else top, as_ids=self.as_ids)

    async def whole(self) -> Completion:
        """Return the whole answer."""
        async with asyncio.timeout(self.state.config.request_timeout_s or None):
            outputs = await all_or_none([run_to_end(self.state, call) for call in self.calls])
        choices = []
        for number, (call, output) in enumerate(zip(self.calls, outputs, strict=True)):
            for completion in output.outputs:
                if self.prompt_only:
                    _drop_output(completion)
                index = number * call.params.n + completion.index
                choices.append(self._choice(call, output, completion, index))
            self.usage.add_whole(output)
        response = self._completion(choices)
        response.system_fingerprint = self.state.fingerprint
        response.usage = self.usage.report()
        if self.warnings:
            response.warnings = self.warnings
        self._add_metrics(response, outputs[0] if len(outputs) == 1 else None)
        return response

    def _choice(
        self, call: EngineCall, output: RequestOutput, completion: CompletionOutput, index: int
    ) -> CompletionChoice:
        choice = CompletionChoice(
            index=index,
            text=(call.prompt_text or "") + completion.text,
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
        )
        if self.body.logprobs is not None:
            choice.logprobs = self._whole_logprobs(output, completion)
        if self.body.wants_prompt_logprobs:
            choice.prompt_logprobs = prompt_logprobs_json(output.prompt_logprobs)
        if self.body.return_token_ids:
            choice.token_ids = completion.token_ids
            choice.prompt_token_ids = output.prompt_token_ids
        return choice

    def _whole_logprobs(
        self, output: RequestOutput, completion: CompletionOutput
    ) -> CompletionLogprobs:
        offsets = self._offsets()
        parts = []
        if self.body.echo and output.prompt_logprobs and output.prompt_token_ids:
            first = output.prompt_token_ids[0]
            parts.append(offsets.add_first(first, self._token_text(first)))
            parts.append(offsets.add(output.prompt_logprobs[1:], output.prompt_token_ids[1:]))
        parts.append(offsets.add(completion.logprobs or [], completion.token_ids))
        return CompletionLogprobs(
            text_offset=[x for part in parts for x in part.text_offset],
            token_logprobs=[x for part in parts for x in part.token_logprobs],
            tokens=[x for part in parts for x in part.tokens],
            top_logprobs=[x for part in parts for x in part.top_logprobs],
        )

    def _token_text(self, token_id: int) -> str:
        return self.state.client.tokenizer.decode([token_id], skip_special_tokens=False)

    def _add_metrics(self, response: Completion, output: RequestOutput | None) -> None:
        wanted = self.state.config.enable_per_request_metrics
        if wanted and output is not None and self.calls[0].params.n == 1:
            response.metrics = request_metrics(output.metrics)

    async def stream(self, request: HttpRequest) -> None:
        """Send the answer as events; a failure after the first one becomes an event too."""
        config = self.state.config
        await send_events(
            request,
            self._stream_events,
            keep_alive_interval_s=config.sse_keep_alive_interval,
            timeout_s=config.request_timeout_s,
        )

    async def _stream_events(self, stream: EventStream) -> None:
        options = self.body.stream_options
        include = bool(options and options.include_usage)
        include = include or self.state.config.enable_force_include_usage
        continuous = bool(options and options.continuous_usage_stats)
        lasts = await all_or_none(
            [
                self._stream_call(stream, call, number * call.params.n, continuous)
                for number, call in enumerate(self.calls)
            ]
        )
        closing = b""
        if include:
            chunk = self._completion([])
            chunk.usage = self.usage.report()
            chunk.system_fingerprint = self.state.fingerprint
            self._add_metrics(chunk, lasts[0] if len(lasts) == 1 else None)
            closing = encode_event(chunk)
        await stream.end(closing)

    async def _stream_call(
        self, stream: EventStream, call: EngineCall, first_index: int, continuous: bool
    ) -> RequestOutput | None:
        usage = self.usage
        offsets = [self._offsets() for _ in range(call.params.n)]
        fresh = [True] * call.params.n
        last = None
        async with open_outputs(self.state, call) as outputs:
            async for output in outputs:
                if last is None:
                    usage.prompt += len(output.prompt_token_ids)
                    usage.cached += output.num_cached_tokens
                last = output
                events = []
                for completion in output.outputs:
                    if self.prompt_only:
                        _drop_output(completion)
                    usage.completion += len(completion.token_ids)
                    index = completion.index
                    choice = self._delta(completion, first_index, offsets[index])
                    if fresh[index]:
                        fresh[index] = False
                        choice.text = (call.prompt_text or "") + choice.text
                        if self.body.return_token_ids:
                            choice.prompt_token_ids = output.prompt_token_ids
                    elif _is_empty(choice):
                        continue
                    chunk = self._completion([choice])
                    if self.warnings and not stream.started and not events:
                        chunk.warnings = self.warnings
                    if continuous:
                        chunk.usage = usage.report()
                    events.append(encode_event(chunk))
                if events:
                    await stream.send(b"".join(events))
        return last

    def _delta(
        self, completion: CompletionOutput, first_index: int, offsets: TextOffsets
    ) -> CompletionChoice:
        choice = CompletionChoice(
            index=first_index + completion.index,
            text=completion.text,
            finish_reason=finish_of(completion),
            stop_reason=completion.stop_reason,
        )
        if completion.logprobs and self.body.logprobs is not None:
            choice.logprobs = offsets.add(completion.logprobs, completion.token_ids)
        if self.body.return_token_ids:
            choice.token_ids = completion.token_ids
        return choice


def _check_fan_out(prompts: int, n: int, most: int) -> None:
    if prompts * n > most:
        raise InvalidRequest(
            f"{prompts} prompts with n={n} make {prompts * n} completions; at most {most} are "
            "allowed in one request (--max-prompts)",
            param="n",
        )


def _is_empty(choice: CompletionChoice) -> bool:
    return (
        not choice.text
        and choice.finish_reason is None
        and choice.logprobs is None
        and choice.token_ids is UNSET
    )


def _drop_output(completion: CompletionOutput) -> None:
    """Forget the one token that the engine makes where only the prompt was asked for."""
    completion.text = ""
    completion.token_ids = []
    completion.logprobs = None
    if completion.finish_reason is not None:
        completion.finish_reason = "length"
        completion.stop_reason = None
