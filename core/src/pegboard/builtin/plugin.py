"""Declares the core's own components, by the same hooks as any plugin's.

It is the one plugin that is not an entry point: the catalog always loads it, first.
"""

from pegboard.api.attention import AttentionBackendSpec
from pegboard.api.engine import ExecutorSpec
from pegboard.api.frontends import CliCommandSpec
from pegboard.api.kv import KVGroupTypeSpec
from pegboard.api.observers import StatLoggerSpec
from pegboard.api.ops import OpDefinition
from pegboard.api.plugin import PluginInfo, hookimpl
from pegboard.api.renderers import RendererSpec
from pegboard.api.scheduling import SchedulerPolicySpec
from pegboard.api.tokenizers import TokenizerSpec
from pegboard.api.version import API_VERSION

PLUGIN = PluginInfo(
    name="builtin",
    version="0.1.0",
    api=API_VERSION,
    summary="The core's own components: plain references, executors, policies, tokenizer.",
)


@hookimpl
def attention_backends() -> list[AttentionBackendSpec]:
    """The plain-torch attention: the fallback, and the truth for all others."""
    return [
        AttentionBackendSpec(
            name="REFERENCE",
            target="pegboard.builtin.reference_attention:ReferenceBackend",
            summary="Plain torch on any device; slow and clear.",
            priority=-100,
            dtypes=("float32", "bfloat16", "float16"),
            features=("sliding_window", "soft_cap", "sinks", "encoder_only", "non_causal"),
        )
    ]


@hookimpl
def cli_commands() -> list[CliCommandSpec]:
    """The subcommands that need nothing but the core."""
    return [
        CliCommandSpec(
            name="serve",
            target="pegboard.cli.serve:Serve",
            summary="Serve a model over HTTP (OpenAI protocol).",
        ),
        CliCommandSpec(
            name="plugins",
            target="pegboard.cli.plugins:Plugins",
            summary="List, inspect, explain and test plugins.",
        ),
        CliCommandSpec(
            name="bench",
            target="pegboard.cli.bench:Bench",
            summary="Measure throughput, latency or a running server.",
        ),
        CliCommandSpec(
            name="collect-env",
            target="pegboard.cli.collect_env:CollectEnv",
            summary="Print what a bug report needs.",
        ),
    ]


@hookimpl
def executors() -> list[ExecutorSpec]:
    """Worker fleets: in the engine core's process, or one process a rank."""
    return [
        ExecutorSpec(
            name="uni",
            target="pegboard.executor.uni:UniExecutor",
            summary="One worker in the engine core's process, on a step thread of its own.",
            priority=10,
            max_world_size=1,
        ),
        ExecutorSpec(
            name="mp",
            target="pegboard.executor.mp:MpExecutor",
            summary="One process a rank on this host.",
        ),
    ]


@hookimpl
def kv_group_types() -> list[KVGroupTypeSpec]:
    """Layers that see everything, and layers that see a window."""
    return [
        KVGroupTypeSpec(
            name="full",
            target="pegboard.kv.groups.full:FullGroup",
            summary="Every earlier token is visible.",
        ),
        KVGroupTypeSpec(
            name="sliding_window",
            target="pegboard.kv.groups.sliding_window:SlidingWindowGroup",
            summary="The last `window` tokens are visible.",
        ),
    ]


@hookimpl
def op_definitions() -> list[OpDefinition]:
    """The named ops, each with its plain reference."""
    return []


@hookimpl
def renderers() -> list[RendererSpec]:
    """The checkpoint's Jinja chat template, in a sandbox."""
    return [
        RendererSpec(
            name="chat_template",
            target="pegboard.rendering.chat:ChatTemplateRenderer",
            summary="The checkpoint's Jinja chat template, in a sandbox.",
        )
    ]


@hookimpl
def scheduler_policies() -> list[SchedulerPolicySpec]:
    """First come, first served; or by the client's priority."""
    return [
        SchedulerPolicySpec(
            name="fcfs",
            target="pegboard.scheduler.policies:Fcfs",
            summary="First come, first served.",
        ),
        SchedulerPolicySpec(
            name="priority",
            target="pegboard.scheduler.policies:Priority",
            summary="Smaller priority first, then first come.",
        ),
    ]


@hookimpl
def stat_loggers() -> list[StatLoggerSpec]:
    """The periodic log line."""
    return [
        StatLoggerSpec(
            name="log",
            target="pegboard.observability.stat_logger:LogStatLogger",
            summary="A periodic line of throughput and queue lengths.",
        )
    ]


@hookimpl
def tokenizers() -> list[TokenizerSpec]:
    """A tokenizer.json, read by the tokenizers library."""
    return [
        TokenizerSpec(
            name="hf",
            target="pegboard.builtin.hf_tokenizer:HfTokenizer",
            summary="A Hugging Face tokenizer.json.",
        )
    ]
