"""What the user gave, the model and the platform become one frozen configuration.

Imports no torch and opens no device. Each struct checks its own fields; what must fit together
is checked here, in order, and what was derived is logged with the reason.
"""

import logging
from typing import Any, NamedTuple

import msgspec

from pegboard.api.engine import ExecutorQuery
from pegboard.api.errors import ConfigError, ModelError
from pegboard.api.loaders import LoadQuery
from pegboard.api.models import ModelArchitectureQuery, ModelDescription
from pegboard.api.platforms import Platform, PlatformQuery
from pegboard.api.sampling import LogitsProcessorQuery
from pegboard.api.scheduling import SchedulerPolicyQuery
from pegboard.api.tokenizers import TokenizerQuery
from pegboard.catalog.catalog import Catalog
from pegboard.catalog.selection import BY_NAME, Selection
from pegboard.config.engine import (
    EngineConfig,
    EngineOptions,
    ResolvedCacheConfig,
    ResolvedSchedulerConfig,
)
from pegboard.config.env import read_environment
from pegboard.config.model import ModelConfig
from pegboard.engine.attention_choice import attention_query, select_attention
from pegboard.engine.default_model import DEFAULT_MODEL_NAME
from pegboard.engine.model_source import locate_model
from pegboard.engine.resolve_model import default_sampling, describe_model
from pegboard.engine.tensor_parallel import check_tensor_parallel

__all__ = ["attention_query", "resolve"]

logger = logging.getLogger(__name__)

_DTYPES = {"half": "float16", "float": "float32"}
_DEFAULT_BATCHED_TOKENS = 2048
_MAX_SEQS_HOST = 64
_MAX_SEQS_DEVICE = 256
_DEFAULT_QUEUED_REQS = 4096


def resolve(options: EngineOptions, catalog: Catalog) -> EngineConfig:
    """Decide everything that the user left open, and refuse what cannot work.

    Raises:
        ConfigError: settings that cannot work, together or with this model or platform.
        ModelError: the model is missing, unreadable or unsupported.
        SelectionError: no component fits, or the one asked for does not.
    """
    log = _Log()
    description = _describe(options, catalog)
    hardware = _hardware(options, description, catalog, log)
    check_tensor_parallel(description.config, options.parallel.tensor_parallel_size)
    model = _model(options, description, hardware.dtype, catalog, log)
    config = EngineConfig(
        model=model,
        load=_load(options),
        cache=_cache(options, hardware),
        scheduler=_scheduler(
            options, model, hardware.platform, hardware.attention.spec, catalog, log
        ),
        parallel=options.parallel,
        attention=options.attention,
        graphs=options.graphs,
        ops=options.ops,
        observability=options.observability,
        plugins=catalog.resolved(),
        platform=hardware.platform.name,
        attention_backend=hardware.attention.entry.name,
        executor=_executor(options, catalog, log),
        loader=_loader(options, description, catalog),
        tokenizer=_tokenizer(options, description, catalog),
    )
    problems = hardware.platform.validate(config)
    if problems:
        raise ConfigError("; ".join(problems))
    return config


class _Hardware(NamedTuple):
    """What runs the model, and in which types."""

    platform: Platform
    dtype: str
    kv_dtype: str
    attention: Selection
    block_size: int


def _describe(options: EngineOptions, catalog: Catalog) -> ModelDescription:
    path = locate_model(
        options.model.model,
        read_environment(),
        revision=options.model.revision,
        download_dir=options.load.download_dir,
    )
    return describe_model(str(path), options.model, catalog)


def _hardware(
    options: EngineOptions, description: ModelDescription, catalog: Catalog, log: "_Log"
) -> _Hardware:
    entry = catalog.select("platforms", PlatformQuery(), name=options.parallel.platform).entry
    platform: Platform = catalog.create(entry, entry.spec)
    dtype = _dtype(options, description, platform, log)
    kv_dtype = _kv_dtype(options, dtype)
    query = attention_query(
        description,
        platform=entry.name,
        detection=catalog.detect(entry),
        dtype=dtype,
        kv_dtype=kv_dtype,
        block_size=options.cache.block_size or 1,
    )
    selection, query = select_attention(
        catalog,
        query,
        name=options.attention.attention_backend,
        block_size=options.cache.block_size,
    )
    log.note("attention_backend", selection.entry.name, selection.reason)
    log.note("block_size", query.block_size, _source(options.cache.block_size, "the backend's"))
    return _Hardware(platform, dtype, kv_dtype, selection, query.block_size)


def _cache(options: EngineOptions, hardware: _Hardware) -> ResolvedCacheConfig:
    given = options.cache
    return ResolvedCacheConfig(
        block_size=hardware.block_size,
        gpu_memory_utilization=given.gpu_memory_utilization,
        kv_cache_memory_bytes=given.kv_cache_memory_bytes,
        num_gpu_blocks_override=given.num_gpu_blocks_override,
        kv_cache_dtype=hardware.kv_dtype,
        enable_prefix_caching=given.enable_prefix_caching,
    )


class _Log:
    """What was derived, and why."""

    def note(self, name: str, value: Any, why: str) -> None:  # noqa: ANN401 -- anything printable
        logger.info("%s=%s (%s)", name, value, why)


def _source(given: Any, otherwise: str) -> str:  # noqa: ANN401 -- only whether it is there
    return "as asked for" if given is not None else otherwise


def _dtype(
    options: EngineOptions, description: ModelDescription, platform: Platform, log: _Log
) -> str:
    supported = platform.supported_dtypes()
    wanted = options.model.dtype
    if wanted != "auto":
        dtype = _DTYPES.get(wanted, wanted)
        if dtype not in supported:
            raise ConfigError(
                f"dtype is {dtype}; platform {platform.name} runs {', '.join(supported)} (--dtype)"
            )
        return dtype
    stored = description.dtype
    # Half types that the platform likes less than float32 are there only to be asked for.
    liked = supported[: supported.index("float32")] if "float32" in supported else supported
    if stored in liked:
        log.note("dtype", stored, "the checkpoint's")
        return stored
    log.note("dtype", supported[0], f"platform {platform.name} prefers it; stored as {stored}")
    return supported[0]


def _kv_dtype(options: EngineOptions, dtype: str) -> str:
    wanted = options.cache.kv_cache_dtype
    return dtype if wanted == "auto" else _DTYPES.get(wanted, wanted)


def _model(
    options: EngineOptions,
    description: ModelDescription,
    dtype: str,
    catalog: Catalog,
    log: _Log,
) -> ModelConfig:
    query = ModelArchitectureQuery(architectures=description.architectures)
    architecture = catalog.select("model_architectures", query).entry.name
    for processor in options.model.logits_processors:
        wanted = LogitsProcessorQuery(name=processor)
        catalog.select("logits_processors", wanted, name=processor)
    name = options.model.model or DEFAULT_MODEL_NAME
    return ModelConfig(
        model=name,
        served_model_name=options.model.served_model_name or [name],
        description=description,
        architecture=architecture,
        dtype=dtype,
        max_model_len=_max_model_len(options, description, log),
        max_logprobs=options.model.max_logprobs,
        logprobs_mode=options.model.logprobs_mode,
        seed=options.model.seed,
        tokenizer_path=options.model.tokenizer or description.path,
        default_sampling=default_sampling(description, options.model),
        logits_processors=options.model.logits_processors,
    )


def _max_model_len(options: EngineOptions, description: ModelDescription, log: _Log) -> int:
    wanted = options.model.max_model_len
    if wanted is None:
        log.note("max_model_len", description.max_model_len, "the model's")
        return description.max_model_len
    if wanted < 2:
        raise ConfigError(f"max_model_len is {wanted}; at least 2 is needed (--max-model-len)")
    if wanted > description.max_model_len:
        raise ConfigError(
            f"max_model_len is {wanted}, but the model was made for {description.max_model_len} "
            "positions (--max-model-len)"
        )
    return wanted


def _scheduler(
    options: EngineOptions,
    model: ModelConfig,
    platform: Platform,
    backend: Any,  # noqa: ANN401 -- an AttentionBackendSpec
    catalog: Catalog,
    log: _Log,
) -> ResolvedSchedulerConfig:
    given = options.scheduler
    policy = SchedulerPolicyQuery(name=given.scheduling_policy)
    catalog.select("scheduler_policies", policy, name=given.scheduling_policy)
    beside_host = platform.is_asynchronous()
    seqs = given.max_num_seqs or (_MAX_SEQS_DEVICE if beside_host else _MAX_SEQS_HOST)
    tokens = given.max_num_batched_tokens
    if tokens is None:
        least = seqs if given.enable_chunked_prefill else max(seqs, model.max_model_len)
        tokens = max(_DEFAULT_BATCHED_TOKENS, least)
        log.note("max_num_batched_tokens", tokens, "the default")
    if tokens < seqs:
        if given.max_num_seqs is not None:
            raise ConfigError(
                f"max_num_batched_tokens is {tokens}, below max_num_seqs={seqs}; each sequence "
                "needs a token a step (--max-num-batched-tokens)"
            )
        seqs = tokens
        log.note("max_num_seqs", seqs, "a step has no more tokens")
    if not given.enable_chunked_prefill and tokens < model.max_model_len:
        raise ConfigError(
            f"max_num_batched_tokens is {tokens}, below max_model_len={model.max_model_len}, with "
            "chunked prefill off; raise it, or leave chunked prefill on"
        )
    async_scheduling = given.async_scheduling
    if async_scheduling and backend.needs_host_lengths:
        log.note("async_scheduling", False, f"{backend.name} needs lengths on the host")
        async_scheduling = False
    return ResolvedSchedulerConfig(
        max_num_batched_tokens=tokens,
        max_num_seqs=seqs,
        max_num_queued_reqs=given.max_num_queued_reqs or _DEFAULT_QUEUED_REQS,
        max_num_queued_tokens=given.max_num_queued_tokens,
        enable_chunked_prefill=given.enable_chunked_prefill,
        long_prefill_token_threshold=given.long_prefill_token_threshold,
        scheduling_policy=given.scheduling_policy,
        async_scheduling=async_scheduling,
        stream_interval=given.stream_interval,
        watermark=given.watermark,
    )


def _executor(options: EngineOptions, catalog: Catalog, log: _Log) -> str:
    name = options.parallel.distributed_executor_backend
    query = ExecutorQuery(name=name, world_size=options.parallel.tensor_parallel_size)
    selection = catalog.select("executors", query, name=name)
    log.note("executor", selection.entry.name, _source(name, selection.reason))
    return selection.entry.name


def _load(options: EngineOptions) -> Any:  # noqa: ANN401 -- a LoadConfig
    if options.load.cache_dir is not None:
        return options.load
    return msgspec.structs.replace(options.load, cache_dir=str(read_environment().cache))


def _loader(options: EngineOptions, description: ModelDescription, catalog: Catalog) -> str:
    wanted = options.load.load_format
    name = description.loader if wanted == "auto" else wanted
    if description.quantization is not None:
        method = description.quantization.get("quant_method", "an unnamed method")
        raise ModelError(
            f"{description.path} is quantised with {method}, and no quantization method is "
            "installed; use an unquantised or GGUF version of the model"
        )
    because = "the checkpoint's format" if wanted == "auto" else BY_NAME
    query = LoadQuery(name=name)
    return catalog.select("model_loaders", query, name=name, because=because).entry.name


def _tokenizer(options: EngineOptions, description: ModelDescription, catalog: Catalog) -> str:
    name = options.model.tokenizer_mode
    path = options.model.tokenizer
    because = BY_NAME if name != "auto" else "the file named" if path else "the checkpoint's"
    if name == "auto" and path is not None:
        name = "gguf" if path.endswith(".gguf") else "hf"
    elif name == "auto":
        name = description.tokenizer
    if not name:
        raise ModelError(f"{description.path} has no tokenizer; name one with --tokenizer PATH")
    query = TokenizerQuery(name=name)
    return catalog.select("tokenizers", query, name=name, because=because).entry.name
