"""Every hook on one screen. A plugin implements any of them with `@hookimpl`.

Component hooks return lists of specs and are called once, when plugins are discovered, in every
process. An implementation may take fewer arguments than its spec. Lifecycle hooks only observe:
one that raises is logged, counted, and after repeated faults unhooked.

Each hook carries its stability and the processes in which what it offers is loaded.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import pluggy

from pegboard.api.attention import AttentionBackendSpec
from pegboard.api.engine import ExecutorSpec
from pegboard.api.frontends import CliCommandSpec, FrontendSpec, HttpRouteSpec
from pegboard.api.kv import KVGroupTypeSpec
from pegboard.api.loaders import ModelLoaderSpec
from pegboard.api.models import ConfigReaderSpec, ModelArchitectureSpec
from pegboard.api.observers import EngineEvent, Fault, StatLoggerSpec
from pegboard.api.ops import OpDefinition, OpImplementationSpec
from pegboard.api.platforms import PlatformSpec
from pegboard.api.plugin import ComponentSpec
from pegboard.api.renderers import RendererSpec
from pegboard.api.sampling import LogitsProcessorSpec
from pegboard.api.scheduling import SchedulerPolicySpec
from pegboard.api.tokenizers import TokenizerSpec

__all__ = ["COMPONENT_HOOKS", "LIFECYCLE_HOOKS", "HookInfo", "HookSpecs"]

_hookspec = pluggy.HookspecMarker("pegboard")


class HookInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a hook besides its signature.

    Attributes:
        spec: the spec class that a component hook's lists hold; None for lifecycle hooks.
        processes: where components load, of "frontend", "engine_core", "worker".
        stability: "stable" (two minors' notice) or "provisional".
        acts_unselected: components act without being selected, so only for plugins enabled by name.
    """

    spec: type[ComponentSpec] | None
    processes: tuple[str, ...]
    stability: str
    acts_unselected: bool = False


COMPONENT_HOOKS: dict[str, HookInfo] = {}
LIFECYCLE_HOOKS: dict[str, HookInfo] = {}


def _components(
    spec: type[ComponentSpec],
    *processes: str,
    stability: str = "provisional",
    acts_unselected: bool = False,
) -> Callable[[Any], Any]:
    def register(function: Any) -> Any:  # noqa: ANN401 -- decorates a hook specification
        COMPONENT_HOOKS[function.__name__] = HookInfo(
            spec=spec, processes=processes, stability=stability, acts_unselected=acts_unselected
        )
        return _hookspec(function)

    return register


def _observes(*processes: str) -> Callable[[Any], Any]:
    def register(function: Any) -> Any:  # noqa: ANN401 -- decorates a hook specification
        LIFECYCLE_HOOKS[function.__name__] = HookInfo(
            spec=None, processes=processes, stability="provisional", acts_unselected=True
        )
        return _hookspec(function)

    return register


class HookSpecs:
    """The specifications, as pluggy reads them."""

    @_components(PlatformSpec, "frontend", "engine_core", "worker", stability="stable")
    def platforms(self) -> list[PlatformSpec]:  # type: ignore[empty-body]
        """Hardware families this plugin can run on."""

    @_components(AttentionBackendSpec, "worker", stability="stable")
    def attention_backends(self) -> list[AttentionBackendSpec]:  # type: ignore[empty-body]
        """Attention kernels with the cache they own."""

    @_components(KVGroupTypeSpec, "engine_core")
    def kv_group_types(self) -> list[KVGroupTypeSpec]:  # type: ignore[empty-body]
        """Policies of layers that share a block table."""

    @_components(OpDefinition, "worker", stability="stable")
    def op_definitions(self) -> list[OpDefinition]:  # type: ignore[empty-body]
        """Named ops, each with its plain reference."""

    @_components(OpImplementationSpec, "worker", stability="stable")
    def op_implementations(self) -> list[OpImplementationSpec]:  # type: ignore[empty-body]
        """Implementations of named ops."""

    @_components(ModelArchitectureSpec, "worker", stability="stable")
    def model_architectures(self) -> list[ModelArchitectureSpec]:  # type: ignore[empty-body]
        """Model classes, by the name a checkpoint gives its architecture."""

    @_components(ConfigReaderSpec, "frontend")
    def config_readers(self) -> list[ConfigReaderSpec]:  # type: ignore[empty-body]
        """Readers of checkpoint configurations."""

    @_components(ModelLoaderSpec, "worker", stability="stable")
    def model_loaders(self) -> list[ModelLoaderSpec]:  # type: ignore[empty-body]
        """Streams of named tensors from a checkpoint format."""

    @_components(TokenizerSpec, "frontend")
    def tokenizers(self) -> list[TokenizerSpec]:  # type: ignore[empty-body]
        """Text to token ids and back."""

    @_components(RendererSpec, "frontend")
    def renderers(self) -> list[RendererSpec]:  # type: ignore[empty-body]
        """Chat messages to prompts."""

    @_components(ExecutorSpec, "engine_core")
    def executors(self) -> list[ExecutorSpec]:  # type: ignore[empty-body]
        """Owners of a worker fleet."""

    @_components(SchedulerPolicySpec, "engine_core")
    def scheduler_policies(self) -> list[SchedulerPolicySpec]:  # type: ignore[empty-body]
        """Orders over waiting and running requests."""

    @_components(LogitsProcessorSpec, "frontend", "worker")
    def logits_processors(self) -> list[LogitsProcessorSpec]:  # type: ignore[empty-body]
        """Changes of logits before sampling."""

    @_components(StatLoggerSpec, "frontend", acts_unselected=True)
    def stat_loggers(self) -> list[StatLoggerSpec]:  # type: ignore[empty-body]
        """Sinks of the engine's numbers."""

    @_components(FrontendSpec, "frontend")
    def frontends(self) -> list[FrontendSpec]:  # type: ignore[empty-body]
        """Servers that run given an engine client."""

    @_components(HttpRouteSpec, "frontend", acts_unselected=True)
    def http_routes(self) -> list[HttpRouteSpec]:  # type: ignore[empty-body]
        """ASGI applications mounted beside a front end's own routes."""

    @_components(CliCommandSpec, "frontend")
    def cli_commands(self) -> list[CliCommandSpec]:  # type: ignore[empty-body]
        """Subcommands of `platform`."""

    @_observes("engine_core")
    def on_engine_start(self, event: EngineEvent) -> None:
        """The engine core is ready."""

    @_observes("engine_core")
    def on_engine_stop(self, event: EngineEvent) -> None:
        """The engine core is about to end."""

    @_observes("engine_core")
    def on_request_added(self, event: EngineEvent) -> None:
        """A request entered the scheduler."""

    @_observes("engine_core")
    def on_step_scheduled(self, event: EngineEvent) -> None:
        """A step was scheduled."""

    @_observes("engine_core")
    def on_step_finished(self, event: EngineEvent) -> None:
        """A step's output was processed."""

    @_observes("engine_core")
    def on_request_finished(self, event: EngineEvent) -> None:
        """A request left the scheduler."""

    @_observes("engine_core", "frontend")
    def on_fault(self, fault: Fault) -> None:
        """A failure was confined to a request, a plugin or the engine."""
