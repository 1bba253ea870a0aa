"""The error tree. Every error that Pegboard raises on purpose is one of these.

    PegboardError
    ├─ ConfigError                       stops the start
    ├─ PluginError                       carries plugin, distribution, version
    │  └─ PluginLoadError  PluginConflictError  ApiVersionError  SpecError
    ├─ SelectionError                    nobody fits; carries the table of reasons
    ├─ ModelError                        unsupported, unreadable, wrong shape
    ├─ RequestError                      carries HTTP status, code, param
    │  └─ InvalidRequest  ContextLength  NotFound  Overloaded  Aborted
    └─ EngineError                       carries request ids where known
       └─ StepError  WorkerError  EngineDead

A message is one line: what, which value, why, and the mend.
"""

from collections.abc import Sequence
from http import HTTPStatus
from typing import ClassVar

__all__ = [
    "Aborted",
    "ApiVersionError",
    "ConfigError",
    "ContextLength",
    "EngineDead",
    "EngineError",
    "InvalidRequest",
    "ModelError",
    "NotFound",
    "Overloaded",
    "PegboardError",
    "PluginConflictError",
    "PluginError",
    "PluginLoadError",
    "RequestError",
    "SelectionError",
    "SpecError",
    "StepError",
    "WorkerError",
]


class PegboardError(Exception):
    """Base of every error that Pegboard raises on purpose."""


class ConfigError(PegboardError):
    """A setting, or two together, cannot work. Raised before any device work; stops the start."""


class PluginError(PegboardError):
    """A plugin is at fault.

    Attributes:
        plugin: the entry point's name, or "" where it is not known.
        distribution: the distribution that declares it.
        version: that distribution's version.
    """

    def __init__(
        self, message: str, *, plugin: str = "", distribution: str = "", version: str = ""
    ) -> None:
        """Keep the message and say whose fault it is."""
        super().__init__(message)
        self.plugin = plugin
        self.distribution = distribution
        self.version = version


class PluginLoadError(PluginError):
    """A named or installed plugin is missing, or its module or component does not import."""


class PluginConflictError(PluginError):
    """Two plugins offer one name; the message names both packages."""


class ApiVersionError(PluginError):
    """A plugin was built against an API version that this core does not serve."""


class SpecError(PluginError):
    """A spec, or a hook implementation, does not have the declared form."""


class SelectionError(PegboardError):
    """No component of a kind fits, or the one asked for does not.

    Attributes:
        kind: the component kind, such as "attention_backends".
        reasons: (component name, why it lost) for every candidate.
    """

    def __init__(
        self, message: str, *, kind: str = "", reasons: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Keep the message and the table of reasons."""
        super().__init__(message)
        self.kind = kind
        self.reasons = tuple(reasons)


class ModelError(PegboardError):
    """A model is unsupported, unreadable or of the wrong shape."""


class RequestError(PegboardError):
    """One request is at fault; it alone fails.

    Attributes:
        status: the HTTP status to answer with.
        code: a short machine-readable word.
        param: the parameter at fault, or None.
    """

    status: ClassVar[HTTPStatus] = HTTPStatus.BAD_REQUEST
    code: ClassVar[str] = "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        """Keep the message and the parameter it is about."""
        super().__init__(message)
        self.param = param


class InvalidRequest(RequestError):
    """A parameter has a value that cannot be served (400)."""


class ContextLength(RequestError):
    """The prompt does not fit the model's context (400)."""

    code = "context_length_exceeded"


class NotFound(RequestError):
    """The request names something that is not there (404)."""

    status = HTTPStatus.NOT_FOUND
    code = "not_found"


class Overloaded(RequestError):
    """The queue is full (429); `retry_after_s` says when to come back."""

    status = HTTPStatus.TOO_MANY_REQUESTS
    code = "overloaded"

    def __init__(
        self, message: str, *, retry_after_s: float = 1.0, param: str | None = None
    ) -> None:
        """Keep the message and when a retry makes sense."""
        super().__init__(message, param=param)
        self.retry_after_s = retry_after_s


class Aborted(RequestError):
    """The request was aborted, by its client or by a drain (499 by convention; not sent)."""

    code = "aborted"


class EngineError(PegboardError):
    """The engine is at fault; `request_ids` are those it failed, where they are known."""

    def __init__(self, message: str, *, request_ids: Sequence[str] = ()) -> None:
        """Keep the message and the requests that failed with it."""
        super().__init__(message)
        self.request_ids = tuple(request_ids)


class StepError(EngineError):
    """A step raised; its requests fail, the engine goes on where it can."""


class WorkerError(EngineError):
    """A worker process raised or died."""


class EngineDead(EngineError):
    """The engine core is gone; every open request fails with this."""
