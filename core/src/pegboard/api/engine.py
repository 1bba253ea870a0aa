"""The engine's protocols: what front ends, executors and workers are to each other.

    front end -> EngineClient -> engine core -> Executor -> Worker -> ModelRunner

The configuration appears here as read-only views; the core's structs satisfy them.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import msgspec

from pegboard.api.kv import KVGroup, KVLayerNeed
from pegboard.api.messages import LoraRequest, SchedulerOutput, SchedulerStats, StepOutput
from pegboard.api.models import ModelDescription
from pegboard.api.observers import StatLogger
from pegboard.api.outputs import RequestOutput
from pegboard.api.plugin import ComponentContext, ComponentSpec
from pegboard.api.renderers import Renderer
from pegboard.api.sampling_params import SamplingParams
from pegboard.api.tokenizers import Tokenizer

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = [
    "CacheConfigView",
    "EngineClient",
    "EngineConfigView",
    "EngineHealth",
    "Executor",
    "ExecutorQuery",
    "ExecutorSpec",
    "LoadConfigView",
    "ModelConfigView",
    "ModelRunner",
    "ParallelConfigView",
    "PendingStepOutput",
    "Prompt",
    "SchedulerConfigView",
    "StepHandle",
    "TextPrompt",
    "TokensPrompt",
    "Worker",
]


class ModelConfigView(Protocol):
    """The resolved model: what is served, as what type, how long."""

    @property
    def model(self) -> str:
        """As the user named it."""
        ...

    @property
    def served_model_name(self) -> Sequence[str]:
        """Names that requests may use; the first is reported."""
        ...

    @property
    def description(self) -> ModelDescription:
        """What the checkpoint says of itself."""
        ...

    @property
    def dtype(self) -> str:
        """Resolved, such as "bfloat16"."""
        ...

    @property
    def max_model_len(self) -> int:
        """Most tokens of a sequence, prompt and output."""
        ...

    @property
    def max_logprobs(self) -> int:
        """Most logprobs a position a request may ask for; -1 for no limit."""
        ...

    @property
    def seed(self) -> int:
        """Seeds requests that bring none."""
        ...

    @property
    def default_sampling(self) -> Mapping[str, Any]:
        """Values, by `SamplingParams` field, of what a front end's request leaves out."""
        ...


class CacheConfigView(Protocol):
    """The KV cache."""

    @property
    def block_size(self) -> int:
        """Tokens a block."""
        ...

    @property
    def kv_cache_dtype(self) -> str:
        """Resolved, such as "bfloat16"."""
        ...

    @property
    def enable_prefix_caching(self) -> bool:
        """Whether full blocks are shared between equal prefixes."""
        ...


class SchedulerConfigView(Protocol):
    """The step's limits."""

    @property
    def max_num_batched_tokens(self) -> int:
        """Token budget of a step."""
        ...

    @property
    def max_num_seqs(self) -> int:
        """Rows of the persistent batch."""
        ...

    @property
    def scheduling_policy(self) -> str:
        """Name of the policy that orders requests."""
        ...


class LoadConfigView(Protocol):
    """How weights are read."""

    @property
    def use_weight_cache(self) -> bool:
        """Whether converted weights are kept for the next start."""
        ...

    @property
    def cache_dir(self) -> str | None:
        """Folder for fetched models and converted weights; None for no such folder."""
        ...


class ParallelConfigView(Protocol):
    """The worker fleet."""

    @property
    def tensor_parallel_size(self) -> int:
        """Workers that share each layer."""
        ...


class EngineConfigView(Protocol):
    """The one frozen configuration of an engine, after resolution."""

    @property
    def model(self) -> ModelConfigView:
        """What is served."""
        ...

    @property
    def load(self) -> LoadConfigView:
        """How weights are read."""
        ...

    @property
    def cache(self) -> CacheConfigView:
        """The KV cache."""
        ...

    @property
    def scheduler(self) -> SchedulerConfigView:
        """The step's limits."""
        ...

    @property
    def parallel(self) -> ParallelConfigView:
        """The worker fleet."""
        ...

    @property
    def platform(self) -> str:
        """Name of the platform that was selected."""
        ...


class StepHandle(Protocol):
    """A step that was given to the device, and may not be done yet."""

    @property
    def step_id(self) -> int:
        """Of its `SchedulerOutput`."""
        ...


class PendingStepOutput(Protocol):
    """A step's output that may still be on its way from the device."""

    @property
    def is_ready(self) -> bool:
        """Nothing is to be waited for."""
        ...

    def wait_sync(self) -> StepOutput:
        """Wait for the device and return the output; called once, from any thread."""
        ...


class ModelRunner(Protocol):
    """Builds inputs and runs the model on one device. Called from one thread, in step order."""

    def load_model(self) -> None:
        """Build the model and stream its weights in."""
        ...

    def kv_needs(self) -> list[KVLayerNeed]:
        """Return what each layer asks of the KV manager. After `load_model`."""
        ...

    def profile_memory(self) -> int:
        """Return the bytes that the largest step would hold, weights included; may run one."""
        ...

    def initialize_kv(self, groups: Sequence[KVGroup], num_blocks: int) -> None:
        """Allocate caches for `num_blocks` blocks and build metadata builders. Once.

        Tensor slot i is shared by the i-th layer of every group: one allocation of `num_blocks`
        blocks a slot, as many slots as the largest group has layers. Block 0 is the null block:
        it is in block tables where no query looks, and is never written.
        """
        ...

    def warm_up(self) -> None:
        """Touch what the first request would otherwise wait for; capture graphs."""
        ...

    def execute(self, step: SchedulerOutput) -> StepHandle:
        """Update the batch and queue the forward pass; may return before the device is done."""
        ...

    def sample(self, handle: StepHandle, grammar_masks: bytes | None = None) -> StepOutput:
        """Sample the rows that are due and return the step's output, waiting for the device.

        Args:
            handle: of the oldest step that was executed and not sampled.
            grammar_masks: [len(structured_rows), ceil(vocab / 32)] int32 little-endian bit
                masks, in the order of the step's `structured_rows`.
        """
        ...

    def start_sampling(
        self, handle: StepHandle, grammar_masks: bytes | None = None
    ) -> PendingStepOutput:
        """Queue what `sample` does and return at once; the next step may then be executed.

        What it raises itself, and what waiting raises, are as of `sample`.
        """
        ...


class Worker(Protocol):
    """One device's process (or the engine core's own). Owns the device and its model runner."""

    def start(self) -> None:
        """Open the device, join the process groups, load the model."""
        ...

    @property
    def model_runner(self) -> ModelRunner:
        """The runner. After `start`."""
        ...

    def available_kv_bytes(self) -> int:
        """Return the bytes this worker has for KV blocks. After `start`."""
        ...

    def initialize_kv(self, groups: Sequence[KVGroup], num_blocks: int) -> None:
        """Allocate the caches, then warm up."""
        ...

    def call(self, method: str, args: Sequence[Any] = ()) -> Any:  # noqa: ANN401 -- a msgpack value
        """Call a named method with msgpack arguments, for `Executor.collective_rpc`.

        Raises:
            WorkerError: there is no such method.
        """
        ...

    def shutdown(self) -> None:
        """Free the device. May be called twice."""
        ...


class ExecutorQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which executor: by name, or by what the fleet needs."""

    name: str | None = None
    world_size: int = 1


class ExecutorSpec(ComponentSpec, frozen=True, kw_only=True):
    """Describes an `Executor`; its `target` is the class. `max_world_size` 0 means no limit."""

    kind: ClassVar[str] = "executors"

    max_world_size: int = 0

    def reasons_against(self, query: ExecutorQuery) -> list[str]:
        """Fits if not another is named and the fleet is not too large."""
        reasons: list[str] = []
        if query.name is not None and query.name not in (self.name, *self.aliases):
            reasons.append(f"{query.name} was asked for")
        if self.max_world_size and query.world_size > self.max_world_size:
            reasons.append(f"runs at most {self.max_world_size} worker(s), not {query.world_size}")
        return reasons


class Executor(ABC):
    """Owns the worker fleet. Lives in the engine core; all calls come from its loop thread.

    Several steps may be in flight: `execute` of step k + 1 may come before the future of step k's
    `sample` is done. Steps run in order.
    """

    def __init__(self, context: ComponentContext) -> None:
        """Keep the context; starts nothing."""
        self.context = context

    @abstractmethod
    def start(self) -> None:
        """Start every worker and load the model.

        Raises:
            WorkerError: a worker failed; the message repeats the first cause, with its rank.
        """

    @abstractmethod
    def kv_needs(self) -> list[KVLayerNeed]:
        """Return what each layer of a worker asks of the KV manager."""

    @abstractmethod
    def available_kv_bytes(self) -> int:
        """Return the bytes a worker has for KV blocks; the least over the fleet."""

    @abstractmethod
    def initialize_kv(self, groups: Sequence[KVGroup], num_blocks: int) -> None:
        """Allocate the caches in every worker, then warm up."""

    @abstractmethod
    def execute(self, step: SchedulerOutput) -> StepHandle:
        """Give a step to the workers. Returns at once where work is asynchronous."""

    @abstractmethod
    def sample(
        self, handle: StepHandle, grammar_masks: bytes | None = None
    ) -> "Future[StepOutput]":
        """Ask for the step's output. The future fails with `StepError` or `WorkerError`."""

    @abstractmethod
    def collective_rpc(
        self, method: str, args: Sequence[Any] = (), timeout_s: float | None = None
    ) -> list[Any]:
        """Call a named method on every worker with msgpack arguments; results in rank order."""

    @abstractmethod
    def on_failure(self, callback: Callable[[str], None]) -> None:
        """Call `callback(cause)` from any thread, once, when a worker dies."""

    @abstractmethod
    def shutdown(self) -> None:
        """End every worker within seconds. May be called twice."""


class TextPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt as text."""

    prompt: str
    cache_salt: str | None = None
    add_special_tokens: bool = True


class TokensPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt as token ids; `prompt` is the text they came from, if it is known."""

    prompt_token_ids: list[int]
    prompt: str | None = None
    cache_salt: str | None = None


Prompt = TextPrompt | TokensPrompt


class EngineHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the engine can answer now (`ready`) and lives (`live`), with the reason if not."""

    live: bool
    ready: bool
    reason: str = ""


class EngineClient(Protocol):
    """What a front end is given: the asyncio side of an engine. Imports no torch."""

    @property
    def config(self) -> EngineConfigView:
        """The resolved configuration."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        ...

    @property
    def renderer(self) -> Renderer:
        """The model's chat renderer."""
        ...

    @property
    def stats(self) -> SchedulerStats:
        """The newest the engine core has sent."""
        ...

    @property
    def stat_loggers(self) -> Sequence[StatLogger]:
        """What receives this engine's numbers, so that a front end may serve what it keeps."""
        ...

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        lora: LoraRequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Yield outputs as `params.output_kind` says until the request is finished.

        Closing the iterator aborts the request.

        Raises:
            RequestError: before the first output, for input that cannot be served.
            EngineError: the request was lost; the message says why.
        """
        ...

    async def abort(self, request_ids: Sequence[str]) -> None:
        """End requests by the client's ids; unknown ones are ignored."""
        ...

    def health(self) -> EngineHealth:
        """Return at once; never waits for the device."""
        ...

    def explain(self) -> dict[str, Any]:
        """Return the start report: plugins, choices with reasons, phases, memory ledger."""
        ...

    async def call(self, method: str, *args: Any) -> Any:  # noqa: ANN401 -- a msgpack value
        """Call a named utility of the engine core (reset_prefix_cache, collective_rpc, …)."""
        ...
