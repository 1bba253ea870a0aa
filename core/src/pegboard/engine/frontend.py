"""The parts that every client of an engine is made of, however it waits for outputs."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

from pegboard.api.errors import PluginError
from pegboard.api.messages import IterationStats, SchedulerStats
from pegboard.api.observers import StatLogger
from pegboard.api.renderers import Renderer, RendererQuery
from pegboard.api.sampling import LogitsProcessor, LogitsProcessorQuery
from pegboard.api.tokenizers import Tokenizer, TokenizerQuery
from pegboard.catalog.catalog import Catalog
from pegboard.config.engine import EngineConfig, EngineOptions
from pegboard.engine.client import CoreClient, InProcessClient, OnOutputs
from pegboard.engine.input_processor import InputProcessor
from pegboard.engine.output_processor import OutputProcessor
from pegboard.engine.wire import CoreReady, Progress

__all__ = ["Frontend", "ProgressPrinter", "load_tokenizer"]

logger = logging.getLogger(__name__)

#: Says a line of progress to whoever waits for the start.
ProgressPrinter = Callable[[str], None]


class Frontend:
    """Tokenizer, renderer, processors, statistics and the engine core's client.

    The engine core's process is spawned first: it imports while this one resolves and reads
    the tokenizer.
    """

    def __init__(
        self,
        options: EngineOptions | None = None,
        *,
        catalog: Catalog | None = None,
        config: EngineConfig | None = None,
        in_process: bool = False,
        progress: ProgressPrinter | None = None,
    ) -> None:
        """Resolve and make the parts; the engine core is not ready before `start`.

        Args:
            options: what the user gave; not used if `config` is there.
            catalog: the process's catalog, else one is built from the options.
            config: already resolved.
            in_process: run the loop on a thread of this process.
            progress: takes each phase of the start as a line.

        Raises:
            PegboardError: what the user gave cannot work.
        """
        self._began = time.perf_counter()
        self._progress = progress or (lambda line: None)
        self.client: CoreClient | None = None
        if not in_process:
            from pegboard.engine.process_client import ProcessClient

            self.client = ProcessClient()
        try:
            options = options or EngineOptions()
            if catalog is None:
                catalog = _catalog(options, config)
            if config is None:
                from pegboard.engine.resolve import resolve

                config = resolve(options, catalog)
        except BaseException:
            self.close()
            raise
        self.catalog = catalog
        self.config = config
        self.client = self.client or InProcessClient(catalog)
        self.ready: CoreReady | None = None
        self.stats = SchedulerStats()
        self._phases: dict[str, float] = {}
        self.parts_made = False

    def make_parts(self) -> None:
        """Read the tokenizer and make what depends on it; beside the engine core's start."""
        if self.parts_made:
            return
        start = time.perf_counter()
        self.tokenizer = load_tokenizer(self.config, self.catalog)
        self.inputs = InputProcessor(self.config, self.tokenizer, self._logits_processors())
        self.outputs = OutputProcessor(
            self.tokenizer, stream_interval=self.config.scheduler.stream_interval
        )
        self.loggers = [
            (entry, self.catalog.create(entry, config=self.config))
            for entry in self.catalog.acting("stat_loggers")
        ]
        self._phases["read tokenizer"] = time.perf_counter() - start
        self.parts_made = True

    @cached_property
    def renderer(self) -> Renderer:
        """The model's chat renderer, made when it is first wanted."""
        query = RendererQuery(name=self.config.tokenizer)
        entry = self.catalog.select("renderers", query).entry
        description = self.config.model.description
        return self.catalog.create(entry, description, self.tokenizer, config=self.config)

    def _logits_processors(self) -> list[type[LogitsProcessor]]:
        names = self.config.model.logits_processors
        return [
            self.catalog.load(
                self.catalog.select(
                    "logits_processors", LogitsProcessorQuery(name=name), name=name
                ).entry
            )
            for name in names
        ]

    def start_with_parts(self, on_outputs: OnOutputs) -> None:
        """Start the engine core and make the parts, side by side where that is possible.

        Raises:
            PegboardError: either could not be done.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="start") as pool:
            parts = pool.submit(self.make_parts)
            try:
                self.start_core(on_outputs)
            finally:
                problem = parts.exception()
        if problem is not None:
            raise problem

    def start_core(self, on_outputs: OnOutputs) -> None:
        """Start the engine core and wait until it can answer.

        Raises:
            PegboardError: it could not; the first cause.
        """
        assert self.client is not None
        self.ready = self.client.start(self.config, on_outputs, self._on_progress)
        total = time.perf_counter() - self._began
        self._phases["until ready"] = total
        logger.info(
            "engine ready in %.2f s: kv_blocks=%d block_size=%d kv_mib=%d max_tokens=%d "
            "resident_mib=%d",
            total,
            self.ready.num_blocks,
            self.ready.block_size,
            self.ready.kv_bytes >> 20,
            self.ready.max_tokens,
            self.ready.ledger.get("resident_bytes", 0) >> 20,
        )

    def _on_progress(self, progress: Progress) -> None:
        detail = f" ({progress.detail})" if progress.detail else ""
        self._progress(f"{progress.phase}: {progress.seconds:.2f} s{detail}")

    def record(self, iteration: IterationStats) -> None:
        """Hand a batch's numbers to every stat logger; one that raises is confined."""
        for entry, stat_logger in self.loggers:
            try:
                with self.catalog.guard.calling(
                    entry.plugin, "stat_loggers.record", scope="plugin"
                ):
                    _record(stat_logger, self.stats, iteration)
            except PluginError as error:
                logger.warning("stat logger %s failed: %s", entry.name, error)

    def explain(self) -> dict[str, Any]:
        """Return the start report as JSON values."""
        ready = self.ready
        return {
            **self.catalog.report(),
            "platform": self.config.platform,
            "attention_backend": self.config.attention_backend,
            "executor": self.config.executor,
            "loader": self.config.loader,
            "tokenizer": self.config.tokenizer,
            "dtype": self.config.model.dtype,
            "max_model_len": self.config.model.max_model_len,
            "async_scheduling": self.config.scheduler.async_scheduling,
            "phases": {**self._phases, **(ready.phases if ready else {})},
            "memory": ready.ledger if ready else {},
            "kv_blocks": ready.num_blocks if ready else 0,
            "engine_core": ready.report if ready else {},
        }

    def close(self) -> None:
        """End the engine core. May be called twice."""
        if self.client is not None:
            self.client.shutdown()


def _catalog(options: EngineOptions, config: EngineConfig | None) -> Catalog:
    from pegboard.catalog import build_catalog, rebuild_catalog

    if config is not None:
        return rebuild_catalog(config.plugins, process="frontend")
    return build_catalog(options.plugins)


def _record(stat_logger: StatLogger, stats: SchedulerStats, iteration: IterationStats) -> None:
    stat_logger.record(stats, iteration)


def load_tokenizer(config: EngineConfig, catalog: Catalog) -> Tokenizer:
    """Make the model's tokenizer.

    Raises:
        ModelError: it cannot be read.
    """
    query = TokenizerQuery(name=config.tokenizer)
    entry = catalog.select("tokenizers", query, name=config.tokenizer).entry
    return catalog.create(entry, config.model.description, config=config)
