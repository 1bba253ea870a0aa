"""The step, the cache, the fleet and the kernels."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

__all__ = [
    "AttentionConfig",
    "CacheConfig",
    "GraphConfig",
    "KernelConfig",
    "ObservabilityConfig",
    "ParallelConfig",
    "SchedulerConfig",
]

OneOrMore = Annotated[int, Meta(ge=1)]
TwoOrMore = Annotated[int, Meta(ge=2)]
BlockSize = Annotated[int, Meta(ge=1, le=1024)]
MaxSeqs = Annotated[int, Meta(ge=1, le=65_536)]


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The KV cache; `[cache]`."""

    block_size: Annotated[
        BlockSize | None, Meta(description="Tokens a block. Default: the backend's.")
    ] = None
    gpu_memory_utilization: Annotated[
        float,
        Meta(
            gt=0,
            le=1,
            description="Fraction of the device's memory this engine may use (any device).",
        ),
    ] = 0.9
    kv_cache_memory_bytes: Annotated[
        OneOrMore | None,
        Meta(description="Bytes for KV blocks, exactly; overrides the fraction. 1G = 2^30."),
    ] = None
    num_gpu_blocks_override: Annotated[
        TwoOrMore | None, Meta(description="Number of KV blocks, for tests.")
    ] = None
    kv_cache_dtype: Annotated[
        str, Meta(description="Of the KV cache; auto takes the model's dtype.")
    ] = "auto"
    enable_prefix_caching: Annotated[
        bool, Meta(description="Share full blocks between equal prefixes.")
    ] = True


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The step's limits; `[scheduler]`."""

    max_num_batched_tokens: Annotated[
        OneOrMore | None, Meta(description="Token budget of a step. Default: the platform's.")
    ] = None
    max_num_seqs: Annotated[
        MaxSeqs | None, Meta(description="Most sequences in a step. Default: 64 on CPU.")
    ] = None
    max_num_queued_reqs: Annotated[
        OneOrMore | None, Meta(description="Most waiting requests; past it 429.")
    ] = None
    max_num_queued_tokens: Annotated[
        OneOrMore | None, Meta(description="Most waiting prompt tokens; past it 429.")
    ] = None
    enable_chunked_prefill: Annotated[
        bool, Meta(description="Split prompts that do not fit a step's budget.")
    ] = True
    long_prefill_token_threshold: Annotated[
        int,
        Meta(
            ge=0,
            description="Most tokens a step gives one prompt while others wait; 0: a share.",
        ),
    ] = 0
    scheduling_policy: Annotated[
        str, Meta(description="Scheduler policy: fcfs, priority or a plugin's.")
    ] = "fcfs"
    async_scheduling: Annotated[
        bool, Meta(description="Schedule the next step before this one's tokens are known.")
    ] = True
    stream_interval: Annotated[
        int, Meta(ge=1, description="Tokens between two outputs of a stream.")
    ] = 1
    watermark: Annotated[
        float, Meta(ge=0, lt=1, description="Fraction of blocks kept free on admission.")
    ] = 0.0


class ParallelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The worker fleet; `[parallel]`."""

    platform: Annotated[
        str | None, Meta(description="Platform by name. Default: the best that is available.")
    ] = None
    tensor_parallel_size: Annotated[
        int, Meta(ge=1, le=1024, description="Workers that share each layer.")
    ] = 1
    distributed_executor_backend: Annotated[
        str | None, Meta(description="Executor: uni, mp or a plugin's. Default: by fleet size.")
    ] = None


class AttentionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Attention; `[attention]`."""

    attention_backend: Annotated[
        str | None, Meta(description="Attention backend by name. Default: the best that fits.")
    ] = None


class GraphConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Captured steps, on platforms that capture; `[graphs]`."""

    graph_mode: Annotated[
        Literal["none", "full"],
        Meta(description="Capture decode steps whole, or none; prompts are launched as they come."),
    ] = "full"
    enforce_eager: Annotated[
        bool, Meta(description="Capture nothing, whatever the mode; for debugging.")
    ] = False


class KernelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Op implementations; `[ops]`: an op's name to implementation names, the preferred first."""

    priority: Annotated[
        dict[str, list[str]],
        Meta(description='Op to implementations in order, such as {"rms_norm": ["reference"]}.'),
    ] = {}


class ObservabilityConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Logs and numbers; `[observability]`."""

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Least severe line logged.")
    ] = "info"
    log_format: Annotated[Literal["text", "json"], Meta(description="Form of log lines.")] = "text"
    disable_log_stats: Annotated[
        bool, Meta(description="No periodic line of throughput and queue lengths.")
    ] = False
    log_stats_interval_s: Annotated[
        float, Meta(gt=0, description="Seconds between those lines.")
    ] = 10.0
    timeline_path: Annotated[
        str | None, Meta(description="Write each step's phases here as a Chrome trace.")
    ] = None
