"""Attention backends: a backend owns its cache's layout, its metadata and its kernels.

backend = BackendClass(context, config)              once a worker
needs   = layer descriptions from the model          once
layout  = backend.kv_layout(layer, num_blocks)       once a layer, before memory is planned
builder = backend.metadata_builder(group)            once a KV group
impl    = backend.implementation(layer)              once a layer
each step: metadata = builder.build(common); impl.forward(...) in each layer
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec

from pegboard.api.kv import KVGroup
from pegboard.api.plugin import ComponentContext, ComponentSpec

if TYPE_CHECKING:
    import torch

__all__ = [
    "AttentionBackend",
    "AttentionBackendConfig",
    "AttentionBackendSpec",
    "AttentionImpl",
    "AttentionLayer",
    "AttentionMetadataBuilder",
    "AttentionQuery",
    "CommonAttentionMetadata",
    "GraphSupport",
    "KVLayout",
]

GraphSupport = Literal["never", "single_token", "uniform", "always"]


class AttentionQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What a model asks of an attention backend.

    Attributes:
        platform: the platform's name; `platform_features` what it declares (such as "triton").
        capability: (major, minor) of the device, or None.
        dtype: of queries and output, such as "bfloat16".
        kv_dtype: of the cache.
        head_sizes: all head sizes of the model's attention layers.
        block_size: tokens a block.
        features: needed of {"sliding_window", "soft_cap", "sinks", "alibi", "encoder_only",
            "kv_sharing", "non_causal", "latent", "state", "batch_invariant"}.
    """

    platform: str
    platform_features: tuple[str, ...] = ()
    capability: tuple[int, int] | None = None
    dtype: str
    kv_dtype: str
    head_sizes: tuple[int, ...]
    block_size: int
    features: tuple[str, ...] = ()


class AttentionBackendSpec(ComponentSpec, frozen=True, kw_only=True):
    """Describes an `AttentionBackend`; its `target` is the class.

    Attributes:
        platforms: names it runs on; empty for any.
        requires_features: of the platform, such as ("triton",).
        min_capability: least device capability, or None.
        dtypes, kv_dtypes: what it computes in and caches; empty `kv_dtypes` means as `dtypes`.
        head_sizes: exact sizes it takes; empty for any that `head_size_multiple` divides.
        head_size_multiple: see `head_sizes`.
        max_head_size: largest head size; 0 for no limit.
        block_size_multiple: block sizes must be multiples of it.
        preferred_block_size: the block size where the user names none.
        features: of `AttentionQuery.features` it can do.
        graph_support: which batches it can be captured with.
        needs_host_lengths: it needs exact lengths on the host, so its steps run synchronously.
    """

    kind: ClassVar[str] = "attention_backends"

    platforms: tuple[str, ...] = ()
    requires_features: tuple[str, ...] = ()
    min_capability: tuple[int, int] | None = None
    dtypes: tuple[str, ...]
    kv_dtypes: tuple[str, ...] = ()
    head_sizes: tuple[int, ...] = ()
    head_size_multiple: int = 1
    max_head_size: int = 0
    block_size_multiple: int = 1
    preferred_block_size: int = 16
    features: tuple[str, ...] = ()
    graph_support: GraphSupport = "never"
    needs_host_lengths: bool = False

    def reasons_against(self, query: AttentionQuery) -> list[str]:
        """Compare every constraint with the query."""
        reasons: list[str] = []
        if self.platforms and query.platform not in self.platforms:
            reasons.append(f"runs on {', '.join(self.platforms)}, not {query.platform}")
        for feature in self.requires_features:
            if feature not in query.platform_features:
                reasons.append(f"platform {query.platform} has no {feature}")
        if self.min_capability and (query.capability or (0, 0)) < self.min_capability:
            reasons.append(f"needs device capability {self.min_capability}, got {query.capability}")
        if query.dtype not in self.dtypes:
            reasons.append(f"dtype {query.dtype} is not of {', '.join(self.dtypes)}")
        if query.kv_dtype not in (self.kv_dtypes or self.dtypes):
            reasons.append(f"KV dtype {query.kv_dtype} is not supported")
        reasons += [
            f"head size {s} is not supported" for s in query.head_sizes if not self._fits(s)
        ]
        if query.block_size % self.block_size_multiple:
            reasons.append(
                f"block size {query.block_size} is not a multiple of {self.block_size_multiple}"
            )
        missing = [f for f in query.features if f not in self.features]
        if missing:
            reasons.append(f"cannot do {', '.join(missing)}")
        return reasons

    def _fits(self, head_size: int) -> bool:
        if self.head_sizes:
            return head_size in self.head_sizes
        small_enough = not self.max_head_size or head_size <= self.max_head_size
        return small_enough and head_size % self.head_size_multiple == 0


class AttentionLayer(msgspec.Struct, frozen=True, kw_only=True):
    """What one attention layer of a model is, after tensor-parallel division.

    Attributes:
        index: the layer's index, as the forward context knows it.
        num_heads, num_kv_heads: on this rank.
        head_size, v_head_size: of queries and keys; of values and output.
        scale: multiplies the scores.
        sliding_window: last tokens a query sees, itself included; None for all.
        soft_cap: scores become cap * tanh(score / cap); None for none.
        causal: False for encoder-only layers, which keep no cache.
        has_sinks: a learned logit a head joins the softmax's denominator.
    """

    index: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    v_head_size: int
    scale: float
    sliding_window: int | None = None
    soft_cap: float | None = None
    causal: bool = True
    has_sinks: bool = False


class KVLayout(msgspec.Struct, frozen=True, kw_only=True):
    """How a backend lays a layer's cache out; ops, connectors and sleep read it.

    Attributes:
        name: names the layout; a fused write op lists the names it can write.
        shapes: of each tensor of the layer; the block index is dimension `block_dim`.
        dtypes: of each tensor, such as "bfloat16".
        block_dim: which dimension counts blocks, in every tensor.
        block_size: tokens a block.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    block_dim: int = 0
    block_size: int


class AttentionBackendConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend is built for.

    Attributes:
        dtype, kv_dtype: such as "bfloat16".
        device: torch device, such as "cpu" or "cuda:0".
        block_size: tokens a block.
        max_num_reqs, max_num_tokens, max_model_len: upper bounds of any step.
        num_threads: host threads a CPU kernel may use; 0 where that means nothing.
    """

    dtype: str
    kv_dtype: str
    device: str
    block_size: int
    max_num_reqs: int
    max_num_tokens: int
    max_model_len: int
    num_threads: int = 0


class CommonAttentionMetadata:
    """What every builder gets for one KV group in one step: device tensors and host bounds.

    Rows with one new token come first. The tensors are views of persistent buffers: valid until
    the next step is prepared.

    Attributes:
        num_reqs, num_tokens: requests and new tokens in the step (without padding).
        num_decodes: leading requests with exactly one new token.
        max_query_len, max_seq_len: host upper bounds, not exact.
        query_start_loc: [num_reqs + 1] int32; first token of each request, then the total.
        seq_lens: [num_reqs] int32; computed plus new tokens.
        block_table: [num_reqs, max_blocks] int32; entries past a request's blocks are 0.
        slot_mapping: [num_tokens] int64; -1 marks padding, which is not written.
        seq_lens_cpu: [num_reqs] int32 on the host if the backend `needs_host_lengths`, else None.
    """

    __slots__ = (
        "block_table",
        "max_query_len",
        "max_seq_len",
        "num_decodes",
        "num_reqs",
        "num_tokens",
        "query_start_loc",
        "seq_lens",
        "seq_lens_cpu",
        "slot_mapping",
    )

    def __init__(
        self,
        *,
        num_reqs: int,
        num_tokens: int,
        num_decodes: int,
        max_query_len: int,
        max_seq_len: int,
        query_start_loc: "torch.Tensor",
        seq_lens: "torch.Tensor",
        block_table: "torch.Tensor",
        slot_mapping: "torch.Tensor",
        seq_lens_cpu: "torch.Tensor | None" = None,
    ) -> None:
        """Keep the views; nothing is copied."""
        self.num_reqs = num_reqs
        self.num_tokens = num_tokens
        self.num_decodes = num_decodes
        self.max_query_len = max_query_len
        self.max_seq_len = max_seq_len
        self.query_start_loc = query_start_loc
        self.seq_lens = seq_lens
        self.block_table = block_table
        self.slot_mapping = slot_mapping
        self.seq_lens_cpu = seq_lens_cpu


class AttentionMetadataBuilder(ABC):
    """Turns the common metadata of a step into what the backend's kernels read. One a KV group."""

    @abstractmethod
    def build(self, common: CommonAttentionMetadata) -> Any:  # noqa: ANN401 -- the backend's own
        """Return the step's metadata; must not sync. Valid until the next `build`."""

    def build_for_capture(self, common: CommonAttentionMetadata) -> Any:  # noqa: ANN401
        """Return metadata over persistent buffers, for graph capture at this batch's size."""
        return self.build(common)

    def build_for_draft(self, common: CommonAttentionMetadata, draft_index: int) -> Any:  # noqa: ANN401
        """Return metadata for the speculator's `draft_index`-th pass of this step."""
        del draft_index
        return self.build(common)


class AttentionImpl(ABC):
    """One layer's attention. Called in the worker's step thread, in layer order."""

    @abstractmethod
    def forward(
        self,
        query: "torch.Tensor",
        key: "torch.Tensor | None",
        value: "torch.Tensor | None",
        kv_cache: "tuple[torch.Tensor, ...]",
        metadata: Any,  # noqa: ANN401 -- what this backend's builder made
        output: "torch.Tensor",
    ) -> None:
        """Write the new keys and values into the cache, attend, and write `output` in place.

        Args:
            query: [num_tokens, num_heads, head_size]; may be a strided view of a fused product.
            key: [num_tokens, num_kv_heads, head_size]; None if a fused op already wrote the
                cache or the layer shares another layer's cache.
            value: [num_tokens, num_kv_heads, v_head_size]; None as `key`.
            kv_cache: the layer's tensors, as `KVLayout` says; empty for layers without a cache.
            metadata: of this layer's KV group; covers the leading tokens, the rest is padding.
            output: [num_tokens, num_heads, v_head_size].

        Must not sync unless the spec says `needs_host_lengths`. Writes only the slots in the
        step's slot mapping.
        """


class AttentionBackend(ABC):
    """A family of attention kernels. One instance a worker."""

    def __init__(self, context: ComponentContext, config: AttentionBackendConfig) -> None:
        """Keep what it is built for; subclasses may check it and raise `ConfigError`."""
        self.context = context
        self.config = config

    @abstractmethod
    def kv_layout(self, layer: AttentionLayer, num_blocks: int) -> KVLayout:
        """Return the layout of a layer's cache of `num_blocks` blocks. Pure; `num_blocks` >= 1."""

    @abstractmethod
    def metadata_builder(self, group: KVGroup) -> AttentionMetadataBuilder:
        """Return the builder of one KV group."""

    @abstractmethod
    def implementation(
        self, layer: AttentionLayer, sinks: "torch.Tensor | None" = None
    ) -> AttentionImpl:
        """Return the kernels of one layer.

        Args:
            layer: what it is.
            sinks: [num_heads] float32, one logit a head, where `layer.has_sinks`. It is filled
                when weights are loaded: keep the tensor, read it at each call.
        """
