"""The user's options as one struct, and the one frozen configuration they become."""

import msgspec

from pegboard.config.model import LoadConfig, ModelConfig, ModelOptions
from pegboard.config.plugins import PluginsConfig, ResolvedPlugin
from pegboard.config.runtime import (
    AttentionConfig,
    CacheConfig,
    GraphConfig,
    KernelConfig,
    ObservabilityConfig,
    ParallelConfig,
    SchedulerConfig,
)

__all__ = [
    "EngineConfig",
    "EngineOptions",
    "ResolvedCacheConfig",
    "ResolvedSchedulerConfig",
]


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that a user can set for an engine: one table of the TOML file a field."""

    model: ModelOptions = ModelOptions()
    load: LoadConfig = LoadConfig()
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    parallel: ParallelConfig = ParallelConfig()
    attention: AttentionConfig = AttentionConfig()
    graphs: GraphConfig = GraphConfig()
    ops: KernelConfig = KernelConfig()
    observability: ObservabilityConfig = ObservabilityConfig()
    plugins: PluginsConfig = PluginsConfig()


class ResolvedCacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The KV cache with every default decided; satisfies `CacheConfigView`."""

    block_size: int
    gpu_memory_utilization: float
    kv_cache_memory_bytes: int | None
    num_gpu_blocks_override: int | None
    kv_cache_dtype: str
    enable_prefix_caching: bool


class ResolvedSchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The step's limits with every default decided; satisfies `SchedulerConfigView`."""

    max_num_batched_tokens: int
    max_num_seqs: int
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    scheduling_policy: str = "fcfs"
    async_scheduling: bool = True
    stream_interval: int = 1
    watermark: float = 0.0

    @property
    def max_steps_in_flight(self) -> int:
        """Steps that may be given to the workers before the first of them is known."""
        return 2 if self.async_scheduling else 1

    @property
    def max_tokens_in_flight(self) -> int:
        """Most tokens of a sequence that are scheduled but not yet known to be computed."""
        return self.max_steps_in_flight * self.max_num_batched_tokens


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The one frozen configuration; crosses to every process; satisfies `EngineConfigView`.

    Attributes:
        platform, attention_backend, executor, loader, tokenizer: names of what was selected.
        plugins: what every child loads and verifies.
    """

    model: ModelConfig
    load: LoadConfig
    cache: ResolvedCacheConfig
    scheduler: ResolvedSchedulerConfig
    parallel: ParallelConfig
    attention: AttentionConfig
    graphs: GraphConfig = GraphConfig()
    ops: KernelConfig
    observability: ObservabilityConfig
    plugins: list[ResolvedPlugin]
    platform: str
    attention_backend: str
    executor: str
    loader: str
    tokenizer: str
