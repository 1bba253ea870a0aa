"""The offline API: `LLM(model=…).generate(prompts)`."""

import itertools
import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import msgspec

from pegboard.api.engine import Prompt, TextPrompt, TokensPrompt
from pegboard.api.errors import ConfigError, InvalidRequest
from pegboard.api.outputs import RequestOutput
from pegboard.api.renderers import ChatOptions
from pegboard.api.sampling_params import SamplingParams
from pegboard.api.tokenizers import Tokenizer
from pegboard.config.engine import EngineOptions
from pegboard.config.env import read_environment
from pegboard.config.load import load_options
from pegboard.engine.llm_engine import LLMEngine

__all__ = ["LLM", "PromptLike"]

logger = logging.getLogger(__name__)

#: Text, token ids, or a mapping with `prompt` or `prompt_token_ids` (and `cache_salt`).
PromptLike = str | Sequence[int] | Mapping[str, Any] | TextPrompt | TokensPrompt
Params = SamplingParams | Sequence[SamplingParams] | None

_MEANT_FOR_LATER = ("prompt_embeds", "multi_modal_data", "encoder_prompt", "decoder_prompt")


class LLM:
    """A model in this program, without a server. Use it as a context manager, or `shutdown` it.

    The engine runs in a process of its own, started without `multiprocessing`: no `__main__`
    guard is needed.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        options: EngineOptions | None = None,
        in_process: bool = False,
        show_progress: bool = False,
        **settings: Any,  # noqa: ANN401 -- options by name
    ) -> None:
        """Start an engine and wait until it can answer.

        Args:
            model: folder, .gguf file or hub id; None serves the default model.
            options: everything at once, instead of `model` and `settings`.
            in_process: run the engine on a thread of this process.
            show_progress: write the phases of the start to stderr.
            settings: any engine option by its name, such as `dtype="float32"`,
                `max_model_len=2048`, `tensor_parallel_size=2`.

        Raises:
            PegboardError: it could not start; one line with the first cause.
        """
        if options is None:
            options = load_options({"model": model, **settings}, None, read_environment())
        elif settings or model is not None:
            raise ConfigError("give LLM either options or single settings, not both")
        progress = _to_stderr if show_progress else None
        self._engine = LLMEngine(options, in_process=in_process, progress=progress)
        self._ids = itertools.count()
        self._enqueued: list[str] = []
        self._done: dict[str, RequestOutput] = {}

    @property
    def engine(self) -> LLMEngine:
        """The engine underneath."""
        return self._engine

    # --- generating ---

    def generate(
        self,
        prompts: PromptLike | Sequence[PromptLike],
        sampling_params: Params = None,
        *,
        use_tqdm: bool = False,
        priority: int | Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts and return their outputs in input order.

        Args:
            prompts: one or many.
            sampling_params: for all, one for each, or None for the model's defaults.
            use_tqdm: write how many are done to stderr.
            priority: for all or for each; smaller goes first under the "priority" policy.

        Raises:
            RequestError: a prompt or a parameter cannot be served; nothing was started.
            EngineError: a request was lost.
        """
        ids = self.enqueue(prompts, sampling_params, priority=priority)
        return self._collect(ids, use_tqdm=use_tqdm)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: Params = None,
        *,
        use_tqdm: bool = False,
        priority: int | Sequence[int] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or many, rendered with the model's chat template.

        Raises:
            RequestError: the messages cannot be rendered, or not be served.
            EngineError: a request was lost.
        """
        if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
            raise InvalidRequest(
                f"messages is {type(messages).__name__}; give a conversation, or a list of those",
                param="messages",
            )
        one = bool(messages) and isinstance(messages[0], Mapping)
        conversations: list[Any] = [messages] if one else list(messages)
        chat_options = ChatOptions(
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            template_kwargs=dict(chat_template_kwargs or {}),
        )
        renderer = self._engine.frontend.renderer
        rendered = [renderer.render_chat(c, chat_options) for c in conversations]
        prompts = [TokensPrompt(prompt_token_ids=r.token_ids, prompt=r.text) for r in rendered]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm, priority=priority)

    def enqueue(
        self,
        prompts: PromptLike | Sequence[PromptLike],
        sampling_params: Params = None,
        *,
        priority: int | Sequence[int] | None = None,
    ) -> list[str]:
        """Start prompts and return their ids; `wait_for_completion` returns their outputs.

        Raises:
            RequestError: one cannot be served; none was started.
        """
        parsed = [as_prompt(p) for p in _as_list(prompts)]
        params = self._params_for(sampling_params, len(parsed))
        priorities = _each("priority", priority, len(parsed), 0)
        ids = [str(next(self._ids)) for _ in parsed]
        added: list[str] = []
        try:
            for request_id, prompt, param, order in zip(
                ids, parsed, params, priorities, strict=True
            ):
                final = param.replace(output_kind="final")
                self._engine.add_request(request_id, prompt, final, priority=order)
                added.append(request_id)
        except BaseException:
            self._give_up(added)
            raise
        self._enqueued += ids
        return ids

    def wait_for_completion(self, *, use_tqdm: bool = False) -> list[RequestOutput]:
        """Wait for all that was enqueued and return the outputs in that order."""
        return self._collect(list(self._enqueued), use_tqdm=use_tqdm)

    def _collect(self, ids: list[str], *, use_tqdm: bool) -> list[RequestOutput]:
        missing = {i for i in ids if i not in self._done}
        try:
            while missing:
                for output in self._engine.step():
                    self._done[output.request_id] = output
                    missing.discard(output.request_id)
                    if use_tqdm:
                        _show_done(len(ids) - len(missing), len(ids))
        except BaseException:
            self._give_up(ids)
            raise
        finally:
            gone = set(ids)
            self._enqueued = [i for i in self._enqueued if i not in gone]
        return [self._done.pop(i) for i in ids]

    def _give_up(self, ids: list[str]) -> None:
        """Abort what runs, so that a failed or interrupted call leaves nothing behind."""
        self._engine.forget(ids)
        for request_id in ids:
            self._done.pop(request_id, None)

    def _params_for(self, given: Params, count: int) -> list[SamplingParams]:
        if given is None:
            return [self.get_default_sampling_params()] * count
        if isinstance(given, SamplingParams):
            return [given] * count
        return _each("sampling_params", list(given), count, None)

    # --- the rest ---

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the sampling of requests that bring none: the checkpoint's own values."""
        return SamplingParams(**self._engine.frontend.config.model.default_sampling)

    def get_tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer."""
        return self._engine.frontend.tokenizer

    def get_metrics(self) -> dict[str, Any]:
        """Return the engine core's numbers now."""
        return self._engine.call("stats")

    def reset_prefix_cache(self) -> bool:
        """Forget all shared prefixes; False if requests still use blocks."""
        return self._engine.call("reset_prefix_cache")

    def collective_rpc(
        self, method: str, timeout: float | None = None, args: Sequence[Any] = ()
    ) -> list[Any]:
        """Call a named method on every worker with msgpack arguments; results in rank order."""
        return self._engine.call("collective_rpc", method, list(args), timeout)

    def explain(self) -> dict[str, Any]:
        """Return the start report: plugins, choices with reasons, phases, memory ledger."""
        return self._engine.frontend.explain()

    def shutdown(self) -> None:
        """End the engine. May be called twice."""
        self._engine.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()


def as_prompt(given: PromptLike) -> Prompt:
    """Turn any form of a prompt into the engine's.

    Raises:
        InvalidRequest: it is none of them.
    """
    if isinstance(given, TextPrompt | TokensPrompt):
        return given
    if isinstance(given, str):
        return TextPrompt(prompt=given)
    if isinstance(given, Mapping):
        return _from_mapping(given)
    if isinstance(given, Sequence) and not isinstance(given, bytes):
        return TokensPrompt(prompt_token_ids=list(given))
    raise InvalidRequest(
        f"a prompt is {type(given).__name__}; give text, token ids, or a mapping with prompt or "
        "prompt_token_ids",
        param="prompt",
    )


def _from_mapping(given: Mapping[str, Any]) -> Prompt:
    for name in _MEANT_FOR_LATER:
        if name in given:
            raise InvalidRequest(f"{name} in a prompt is not served here", param=name)
    kind = TokensPrompt if "prompt_token_ids" in given else TextPrompt
    unknown = set(given) - set(kind.__struct_fields__)
    if unknown or not set(given) & {"prompt", "prompt_token_ids"}:
        raise InvalidRequest(
            f"a prompt has the keys {', '.join(map(str, given))}; it needs prompt or "
            "prompt_token_ids, and may have cache_salt",
            param="prompt",
        )
    try:
        return msgspec.convert(dict(given), kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"a prompt is malformed: {error}", param="prompt") from error


def _as_list(prompts: PromptLike | Sequence[PromptLike]) -> list[PromptLike]:
    if isinstance(prompts, str | Mapping | TextPrompt | TokensPrompt):
        return [prompts]
    if isinstance(prompts, bytes | bytearray) or not isinstance(prompts, Iterable):
        raise InvalidRequest(
            f"prompts is {type(prompts).__name__}; give text, token ids, or a list of prompts",
            param="prompt",
        )
    listed = list(prompts)
    if listed and all(isinstance(p, int) for p in listed):
        return [listed]  # pyright: ignore[reportReturnType] -- one prompt of token ids
    return listed  # pyright: ignore[reportReturnType] -- many prompts


def _each(name: str, given: Any, count: int, default: Any) -> list[Any]:  # noqa: ANN401
    if given is None:
        return [default] * count
    if not isinstance(given, Sequence):
        return [given] * count
    if len(given) != count:
        raise InvalidRequest(f"{name} has {len(given)} entries for {count} prompts", param=name)
    return list(given)


def _show_done(done: int, total: int) -> None:
    end = "\n" if done == total else ""
    sys.stderr.write(f"\r{done}/{total} prompts{end}")
    sys.stderr.flush()


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
