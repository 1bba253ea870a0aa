"""`POST /tokenize` and `POST /detokenize`."""

import asyncio

from pegboard.api.errors import InvalidRequest
from pegboard_server.chat import chat_options
from pegboard_server.limits import read_json
from pegboard_server.prompts import encode, render
from pegboard_server.responder import HttpRequest
from pegboard_server.schemas.requests import DetokenizeBody, TokenizeBody
from pegboard_server.state import ServerState

__all__ = ["detokenize", "tokenize"]


async def tokenize(state: ServerState, request: HttpRequest) -> None:
    """Answer the ids of a text or a conversation."""
    body = await read_json(request, TokenizeBody, state.config)
    state.served_name(body.model)
    client = state.client
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("give either prompt or messages", param="prompt")
    if body.prompt is not None:
        ids = await encode(
            client, body.prompt, add_special_tokens=body.add_special_tokens is not False
        )
    else:
        if body.chat_template is not None and not state.config.trust_request_chat_template:
            raise InvalidRequest(
                "chat_template in a request is refused (--trust-request-chat-template)",
                param="chat_template",
            )
        options = chat_options(state.config.default_chat_template_kwargs, body)
        ids = (await render(client, body.messages or [], options)).token_ids
    answer = {
        "count": len(ids),
        "max_model_len": client.config.model.max_model_len,
        "tokens": ids,
        "token_strs": None,
    }
    if body.return_token_strs:
        answer["token_strs"] = [client.tokenizer.token(token_id) for token_id in ids]
    await request.answer_json(answer)


async def detokenize(state: ServerState, request: HttpRequest) -> None:
    """Answer the text of ids."""
    body = await read_json(request, DetokenizeBody, state.config)
    state.served_name(body.model)
    tokenizer = state.client.tokenizer
    vocab = tokenizer.vocab_size
    for token_id in body.tokens:
        if not 0 <= token_id < vocab:
            raise InvalidRequest(
                f"tokens has {str(token_id)[:24]}; the vocabulary has ids 0 to {vocab - 1}",
                param="tokens",
            )
    text = await asyncio.to_thread(tokenizer.decode, body.tokens, skip_special_tokens=False)
    await request.answer_json({"prompt": text})
