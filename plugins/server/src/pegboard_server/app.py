"""The ASGI application: finds the route, checks the key, runs the handler, answers failures."""

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

import msgspec

from pegboard.api.errors import ConfigError
from pegboard.api.frontends import MountedRoute
from pegboard_server import info_routes
from pegboard_server.auth import KeyRing, Scope
from pegboard_server.chat import chat_completions
from pegboard_server.completions import completions
from pegboard_server.errors import HttpError, answer_for
from pegboard_server.responder import ClientGone, HttpRequest
from pegboard_server.state import ServerState
from pegboard_server.tokenize import detokenize, tokenize

__all__ = ["Application", "Route", "own_routes"]

logger = logging.getLogger(__name__)
access_logger = logging.getLogger("pegboard_server.access")

Handler = Callable[[ServerState, HttpRequest], Awaitable[None]]
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_MODEL_PREFIX = "/v1/models/"


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One path of the server's own.

    Attributes:
        methods: those it answers; GET brings HEAD.
        scope: who may ask.
        works: it is work for the engine: refused while draining, bounded in number.
    """

    path: str
    methods: tuple[str, ...]
    handler: Handler
    scope: Scope = "user"
    works: bool = False


def own_routes(*, protect_metrics: bool = False) -> list[Route]:
    """Return every route the server brings.

    Public are the probes, which cannot carry a key and learn only yes or no, and the metrics,
    which hold numbers only, unless they are protected.
    """
    get = ("GET", "HEAD")
    post = ("POST",)
    info = info_routes
    metrics_scope: Scope = "user" if protect_metrics else "public"
    return [
        Route(path="/v1/chat/completions", methods=post, handler=chat_completions, works=True),
        Route(path="/v1/completions", methods=post, handler=completions, works=True),
        Route(path="/v1/models", methods=get, handler=info.models),
        Route(path="/tokenize", methods=post, handler=tokenize),
        Route(path="/detokenize", methods=post, handler=detokenize),
        Route(path="/health", methods=get, handler=info.health, scope="public"),
        Route(path="/ready", methods=get, handler=info.health, scope="public"),
        Route(path="/live", methods=get, handler=info.live, scope="public"),
        Route(path="/ping", methods=(*get, "POST"), handler=info.health, scope="public"),
        Route(path="/version", methods=get, handler=info.version),
        Route(path="/metrics", methods=get, handler=info.metrics, scope=metrics_scope),
        Route(path="/load", methods=get, handler=info.load),
        Route(path="/platform/plugins", methods=get, handler=info.start_report),
    ]


class Application:
    """Dispatches exchanges. Paths are matched exactly, after the root path is taken off."""

    def __init__(
        self, state: ServerState, keys: KeyRing, mounted: Sequence[MountedRoute] = ()
    ) -> None:
        """Take the shared state, the keys and the plugins' routes.

        Raises:
            ConfigError: a plugin's route shadows another one.
        """
        self.state = state
        self._keys = keys
        routes = own_routes(protect_metrics=state.config.protect_metrics)
        self.routes = {route.path: route for route in routes}
        self.mounted = _checked_mounts(self.routes, mounted)
        self._quiet = frozenset(state.config.disable_access_log_for_endpoints)

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        """Serve one exchange."""
        if scope["type"] != "http":
            raise RuntimeError(f"the server speaks http, not {scope['type']}")
        request = HttpRequest(scope, receive, send, _request_id(scope))
        if self.state.config.enable_request_id_headers:
            request.extra_headers.append((b"x-request-id", request.request_id.encode("latin-1")))
        started = time.perf_counter()
        label = "other"
        try:
            label = await self._dispatch(request)
        except ClientGone:
            request.status = request.status or 499
        except HttpError as error:
            label = getattr(error, "route", label)
            await self._answer_failure(request, error)
        except asyncio.CancelledError:  # only the end of the server cancels a connection's task
            if not request.status:
                stopping = HttpError(503, "the server is stopping", close=True)
                await self._answer_failure(request, stopping)
        except Exception as error:
            await self._answer_failure(request, error)
        finally:
            self._account(request, label, time.perf_counter() - started)

    async def _dispatch(self, request: HttpRequest) -> str:
        """Run the route's handler."""
        path = request.path
        if (mount := self._find_mount(path)) is not None:
            self._keys.check(request, mount.spec.scope)
            await self._run_mounted(request, mount)
            return mount.spec.path
        route = self.routes.get(path)
        if route is not None:
            self._keys.check(request, route.scope)
            _check_method(request, route.methods)
            await self._run(request, route)
            return path
        # Unknown paths need a key too: without one, nothing is learnt about what is there.
        self._keys.check(request, "user")
        if path.startswith(_MODEL_PREFIX) and len(path) > len(_MODEL_PREFIX):
            _check_method(request, ("GET", "HEAD"))
            await info_routes.model_card(self.state, request, path[len(_MODEL_PREFIX) :])
            return _MODEL_PREFIX + "{model}"
        raise HttpError(404, f"there is no {path[:200]!r} here")

    async def _run(self, request: HttpRequest, route: Route) -> None:
        state = self.state
        if not route.works:
            await route.handler(state, request)
            return
        state.check_open()
        state.in_flight += 1
        try:
            await route.handler(state, request)
        finally:
            state.in_flight -= 1

    def _find_mount(self, path: str) -> MountedRoute | None:
        for mount in self.mounted:
            prefix = mount.spec.path
            if path == prefix or path.startswith(prefix + "/"):
                return mount
        return None

    async def _run_mounted(self, request: HttpRequest, mount: MountedRoute) -> None:
        scope = dict(request.scope)
        scope["root_path"] = scope.get("root_path", "") + mount.spec.path
        await mount.app(scope, request.receive, request.send)

    async def _answer_failure(self, request: HttpRequest, error: Exception) -> None:
        answer = answer_for(error, request.request_id)
        if request.status:  # part of an answer is out: ending it short is all that is left
            logger.error("answer cut short request_id=%s", request.request_id, exc_info=error)
            raise error
        await request.answer(answer.status, answer.body, headers=answer.headers)

    def _account(self, request: HttpRequest, label: str, seconds: float) -> None:
        if label == "other" and (request.path in self.routes):
            label = request.path
        if label not in self._quiet:
            self.state.metrics.observe(label, request.method, request.status, seconds)
        if self.state.config.disable_access_log or request.path in self._quiet:
            return
        access_logger.info(
            "request method=%s path=%s status=%d seconds=%.3f request_id=%s",
            request.method,
            request.path[:200].encode("unicode_escape").decode(),
            request.status,
            seconds,
            request.request_id,
        )


def _request_id(scope: MutableMapping[str, Any]) -> str:
    """Return the client's id if it brought a decent one, or a fresh one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            text = value.decode("latin-1")
            if _REQUEST_ID.fullmatch(text):
                return text
    return uuid.uuid4().hex


def _check_method(request: HttpRequest, methods: tuple[str, ...]) -> None:
    if request.method not in methods:
        allowed = ", ".join(methods)
        raise HttpError(
            405,
            f"{request.method} is not answered here; use {allowed}",
            headers={"allow": allowed},
        )


def _checked_mounts(
    routes: dict[str, Route], mounted: Sequence[MountedRoute]
) -> list[MountedRoute]:
    taken = {*routes, _MODEL_PREFIX.rstrip("/")}
    seen: dict[str, str] = {}
    for mount in mounted:
        path = mount.spec.path
        inside = [own for own in taken if own == path or own.startswith(path + "/")]
        inside += [own for own in taken if path.startswith(own + "/")]
        inside += [
            other
            for other in seen
            if other == path or other.startswith(path + "/") or path.startswith(other + "/")
        ]
        if inside:
            raise ConfigError(
                f"route {mount.spec.name!r} at {path} shadows {inside[0]}; give it another path"
            )
        seen[path] = mount.spec.name
    return list(mounted)
