"""`POST /v1/chat/completions`."""

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from pegboard.api.engine import TokensPrompt
from pegboard.api.errors import InvalidRequest
from pegboard.api.outputs import CompletionOutput, RequestOutput
from pegboard.api.renderers import ChatOptions
from pegboard_server.generation import (
    EngineCall,
    UsageCount,
    finish_of,
    open_outputs,
    request_metrics,
    run_to_end,
)
from pegboard_server.limits import read_json
from pegboard_server.logprobs import chat_logprobs, prompt_logprobs_json
from pegboard_server.prompts import check_output_budget, render, truncated
from pegboard_server.responder import HttpRequest
from pegboard_server.schemas.requests import ChatBody
from pegboard_server.schemas.responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatLogprobs,
    ChatResponse,
    Delta,
    Message,
)
from pegboard_server.sse import EventStream, encode_event, send_events
from pegboard_server.state import ServerState

__all__ = ["chat_completions", "chat_options", "priority_of", "trace_headers"]


async def chat_completions(state: ServerState, request: HttpRequest) -> None:
    """Answer a chat request, whole or as a stream."""
    body = await read_json(request, ChatBody, state.config)
    job = await _ChatJob.prepare(state, request, body)
    if body.stream:
        await request.while_connected(job.stream(request))
    else:
        response = await request.while_connected(job.whole())
        await request.answer_json(response)


def chat_options(config_kwargs: Mapping[str, Any], body: Any) -> ChatOptions:  # noqa: ANN401
    """Return how a body's messages are rendered; the server's variables give way to its own."""
    kwargs = {**config_kwargs, **(body.chat_template_kwargs or {})}
    effort = getattr(body, "reasoning_effort", None)
    if effort is not None:
        kwargs.setdefault("reasoning_effort", effort)
    return ChatOptions(
        chat_template=body.chat_template,
        add_generation_prompt=body.add_generation_prompt and not body.continue_final_message,
        continue_final_message=body.continue_final_message,
        tools=body.tools,
        documents=getattr(body, "documents", None),
        template_kwargs=kwargs,
        add_special_tokens=bool(body.add_special_tokens),
    )


def priority_of(state: ServerState, request: HttpRequest, given: int | None) -> int:
    """Return the request's priority; the header wins.

    Raises:
        InvalidRequest: not an integer, or the policy knows no priorities.
    """
    header = request.header(b"x-vllm-priority")
    if header is not None:
        if not re.fullmatch(r"-?\d{1,18}", header):
            raise InvalidRequest("X-Vllm-Priority must be an integer", param="priority")
        given = int(header)
    policy = state.client.config.scheduler.scheduling_policy
    if given and policy == "fcfs":
        raise InvalidRequest(
            f"priority is {given}, but requests are served first come, first served "
            "(--scheduling-policy priority)",
            param="priority",
        )
    return given or 0


def trace_headers(request: HttpRequest) -> dict[str, str] | None:
    """Return the W3C trace context that came with a request."""
    parent = request.header(b"traceparent")
    if parent is None:
        return None
    headers = {"traceparent": parent[:256]}
    if (extra := request.header(b"tracestate")) is not None:
        headers["tracestate"] = extra[:512]
    return headers


class _ChatJob:
    """One chat request, checked and rendered."""

    __slots__ = (
        "as_ids",
        "body",
        "call",
        "created",
        "echo",
        "id",
        "model",
        "role",
        "state",
        "top",
        "usage",
        "warnings",
    )

    def __init__(self, state: ServerState, body: ChatBody, public_id: str) -> None:
        config = state.config
        self.state = state
        self.body = body
        self.id = public_id
        self.created = int(time.time())
        self.model = state.served_name(body.model)
        self.warnings = body.check_unknown()
        body.check_shared(max_n=config.max_n, max_stop_strings=config.max_stop_strings)
        body.check_chat(
            trust_template=config.trust_request_chat_template,
            max_logprobs=state.client.config.model.max_logprobs,
        )
        self.top = (body.top_logprobs or 0) if body.logprobs else None
        wanted = body.return_tokens_as_token_ids
        self.as_ids = config.return_tokens_as_token_ids if wanted is None else wanted
        self.usage = UsageCount(details=config.enable_prompt_tokens_details)
        self.role = config.response_role
        self.echo = ""

    @classmethod
    async def prepare(cls, state: ServerState, request: HttpRequest, body: ChatBody) -> "_ChatJob":
        """Check everything, render the prompt.

        Raises:
            RequestError: the request cannot be served.
        """
        job = cls(state, body, f"chatcmpl-{body.request_id or request.request_id}")
        client = state.client
        name = "max_completion_tokens" if body.max_completion_tokens is not None else "max_tokens"
        limit = getattr(body, name)
        check_output_budget(client, name, limit)
        defaults = client.config.model.default_sampling
        params = body.sampling_params(
            defaults,
            "delta" if body.stream else "final",
            logprobs=None if job._logprob_ids() else job.top,
        )
        # Without a limit of the request's or the model's own, the context is the limit.
        if limit is not None or "max_tokens" not in defaults:
            params = params.replace(max_tokens=limit)
        params.check_model(
            vocab_size=client.config.model.description.vocab_size,
            max_logprobs=client.config.model.max_logprobs,
        )
        options = chat_options(state.config.default_chat_template_kwargs, body)
        rendered = await render(client, body.messages, options)
        token_ids = truncated(
            rendered.token_ids,
            body.truncate_prompt_tokens,
            body.truncation_side,
            client.config.model.max_model_len,
        )
        job._set_role_and_echo()
        job.call = EngineCall(
            request_id=state.engine_request_id(job.id),
            prompt=TokensPrompt(
                prompt_token_ids=token_ids, prompt=rendered.text, cache_salt=body.cache_salt
            ),
            params=params,
            priority=priority_of(state, request, body.priority),
            trace_headers=trace_headers(request),
            num_prompt_tokens=len(token_ids),
            prompt_text=rendered.text,
        )
        return job

    def _logprob_ids(self) -> bool:
        return bool(self.body.logprob_token_ids)

    def _set_role_and_echo(self) -> None:
        last = self.body.messages[-1]
        if not self.body.add_generation_prompt or self.body.continue_final_message:
            self.role = last["role"]
        if self.body.echo and last["role"] == self.role and isinstance(last.get("content"), str):
            self.echo = last["content"]

    def _logprobs(self, completion: CompletionOutput) -> ChatLogprobs | None:
        if self.top is None or completion.logprobs is None:
            return None
        top = -1 if self._logprob_ids() else self.top
        return chat_logprobs(completion.logprobs, completion.token_ids, top, as_ids=self.as_ids)

    async def whole(self) -> ChatResponse:
        """Return the whole answer."""
        async with asyncio.timeout(self.state.config.request_timeout_s or None):
            output = await run_to_end(self.state, self.call)
        self.usage.add_whole(output)
        response = ChatResponse(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=[self._choice(completion) for completion in output.outputs],
            system_fingerprint=self.state.fingerprint,
            usage=self.usage.report(),
        )
        if self.body.wants_prompt_logprobs:
            response.prompt_logprobs = prompt_logprobs_json(output.prompt_logprobs)
        if self.body.return_token_ids:
            response.prompt_token_ids = output.prompt_token_ids
        if self.body.return_prompt_text and self.call.prompt_text is not None:
            response.prompt_text = self.call.prompt_text
        self._add_extras(response, output)
        return response

    def _choice(self, completion: CompletionOutput) -> ChatChoice:
        choice = ChatChoice(
            index=completion.index,
            message=Message(role=self.role, content=self.echo + completion.text),
            logprobs=self._logprobs(completion),
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
        )
        if self.body.return_token_ids:
            choice.token_ids = completion.token_ids
        return choice

    def _add_extras(self, response: ChatResponse | ChatChunk, output: RequestOutput | None) -> None:
        if self.warnings and isinstance(response, ChatResponse):
            response.warnings = self.warnings
        if self.state.config.enable_per_request_metrics and self.call.params.n == 1 and output:
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
        usage = self.usage
        usage.prompt = self.call.num_prompt_tokens
        last = None
        async with open_outputs(self.state, self.call) as outputs:
            async for output in outputs:
                events = []
                if last is None:
                    usage.cached = output.num_cached_tokens
                    events = self._opening(continuous)
                last = output
                for completion in output.outputs:
                    usage.completion += len(completion.token_ids)
                    if (chunk := self._delta(completion)) is not None:
                        if continuous:
                            chunk.usage = usage.report()
                        if completion.finish_reason is not None and not include:
                            chunk.system_fingerprint = self.state.fingerprint
                        events.append(encode_event(chunk))
                if events:
                    await stream.send(b"".join(events))
        await stream.end(encode_event(self._closing(last)) if include else b"")

    def _chunk(self, choices: list[ChatChunkChoice]) -> ChatChunk:
        return ChatChunk(id=self.id, created=self.created, model=self.model, choices=choices)

    def _opening(self, continuous: bool) -> list[bytes]:
        """Return one event a choice that says its role, and the echo."""
        events = []
        for index in range(self.call.params.n):
            delta = Delta(role=self.role, content="")
            chunk = self._chunk([ChatChunkChoice(index=index, delta=delta)])
            prompt = self.call.prompt
            if self.body.return_token_ids and isinstance(prompt, TokensPrompt):
                chunk.prompt_token_ids = prompt.prompt_token_ids
            if self.body.return_prompt_text and self.call.prompt_text is not None:
                chunk.prompt_text = self.call.prompt_text
            if self.warnings:
                chunk.warnings = self.warnings
            if continuous:
                chunk.usage = self.usage.report()
            events.append(encode_event(chunk))
            if self.echo:
                echo = ChatChunkChoice(index=index, delta=Delta(content=self.echo))
                events.append(encode_event(self._chunk([echo])))
        return events

    def _delta(self, completion: CompletionOutput) -> ChatChunk | None:
        """Return a completion's event, or None if it has nothing to say."""
        reason = finish_of(completion)
        choice = ChatChunkChoice(
            index=completion.index, delta=Delta(content=completion.text), finish_reason=reason
        )
        if reason is not None:
            choice.stop_reason = completion.stop_reason
        if self.top is not None:
            choice.logprobs = self._logprobs(completion)
        if self.body.return_token_ids:
            choice.token_ids = completion.token_ids
        silent = not completion.text and reason is None and choice.logprobs is None
        if silent and choice.token_ids is UNSET:
            return None
        return self._chunk([choice])

    def _closing(self, last: RequestOutput | None) -> msgspec.Struct:
        chunk = self._chunk([])
        chunk.usage = self.usage.report()
        chunk.system_fingerprint = self.state.fingerprint
        self._add_extras(chunk, last)
        return chunk
