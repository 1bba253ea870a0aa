"""Bodies of the endpoints."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from pegboard.api.errors import InvalidRequest
from pegboard_server.schemas.sampling import GenerationBody, Int

__all__ = ["ChatBody", "CompletionBody", "DetokenizeBody", "TokenizeBody"]


class ChatBody(GenerationBody):
    """`POST /v1/chat/completions`."""

    messages: list[dict[str, Any]]
    max_completion_tokens: Int | None = None
    logprobs: bool | None = None
    top_logprobs: Int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    documents: list[dict[str, Any]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_prompt_text: bool | None = None

    def check_chat(self, *, trust_template: bool, max_logprobs: int) -> None:
        """Check what only chat has; `max_logprobs` is the model's limit, -1 for none.

        Raises:
            InvalidRequest: naming the parameter.
        """
        if self.top_logprobs is not None and self.top_logprobs != 0 and not self.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs=true", param="top_logprobs")
        top = self.top_logprobs or 0
        if top < -1 or (max_logprobs != -1 and not 0 <= top <= max_logprobs):
            raise InvalidRequest(
                f"top_logprobs is {top}; the server allows 0 to {max_logprobs} (--max-logprobs)",
                param="top_logprobs",
            )
        if self.logprob_token_ids is not None and not self.logprobs:
            raise InvalidRequest("logprob_token_ids needs logprobs=true", param="logprob_token_ids")
        # It is on by default, so only an explicit true is a contradiction.
        opens = self.add_generation_prompt and "add_generation_prompt" in self.model_fields_set
        if self.continue_final_message and opens:
            raise InvalidRequest(
                "continue_final_message and add_generation_prompt exclude each other",
                param="continue_final_message",
            )
        if self.chat_template is not None and not trust_template:
            raise InvalidRequest(
                "chat_template in a request is refused (--trust-request-chat-template)",
                param="chat_template",
            )
        self._check_tools()

    def _check_tools(self) -> None:
        if self.tools is not None and not self.tools:
            raise InvalidRequest("tools is empty; leave it out", param="tools")
        if self.tool_choice == "none":
            return
        if self.tools:
            raise InvalidRequest(
                "tools cannot be served: tool parsers are not installed (tool_choice=none shows "
                "them to the model without parsing its calls)",
                param="tools",
            )
        if self.tool_choice is not None:
            raise InvalidRequest("tool_choice needs tools", param="tool_choice")


class CompletionBody(GenerationBody):
    """`POST /v1/completions`."""

    prompt: Any = None
    suffix: str | None = None
    logprobs: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None


class TokenizeBody(BaseModel):
    """`POST /tokenize`: a prompt, or a conversation."""

    model_config = ConfigDict(strict=True, extra="ignore")

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None


class DetokenizeBody(BaseModel):
    """`POST /detokenize`."""

    model_config = ConfigDict(strict=True, extra="ignore")

    model: str | None = None
    tokens: list[Int]
