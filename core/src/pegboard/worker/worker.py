"""The worker: opens one device, joins the fleet's process group and owns the model runner."""

import importlib
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from pegboard.api.engine import ModelRunner as ModelRunnerProtocol
from pegboard.api.engine import Worker as WorkerProtocol
from pegboard.api.errors import WorkerError
from pegboard.api.kv import KVGroup
from pegboard.api.platforms import Platform, PlatformQuery, PlatformSpec
from pegboard.catalog import Catalog
from pegboard.config.engine import EngineConfig
from pegboard.distributed.groups import join_world, leave_world
from pegboard.worker.model_runner import ModelRunner

__all__ = ["Worker", "make_platform", "make_worker"]

logger = logging.getLogger(__name__)


def make_platform(config: EngineConfig, catalog: Catalog) -> Platform:
    """Make the platform that was selected; opens no device."""
    selection = catalog.select(
        "platforms", PlatformQuery(name=config.platform), name=config.platform
    )
    return catalog.create(selection.entry, selection.spec, config=config)


def make_worker(
    config: EngineConfig,
    catalog: Catalog,
    *,
    rank: int = 0,
    world_size: int = 1,
    init_method: str | None = None,
) -> WorkerProtocol:
    """Make the platform's own worker, or the core's; takes what `Worker` takes."""
    entry = catalog.select(
        "platforms", PlatformQuery(name=config.platform), name=config.platform
    ).entry
    make = _named(catalog.load(entry).worker) or Worker
    return make(config, catalog, rank=rank, world_size=world_size, init_method=init_method)


class Worker:
    """One device's worker. All calls come from one thread: the one that computes."""

    def __init__(
        self,
        config: EngineConfig,
        catalog: Catalog,
        *,
        rank: int = 0,
        world_size: int = 1,
        init_method: str | None = None,
    ) -> None:
        """Keep what it is built for; `start` does the work.

        Args:
            config: the engine's.
            catalog: this process's.
            rank: number of this worker in the fleet.
            world_size: workers in the fleet.
            init_method: where the fleet meets, for more than one worker.
        """
        self._config = config
        self._catalog = catalog
        self._rank = rank
        self._world_size = world_size
        self._init_method = init_method
        self._runner: Any = None
        self._platform: Platform
        self._free_at_start = 0
        self._methods: dict[str, Callable[..., Any]] = {
            "available_kv_bytes": self.available_kv_bytes,
            "initialize_kv": self._initialize_kv,
            "kv_needs": self._kv_needs,
            "memory": self.memory,
            "op_choices": self._op_choices,
            "pid": os.getpid,
            "ping": self._ping,
        }

    def start(self) -> None:
        """Open the device, join the process group, load the model."""
        self._platform = platform = make_platform(self._config, self._catalog)
        device = platform.open_device(self._rank, self._world_size)
        self._free_at_start = platform.memory_info().free_bytes
        spec = platform.spec
        assert isinstance(spec, PlatformSpec)
        group = join_world(
            rank=self._rank,
            world_size=self._world_size,
            init_method=self._init_method or "",
            backend=spec.distributed_backend,
        )
        make = _named(platform.model_runner) or ModelRunner
        self._runner = make(self._config, self._catalog, platform, device, group)
        self._runner.load_model()

    @property
    def model_runner(self) -> ModelRunnerProtocol:
        """The runner. After `start`."""
        if self._runner is None:
            raise WorkerError(f"worker {self._rank} has not started")
        return self._runner

    def available_kv_bytes(self) -> int:
        """Return the bytes this worker has for KV blocks; runs a profiling pass if it must."""
        cache = self._config.cache
        if cache.kv_cache_memory_bytes is not None:
            return cache.kv_cache_memory_bytes
        used = self.model_runner.profile_memory()
        return self._platform.default_kv_bytes(
            self._free_at_start, cache.gpu_memory_utilization, used
        )

    def initialize_kv(self, groups: Sequence[KVGroup], num_blocks: int) -> None:
        """Allocate the caches, then warm up."""
        self.model_runner.initialize_kv(groups, num_blocks)
        self.model_runner.warm_up()
        memory = {name.removesuffix("_bytes"): size for name, size in self.memory().items()}
        shown = " ".join(f"{name}_mib={size >> 20}" for name, size in memory.items())
        logger.info("rank=%d memory %s", self._rank, shown)

    def memory(self) -> dict[str, int]:
        """Return the memory ledger in bytes, and what the platform says this process uses."""
        ledger = getattr(self._runner, "ledger", None)
        numbers: dict[str, int] = ledger.report() if ledger is not None else {}
        return {**numbers, "used_bytes": self._platform.memory_info().used_bytes}

    def call(self, method: str, args: Sequence[Any] = ()) -> Any:  # noqa: ANN401 -- a msgpack value
        """Call a named method with msgpack arguments; the result is a msgpack value.

        Raises:
            WorkerError: there is no such method.
        """
        function = self._methods.get(method)
        if function is None:
            known = ", ".join(sorted(self._methods))
            raise WorkerError(f"workers have no method {method!r}; there are {known}")
        return function(*args)

    def shutdown(self) -> None:
        """Free the device. May be called twice."""
        self._runner = None
        leave_world()

    def _initialize_kv(self, groups: Any, num_blocks: int) -> None:  # noqa: ANN401 -- from msgpack
        self.initialize_kv(msgspec.convert(groups, list[KVGroup]), num_blocks)

    def _kv_needs(self) -> Any:  # noqa: ANN401 -- a msgpack value
        return msgspec.to_builtins(self.model_runner.kv_needs())

    def _op_choices(self) -> Any:  # noqa: ANN401 -- a msgpack value
        return msgspec.to_builtins(getattr(self._runner, "op_choices", ()))

    def _ping(self) -> int:
        return self._rank


def _named(target: str | None) -> Callable[..., Any] | None:
    """Return what "module:class" names."""
    if target is None:
        return None
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)
