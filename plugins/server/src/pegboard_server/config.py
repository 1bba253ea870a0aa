"""The server's options: `[plugins.server]`, and plain flags of `platform serve`."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

__all__ = ["ServerConfig"]

Port = Annotated[
    int, Meta(ge=0, le=65_535, description="TCP port to listen on; 0 takes any free one.")
]
_PROBES = ("/health", "/live", "/ready", "/ping", "/metrics", "/load")
Seconds = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]
AtLeastOne = Annotated[int, Meta(ge=1)]


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Address, keys, TLS, limits and manners of the HTTP server."""

    host: Annotated[
        str, Meta(description="Address to listen on; 0.0.0.0 or :: for every interface.")
    ] = "127.0.0.1"
    port: Port = 8000
    uds: Annotated[
        str | None, Meta(description="Unix socket to listen on instead of host and port.")
    ] = None

    api_key: Annotated[
        list[str],
        Meta(description="Bearer keys; any one opens all but the probes and /metrics."),
    ] = []
    admin_api_key: Annotated[
        list[str],
        Meta(description="Keys of administrative routes, which are closed without one."),
    ] = []
    protect_metrics: Annotated[bool, Meta(description="Ask for a key at /metrics too.")] = False

    ssl_certfile: Annotated[
        str | None, Meta(description="PEM certificate chain; turns TLS on.")
    ] = None
    ssl_keyfile: Annotated[
        str | None, Meta(description="PEM key. Default: inside ssl_certfile.")
    ] = None
    ssl_ca_certs: Annotated[
        str | None, Meta(description="PEM authorities that client certificates are checked by.")
    ] = None
    ssl_cert_reqs: Annotated[
        Literal["none", "optional", "required"],
        Meta(description="Whether clients must show a certificate."),
    ] = "none"
    ssl_ciphers: Annotated[str | None, Meta(description="OpenSSL cipher list.")] = None

    allowed_origins: Annotated[
        list[str], Meta(description="CORS origins; none keeps cross-origin requests off.")
    ] = []
    allowed_methods: Annotated[list[str], Meta(description="CORS methods.")] = msgspec.field(
        default_factory=lambda: ["*"]
    )
    allowed_headers: Annotated[list[str], Meta(description="CORS headers.")] = msgspec.field(
        default_factory=lambda: ["*"]
    )
    allow_credentials: Annotated[bool, Meta(description="CORS credentials.")] = False
    root_path: Annotated[
        str, Meta(description="Path prefix that a proxy strips before it forwards.")
    ] = ""

    max_request_body_bytes: Annotated[
        AtLeastOne, Meta(description="Largest request body; past it 413.")
    ] = 32 * 1024 * 1024
    max_header_bytes: Annotated[
        AtLeastOne, Meta(description="Most bytes of request line and headers; past it 431.")
    ] = 64 * 1024
    max_header_count: Annotated[AtLeastOne, Meta(description="Most request headers.")] = 256
    max_json_depth: Annotated[AtLeastOne, Meta(description="Deepest nesting of a JSON body.")] = 64
    max_concurrent_requests: Annotated[
        Count, Meta(description="Most requests at work at once; past it 429. 0: no limit.")
    ] = 1024
    max_prompts: Annotated[
        AtLeastOne, Meta(description="Most completions of one request: prompts times n.")
    ] = 1024
    max_stop_strings: Annotated[AtLeastOne, Meta(description="Most stop strings.")] = 64
    max_n: Annotated[AtLeastOne, Meta(description="Most completions of a prompt.")] = 128
    timeout_keep_alive_s: Annotated[
        Seconds, Meta(description="How long an idle connection stays open.")
    ] = 5.0
    header_timeout_s: Annotated[
        Seconds, Meta(description="How long a client may take over its headers.")
    ] = 10.0
    body_timeout_s: Annotated[
        Seconds, Meta(description="How long a client may take over its body.")
    ] = 60.0
    write_timeout_s: Annotated[
        Seconds, Meta(description="How long a client may leave its answer unread.")
    ] = 60.0
    request_timeout_s: Annotated[
        Seconds, Meta(description="How long a request may take in all; 0: no limit.")
    ] = 3600.0
    shutdown_timeout: Annotated[
        Seconds,
        Meta(description="Seconds that open requests get after SIGTERM; 0 ends them at once."),
    ] = 30.0

    response_role: Annotated[
        str, Meta(description="Role of chat answers where a prompt asks for one.")
    ] = "assistant"
    default_chat_template_kwargs: Annotated[
        dict[str, Any], Meta(description="JSON variables for the chat template.")
    ] = {}
    trust_request_chat_template: Annotated[
        bool, Meta(description="Let requests bring their own chat template.")
    ] = False
    return_tokens_as_token_ids: Annotated[
        bool, Meta(description="Write tokens in logprobs as token_id:N.")
    ] = False
    enable_prompt_tokens_details: Annotated[
        bool, Meta(description="Report cached prompt tokens in usage.")
    ] = False
    enable_force_include_usage: Annotated[
        bool, Meta(description="End every stream with its usage.")
    ] = False
    enable_per_request_metrics: Annotated[
        bool, Meta(description="Report a request's times in its answer.")
    ] = False
    enable_request_id_headers: Annotated[bool, Meta(description="Answer with X-Request-Id.")] = (
        False
    )
    sse_keep_alive_interval: Annotated[
        Seconds, Meta(description="Seconds of silence before a stream gets a comment; 0: never.")
    ] = 0.0
    disable_access_log: Annotated[bool, Meta(description="Log no line a request.")] = False
    disable_access_log_for_endpoints: Annotated[
        list[str], Meta(description="Paths whose requests are not logged.")
    ] = msgspec.field(default_factory=lambda: list(_PROBES))
