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
    return [
        OpDefinition(
            name="linear",
            target="pegboard.ops.reference:Linear",
            cases="pegboard.ops.cases:linear",
            summary="x @ weight.T + bias over packed weights.",
            schema="(Tensor x, PackedWeights packed) -> Tensor",
            packs=True,
        ),
        OpDefinition(
            name="gate_up_linear",
            target="pegboard.ops.reference:GateUpLinear",
            cases="pegboard.ops.cases:gate_up_linear",
            summary="The gated first half of an MLP: act(x @ gate.T) * (x @ up.T).",
            schema="(Tensor x, PackedWeights packed) -> Tensor",
            packs=True,
            optional=True,
            fuses=("linear", "silu_and_mul", "gelu_tanh_and_mul"),
        ),
        OpDefinition(
            name="logits",
            target="pegboard.ops.reference:Logits",
            cases="pegboard.ops.cases:logits",
            summary="The head's product in float32; embeds from the same packed copy where tied.",
            schema="(Tensor x, PackedWeights packed) -> Tensor",
            packs=True,
        ),
        OpDefinition(
            name="embedding",
            target="pegboard.ops.reference:embedding",
            cases="pegboard.ops.cases:embedding",
            fake="pegboard.ops.fakes:embedding",
            summary="Rows of an untied embedding.",
            schema="(Tensor ids, Tensor weight) -> Tensor",
        ),
        OpDefinition(
            name="rms_norm",
            target="pegboard.ops.reference:rms_norm",
            cases="pegboard.ops.cases:rms_norm",
            fake="pegboard.ops.fakes:rms_norm",
            summary="x / sqrt(mean(x ** 2) + eps) * weight.",
            schema="(Tensor x, Tensor weight, float eps) -> Tensor",
        ),
        OpDefinition(
            name="fused_add_rms_norm",
            target="pegboard.ops.reference:fused_add_rms_norm",
            cases="pegboard.ops.cases:fused_add_rms_norm",
            summary="Add to the residual and normalise the sum, both in place.",
            schema="(Tensor(a!) x, Tensor(b!) residual, Tensor weight, float eps) -> ()",
        ),
        OpDefinition(
            name="silu_and_mul",
            target="pegboard.ops.reference:silu_and_mul",
            cases="pegboard.ops.cases:gated",
            fake="pegboard.ops.fakes:halved",
            summary="silu(first half) * second half.",
            schema="(Tensor x) -> Tensor",
        ),
        OpDefinition(
            name="gelu_tanh_and_mul",
            target="pegboard.ops.reference:gelu_tanh_and_mul",
            cases="pegboard.ops.cases:gated",
            fake="pegboard.ops.fakes:halved",
            summary="gelu(first half) * second half, gelu by tanh.",
            schema="(Tensor x) -> Tensor",
        ),
        OpDefinition(
            name="rotary_embedding",
            target="pegboard.ops.reference:rotary_embedding",
            cases="pegboard.ops.cases:rotary_embedding",
            summary="Turn queries and keys by their positions, in place.",
            schema="(Tensor(a!) query, Tensor(b!) key, Tensor positions, Tensor cos_sin, "
            "bool interleaved) -> ()",
        ),
        OpDefinition(
            name="rope_and_write_kv",
            target="pegboard.ops.reference:rope_and_write_kv",
            summary="Head norms, rotary and the cache write in one pass over the fused product.",
            schema="(Tensor(a!) qkv, Tensor positions, Tensor cos_sin, Tensor? q_norm, "
            "Tensor? k_norm, float eps, Tensor slot_mapping, Tensor(b!)[] kv_cache, "
            "int num_heads, int num_kv_heads, int head_size, int v_head_size, "
            "bool interleaved) -> ()",
            optional=True,
            fuses=("rms_norm", "rotary_embedding"),
        ),
        OpDefinition(
            name="decoder_layers",
            target="pegboard.ops.decoder:DecoderLayers",
            summary="A run of pre-norm decoder layers as one call.",
            schema="(Tensor(a!) residual, Tensor positions, PackedWeights layers) -> Tensor",
            packs=True,
            optional=True,
            fuses=(
                "linear",
                "gate_up_linear",
                "rms_norm",
                "fused_add_rms_norm",
                "rope_and_write_kv",
                "rotary_embedding",
                "silu_and_mul",
                "gelu_tanh_and_mul",
            ),
        ),
        OpDefinition(
            name="attention",
            target="pegboard.ops.attention:attention",
            summary="Opaque: the layer's cache write and attention, through the forward context.",
            schema="(Tensor query, Tensor? key, Tensor? value, Tensor(a!) output, int layer) -> ()",
        ),
        OpDefinition(
            name="append_tokens",
            target="pegboard.worker.batch_ops:append_tokens",
            cases="pegboard.worker.batch_cases:append_tokens",
            summary="Write each row's sampled token behind its last one.",
            schema="(Tensor(a!) token_ids, Tensor(b!) num_tokens, Tensor rows, Tensor sampled)"
            " -> ()",
        ),
        OpDefinition(
            name="prepare_inputs",
            target="pegboard.worker.batch_ops:prepare_inputs",
            cases="pegboard.worker.batch_cases:prepare_inputs",
            summary="Gather a step's token ids and positions from the persistent batch.",
            schema="(Tensor token_ids, Tensor(a!) num_computed_tokens, Tensor rows, "
            "Tensor num_scheduled_tokens, Tensor query_start_loc, Tensor(b!) input_ids, "
            "Tensor(c!) positions, Tensor(d!) requests, Tensor(e!) seq_lens) -> ()",
        ),
        OpDefinition(
            name="slot_mapping",
            target="pegboard.worker.batch_ops:slot_mapping",
            cases="pegboard.worker.batch_cases:slot_mapping",
            summary="The cache slot of each of a step's tokens.",
            schema="(Tensor block_table, Tensor requests, Tensor positions, int block_size, "
            "Tensor(a!) slots) -> ()",
        ),
        OpDefinition(
            name="apply_penalties",
            target="pegboard.sampling.penalties:apply_penalties",
            cases="pegboard.sampling.cases:apply_penalties",
            summary="Repetition, presence and frequency penalties.",
            schema="(Tensor(a!) logits, Tensor token_ids, Tensor counts, Tensor repetition, "
            "Tensor presence, Tensor frequency) -> ()",
        ),
        OpDefinition(
            name="draw_tokens",
            target="pegboard.sampling.draw:draw_tokens",
            cases="pegboard.sampling.cases:draw_tokens",
            fake="pegboard.sampling.fakes:one_token_a_row",
            summary="Draw a token a row from softmax(logits), by one uniform number.",
            schema="(Tensor logits, Tensor uniforms) -> Tensor",
        ),
        OpDefinition(
            name="keep_likely",
            target="pegboard.sampling.filters:keep_likely",
            cases="pegboard.sampling.cases:keep_likely",
            summary="Mask what min-p, top-k and top-p drop.",
            schema="(Tensor(a!) logits, Tensor top_k, Tensor top_p, Tensor min_p) -> ()",
        ),
        OpDefinition(
            name="most_likely",
            target="pegboard.sampling.draw:most_likely",
            cases="pegboard.sampling.cases:most_likely",
            fake="pegboard.sampling.fakes:most_likely",
            summary="Each row's greatest logit and its index.",
            schema="(Tensor logits) -> (Tensor, Tensor)",
        ),
        OpDefinition(
            name="philox_uniform",
            target="pegboard.sampling.philox:philox_uniform",
            cases="pegboard.sampling.cases:philox_uniform",
            fake="pegboard.sampling.fakes:philox_uniform",
            summary="A uniform number a row, by seed, output position and stream.",
            schema="(Tensor seeds, Tensor positions, int stream) -> Tensor",
        ),
    ]


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
