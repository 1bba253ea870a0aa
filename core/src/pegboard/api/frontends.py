"""Front ends, HTTP routes and subcommands."""

import argparse
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec

from pegboard.api.engine import EngineClient
from pegboard.api.plugin import ComponentContext, ComponentSpec

if TYPE_CHECKING:
    import asyncio

__all__ = [
    "AsgiApp",
    "CliCommand",
    "CliCommandQuery",
    "CliCommandSpec",
    "Frontend",
    "FrontendQuery",
    "FrontendSpec",
    "HttpRouteQuery",
    "HttpRouteSpec",
    "MountedRoute",
]

AsgiApp = Callable[
    [
        MutableMapping[str, Any],
        Callable[[], Awaitable[Any]],
        Callable[[Any], Awaitable[None]],
    ],
    Awaitable[None],
]


class FrontendQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which front end `platform serve` runs."""

    name: str


class FrontendSpec(ComponentSpec, frozen=True, kw_only=True):
    """Describes a `Frontend`; its `target` is the class.

    The fields of its plugin's config struct are also plain flags of `platform serve`.
    """

    kind: ClassVar[str] = "frontends"

    def reasons_against(self, query: FrontendQuery) -> list[str]:
        """Fits exactly the one that is asked for."""
        if query.name in (self.name, *self.aliases):
            return []
        return [f"{query.name} was asked for"]


class Frontend(ABC):
    """Serves clients, given an engine. Runs in the front-end process; imports no torch.

    `validate` and `bind` come before the engine starts, so that a wrong option or a port in use
    stops the start at once.
    """

    def __init__(self, context: ComponentContext) -> None:
        """Keep the context; `context.plugin_config` holds its options."""
        self.context = context

    @abstractmethod
    def bind(self) -> str:
        """Take the address and return it for the log, such as "http://127.0.0.1:8000".

        Raises:
            ConfigError: it cannot be taken; names the flag that mends it.
        """

    def loop_factory(self) -> "Callable[[], asyncio.AbstractEventLoop] | None":
        """Return what makes the event loop that `run` wants; None for asyncio's own."""
        return None

    def prepare(self) -> None:  # noqa: B027 -- many have nothing to prepare
        """Import what `run` needs. Called once, from one thread, while the engine starts."""

    @abstractmethod
    async def run(
        self,
        client: EngineClient,
        routes: "list[MountedRoute]",
        on_ready: Callable[[], None] | None = None,
    ) -> None:
        """Serve until stopped by a signal or by the engine's death; then drain and return.

        Args:
            client: the running engine.
            routes: of plugins enabled by name.
            on_ready: called once, when clients can connect; the place to print the address.

        Raises:
            EngineDead: the engine died while serving.
        """


class MountedRoute(msgspec.Struct, frozen=True, kw_only=True):
    """A plugin's HTTP route, its application made."""

    spec: "HttpRouteSpec"
    app: Any


class HttpRouteQuery(msgspec.Struct, frozen=True, kw_only=True):
    """All routes of plugins enabled by name are mounted; a query by name picks one."""

    name: str | None = None


class HttpRouteSpec(ComponentSpec, frozen=True, kw_only=True):
    """A plain ASGI application under a path. `target` is "module:factory(context, client)".

    Attributes:
        path: prefix it is mounted at, such as "/myorg"; may not shadow another route.
        scope: "public" needs no key, "user" an API key, "admin" the admin key.
    """

    kind: ClassVar[str] = "http_routes"

    path: str
    scope: Literal["public", "user", "admin"] = "user"

    def __post_init__(self) -> None:
        """Check names and the path."""
        ComponentSpec.__post_init__(self)
        if not self.path.startswith("/") or self.path == "/" or self.path.endswith("/"):
            raise ValueError(f'path of route {self.name!r} is {self.path!r}; write "/something"')


class CliCommandQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which subcommand of `platform`."""

    name: str


class CliCommandSpec(ComponentSpec, frozen=True, kw_only=True):
    """A subcommand of `platform`; `target` is the `CliCommand` class, `summary` its help."""

    kind: ClassVar[str] = "cli_commands"

    def reasons_against(self, query: CliCommandQuery) -> list[str]:
        """Fits exactly the one that is asked for."""
        if query.name in (self.name, *self.aliases):
            return []
        return [f"{query.name} was asked for"]


class CliCommand(ABC):
    """A subcommand: declares arguments, then runs."""

    def __init__(self, context: ComponentContext) -> None:
        """Keep the context."""
        self.context = context

    @abstractmethod
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare its arguments."""

    @abstractmethod
    def run(self, args: argparse.Namespace) -> int:
        """Do it and return the exit status; raise `PegboardError` for a one-line failure."""
