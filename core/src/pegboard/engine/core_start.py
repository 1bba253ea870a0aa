"""Starts an engine core from its configuration: executor, model, KV pool, scheduler, loop."""

import logging
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pegboard.api.engine import Executor, ExecutorQuery
from pegboard.api.errors import EngineError
from pegboard.api.kv import KVGroup, KVGroupType, KVGroupTypeQuery
from pegboard.api.scheduling import SchedulerPolicyQuery
from pegboard.catalog.catalog import Catalog
from pegboard.config.engine import EngineConfig
from pegboard.engine.core import EngineCore, Inbox, Send
from pegboard.engine.kv_sizing import KVPlan, plan_kv
from pegboard.engine.wire import CoreReady, Progress
from pegboard.kv.manager import KVCacheManager
from pegboard.observability.timeline import open_timeline
from pegboard.scheduler.scheduler import Scheduler

__all__ = ["Phases", "StartedCore", "start_core"]

logger = logging.getLogger(__name__)

_LEDGER_TIMEOUT_S = 10.0

Report = Callable[[Progress], None]


@dataclass(slots=True)
class Phases:
    """Times the phases of a start, and reports each as it ends."""

    report: Report
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Generator[list[str]]:
        """Time a block; what it appends to the list is the report's detail."""
        start = time.perf_counter()
        detail: list[str] = []
        yield detail
        self.seconds[name] = time.perf_counter() - start
        progress = Progress(phase=name, seconds=self.seconds[name], detail=", ".join(detail))
        logger.debug("phase=%s seconds=%.3f %s", name, progress.seconds, progress.detail)
        self.report(progress)


@dataclass(frozen=True, slots=True)
class StartedCore:
    """A core that is ready to run, its executor, and what front ends are told."""

    core: EngineCore
    executor: Executor
    ready: CoreReady


def start_core(
    config: EngineConfig, catalog: Catalog, *, inbox: Inbox, send: Send, phases: Phases
) -> StartedCore:
    """Start the workers, load the model, plan and allocate the KV pool, make the loop.

    Raises:
        PegboardError: whatever stopped it, as the one first cause; the workers are ended.
    """
    selection = catalog.select(
        "executors",
        ExecutorQuery(name=config.executor, world_size=config.parallel.tensor_parallel_size),
        name=config.executor,
    )
    executor: Executor = catalog.create(selection.entry, config=config)
    try:
        with phases.phase("load model"):
            executor.start()
        with phases.phase("plan memory") as detail:
            plan = _plan(config, catalog, executor)
            detail.append(f"{plan.num_blocks} blocks of {config.cache.block_size} tokens")
        with phases.phase("allocate and warm up"):
            executor.initialize_kv(plan.groups, plan.num_blocks)
        core = EngineCore(
            _scheduler(config, catalog, plan),
            executor,
            catalog,
            inbox=inbox,
            send=send,
            async_scheduling=config.scheduler.async_scheduling,
            timeline=open_timeline(config.observability.timeline_path, "engine_core"),
        )
        ready = CoreReady(
            num_blocks=plan.num_blocks,
            block_size=config.cache.block_size,
            kv_bytes=plan.kv_bytes,
            max_tokens=plan.max_tokens,
            phases=phases.seconds,
            ledger=_ledger(plan, executor),
            report=catalog.report(),
        )
    except BaseException:
        executor.shutdown()
        raise
    return StartedCore(core, executor, ready)


def _plan(config: EngineConfig, catalog: Catalog, executor: Executor) -> KVPlan:
    needs = executor.kv_needs()
    # A profiling pass costs time; it is run only where its answer is wanted.
    exact = config.cache.kv_cache_memory_bytes
    if exact is None:
        overridden = config.cache.num_gpu_blocks_override is not None
        exact = 0 if overridden else executor.available_kv_bytes()
    return plan_kv(config, needs, exact, lambda group: _group_type(catalog, group))


def _scheduler(config: EngineConfig, catalog: Catalog, plan: KVPlan) -> Scheduler:
    policy_entry = catalog.select(
        "scheduler_policies",
        SchedulerPolicyQuery(name=config.scheduler.scheduling_policy),
        name=config.scheduler.scheduling_policy,
    ).entry
    kv = KVCacheManager(
        plan.groups,
        plan.num_blocks,
        plan.group_types,
        enable_prefix_caching=config.cache.enable_prefix_caching,
    )
    return Scheduler(
        config.scheduler,
        kv,
        catalog.create(policy_entry, config=config),
        max_model_len=config.model.max_model_len,
    )


def _group_type(catalog: Catalog, group: KVGroup) -> KVGroupType:
    entry = catalog.select("kv_group_types", KVGroupTypeQuery(name=group.group_type)).entry
    return catalog.load(entry)(group)


def _ledger(plan: KVPlan, executor: Executor) -> dict[str, int]:
    """Return who holds memory: each worker's own account, the largest of each kind."""
    ledger = {"kv_pool_bytes": plan.kv_bytes} | resident_bytes()
    try:
        accounts = executor.collective_rpc("memory", (), _LEDGER_TIMEOUT_S)
    except EngineError as error:
        logger.debug("the workers keep no memory ledger: %s", error)
        return ledger
    for account in accounts:
        for name, size in account.items():
            key = f"worker_{name}"
            ledger[key] = max(ledger.get(key, 0), size)
    return ledger


def resident_bytes() -> dict[str, int]:
    """Return what this process holds, in bytes, where the system says."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    found: dict[str, int] = {}
    names = {"VmRSS:": "resident_bytes", "VmHWM:": "peak_resident_bytes"}
    for line in lines:
        words = line.split()
        if words and words[0] in names:
            found[names[words[0]]] = int(words[1]) * 1024
    return found
