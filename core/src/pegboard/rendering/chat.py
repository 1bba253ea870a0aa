"""The renderer of chat templates: messages to text to token ids."""

import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jinja2 import Template, nodes
from jinja2.exceptions import TemplateError

from pegboard.api.errors import ContextLength, InvalidRequest, ModelError
from pegboard.api.models import ModelDescription
from pegboard.api.plugin import ComponentContext
from pegboard.api.renderers import ChatOptions, RenderedPrompt, Renderer
from pegboard.api.tokenizers import Tokenizer
from pegboard.rendering.budget import MAX_TEXT_CHARS, Budget, TemplateLimitError
from pegboard.rendering.messages import normalize_messages, plain_data
from pegboard.rendering.sandbox import BoundedEnvironment

__all__ = ["ChatTemplateRenderer"]

_MAX_TEMPLATE_CHARS = 256 << 10
_MAX_COMPILED = 8
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
#: Variables that a request may not set: they have fields of their own, or none.
_RESERVED = frozenset(
    "add_generation_prompt caller chat_template continue_final_message cycler dict documents "  # noqa: SIM905 -- reads better
    "joiner kwargs loop messages namespace raise_exception range self strftime_now super "
    "tokenize tools varargs".split()
)


class _Compiled(NamedTuple):
    """A template, and whether it reads content as a list of parts."""

    template: Template
    keeps_parts: bool


class ChatTemplateRenderer(Renderer):
    """Renders the checkpoint's template, or a request's, in a bounded sandbox."""

    def __init__(
        self, context: ComponentContext, description: ModelDescription, tokenizer: Tokenizer
    ) -> None:
        """Compile the checkpoint's template.

        Raises:
            ModelError: it does not compile.
        """
        super().__init__(context, description, tokenizer)
        self._environment = BoundedEnvironment()
        self._roles = tokenizer.special_tokens
        self._lock = threading.Lock()
        self._compiled: OrderedDict[str, _Compiled] = OrderedDict()
        self._own: _Compiled | None = None
        if description.chat_template is not None:
            try:
                self._own = self._compile(description.chat_template)
            except TemplateError as error:
                raise ModelError(
                    f"the chat template of {description.path} does not compile: {error}; name "
                    "another with --chat-template"
                ) from error

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], options: ChatOptions
    ) -> RenderedPrompt:
        """Render a conversation; see `Renderer.render_chat`.

        Raises:
            InvalidRequest: no template, malformed messages, or a template that refuses them or
                exceeds its bounds.
            ContextLength: the text cannot fit the context.
        """
        if options.continue_final_message and options.add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message and add_generation_prompt exclude each other; set one to "
                "false",
                param="continue_final_message",
            )
        compiled = self._template(options.chat_template)
        conversation = normalize_messages(messages, keep_parts=compiled.keeps_parts)
        mark = _mark_end(conversation) if options.continue_final_message else None
        text = self._render(compiled.template, self._variables(conversation, options))
        if mark is not None:
            text = _cut_at(text, mark)
        self._check_length(text)
        ids = self.tokenizer.encode(text, add_special_tokens=options.add_special_tokens)
        return RenderedPrompt(token_ids=ids, text=text)

    def _template(self, source: str | None) -> _Compiled:
        if source is None:
            if self._own is None:
                raise InvalidRequest(
                    "the model has no chat template; use completions, or start with --chat-template"
                )
            return self._own
        with self._lock:
            compiled = self._compiled.get(source)
            if compiled is not None:
                self._compiled.move_to_end(source)
                return compiled
        try:
            compiled = self._compile(source)
        except TemplateError as error:
            raise InvalidRequest(
                f"chat_template does not compile: {error}", param="chat_template"
            ) from error
        with self._lock:
            self._compiled[source] = compiled
            if len(self._compiled) > _MAX_COMPILED:
                self._compiled.popitem(last=False)
        return compiled

    def _compile(self, source: str) -> _Compiled:
        if len(source) > _MAX_TEMPLATE_CHARS:
            raise TemplateLimitError(f"it is longer than {_MAX_TEMPLATE_CHARS} characters")
        try:
            keeps_parts = _reads_parts(self._environment.parse(source))
            return _Compiled(self._environment.from_string(source), keeps_parts)
        except TemplateError:
            raise
        except (RecursionError, MemoryError) as error:
            raise TemplateLimitError("it is nested too deep") from error
        except (SyntaxError, ValueError, TypeError, OverflowError, AssertionError) as error:
            raise TemplateError(str(error)) from error

    def _variables(
        self, conversation: list[dict[str, Any]], options: ChatOptions
    ) -> dict[str, Any]:
        for name in options.template_kwargs:
            if not _NAME.fullmatch(name) or name in _RESERVED:
                raise InvalidRequest(
                    f"chat_template_kwargs may not set {name!r}", param="chat_template_kwargs"
                )
        return {
            **self._roles,
            **plain_data(options.template_kwargs, "chat_template_kwargs"),
            "messages": conversation,
            "tools": plain_data(options.tools or None, "tools"),
            "documents": plain_data(options.documents or None, "documents"),
            "add_generation_prompt": options.add_generation_prompt,
        }

    def _render(self, template: Template, variables: dict[str, Any]) -> str:
        try:
            return self._environment.render(template, variables, Budget())
        except TemplateLimitError as error:
            raise InvalidRequest(f"the chat template was stopped: {error}") from error
        except RecursionError as error:
            raise InvalidRequest("the chat template was stopped: it recurses too deep") from error
        except Exception as error:  # a template can provoke any error of the values it handles
            reason = (str(error).splitlines() or [type(error).__name__])[0][:500]
            raise InvalidRequest(
                f"the chat template refuses the messages: {reason}", param="messages"
            ) from error

    def _check_length(self, text: str) -> None:
        """Refuse at once a text that no tokenizer could fit into the context."""
        model = getattr(self.context.config, "model", None)
        tokens = getattr(model, "max_model_len", None) or self.description.max_model_len
        if len(text) <= tokens:
            return
        most = min(MAX_TEXT_CHARS, tokens * self.tokenizer.max_chars_per_token())
        if len(text) > most:
            raise ContextLength(
                f"the prompt has {len(text)} characters, which cannot fit {tokens} tokens; shorten "
                "the messages",
                param="messages",
            )


def _mark_end(conversation: list[dict[str, Any]]) -> str:
    """Put a mark that nobody can guess at the end of the last message, and return it."""
    mark = f"\ue000{secrets.token_hex(16)}\ue001"
    content = conversation[-1]["content"]
    if isinstance(content, str):
        conversation[-1]["content"] = content + mark
    elif content:
        content[-1]["text"] += mark
    else:
        conversation[-1]["content"] = mark
    return mark


def _cut_at(text: str, mark: str) -> str:
    position = text.rfind(mark)
    if position < 0:
        raise InvalidRequest(
            "the chat template does not write the last message as it is, so it cannot be continued",
            param="continue_final_message",
        )
    return text[:position].replace(mark, "")


def _reads_parts(template: nodes.Template) -> bool:
    """Tell whether a template loops over a message's content, as over a list of parts."""
    for loop in template.find_all(nodes.For):
        target: Any = loop.iter
        while isinstance(target, nodes.Filter):
            target = target.node
        if isinstance(target, nodes.Getattr) and target.attr == "content":
            return True
        if (
            isinstance(target, nodes.Getitem)
            and isinstance(target.arg, nodes.Const)
            and target.arg.value == "content"
        ):
            return True
    return False
