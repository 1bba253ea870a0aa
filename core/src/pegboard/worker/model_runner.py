"""The model runner: a step's changes → inputs → forward pass → logits → tokens.

It only puts its parts in order: the persistent batch, the attention groups, the model, the
sampler and the prompt logprobs each know their own. All calls come from one thread.
"""

import logging
import time
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pegboard.api.distributed import ProcessGroup
from pegboard.api.engine import StepHandle
from pegboard.api.errors import PegboardError, StepError, WorkerError
from pegboard.api.forward_context import enter_forward_context
from pegboard.api.kv import KVGroup, KVLayerNeed
from pegboard.api.messages import NewRequest, SchedulerOutput, StepOutput
from pegboard.api.models import Model
from pegboard.api.ops import OpQuery
from pegboard.api.platforms import Detection, Platform
from pegboard.catalog import Catalog
from pegboard.config.engine import EngineConfig
from pegboard.ops.dispatch import build_op_table
from pegboard.sampling.logprobs import LineLogprobs
from pegboard.sampling.sampler import Sampled, Sampler
from pegboard.worker.attention_groups import AttentionBackends, AttentionGroups, profiling_context
from pegboard.worker.graphs import CapturedStep, DecodeGraphs, capture_sizes
from pegboard.worker.input_batch import InputBatch, StepInputs
from pegboard.worker.logits_processors import build_processors
from pegboard.worker.memory import AllocationMeter, MemoryLedger
from pegboard.worker.model_context import WorkerModelContext
from pegboard.worker.model_loading import build_model
from pegboard.worker.pending_output import PendingOutput, to_host
from pegboard.worker.prompt_logprobs import PromptLogprobs
from pegboard.worker.row_writes import upload
from pegboard.worker.warm_up import warm_up_steps

__all__ = ["ModelRunner", "RunningStep"]

logger = logging.getLogger(__name__)

#: Tokens of the pass that measures activations; larger steps hold proportionally more.
_PROFILE_TOKENS = 64
#: Copies of a step's logits that sampling may hold at once.
_LOGITS_COPIES = 4


class RunningStep:
    """A step between its forward pass and its sampling; satisfies `StepHandle`.

    Attributes:
        step_id: of its `SchedulerOutput`.
        rows: [num_reqs], in the step's order.
        sample_rows: [n] int64; the rows that sample.
        num_output_tokens: [n] output tokens of each of those so far.
        logits: [n, vocab] float32, or None where no row samples.
        prompt_logprobs: by row.
        structured_rows: rows whose grammar masks come with `sample`.
        captured: the graphs that made the logits, or None.
        faults: row to the reason why that request alone fails.
    """

    __slots__ = (
        "captured",
        "faults",
        "logits",
        "num_output_tokens",
        "prompt_logprobs",
        "rows",
        "sample_rows",
        "step_id",
        "structured_rows",
    )

    def __init__(self, step: SchedulerOutput) -> None:
        """Start with nothing computed."""
        self.step_id = step.step_id
        self.rows = step.rows
        self.structured_rows = step.structured_rows
        self.sample_rows: NDArray[np.int64] = np.empty(0, np.int64)
        self.num_output_tokens: list[int] = []
        self.logits: Tensor | None = None
        self.captured: CapturedStep | None = None
        self.prompt_logprobs: dict[int, list[LineLogprobs]] = {}
        self.faults: dict[int, str] = {}


class ModelRunner:
    """Drives one model on one device.

    Attributes:
        model: what it drives. After `load_model`.
        attention: its caches and metadata. After `initialize_kv`.
        tensor_parallel: the group that shares each layer.
        ledger: what the memory went to.
        op_choices: which implementation each op got, for the start report.
    """

    def __init__(
        self,
        config: EngineConfig,
        catalog: Catalog,
        platform: Platform,
        device: torch.device,
        tensor_parallel: ProcessGroup,
    ) -> None:
        """Choose the ops; nothing is allocated yet.

        Args:
            config: the engine's.
            catalog: the worker's.
            platform: with its device opened.
            device: that one.
            tensor_parallel: the group that shares each layer.
        """
        self._config = config
        self._catalog = catalog
        self._platform = platform
        self._device = device
        self.tensor_parallel = tensor_parallel
        self._backends = AttentionBackends(catalog, config, device, platform.num_threads())
        detection: Detection = platform_detection(catalog, platform)
        self._ops = build_op_table(
            catalog,
            OpQuery(
                op="",
                platform=platform.name,
                platform_features=detection.features,
                capability=detection.capability,
                dtype=config.model.dtype,
                kv_layout=self._backends.layout_name(config.model.description.config),
            ),
            config.ops.priority,
        )
        self.op_choices = self._ops.choices
        self.ledger = MemoryLedger()
        self._context = WorkerModelContext(
            config=config.model.description.config,
            dtype=getattr(torch, config.model.dtype),
            kv_dtype=getattr(torch, config.cache.kv_cache_dtype),
            device=device,
            ops=self._ops,
            tensor_parallel=tensor_parallel,
            max_model_len=config.model.max_model_len,
        )
        self._unsampled: RunningStep | None = None
        self._row_faults: dict[int, str] = {}
        self.model: Model
        self.attention: AttentionGroups
        self._batch: InputBatch
        self._sampler: Sampler
        self._graphs: DecodeGraphs
        self._prompt_logprobs: PromptLogprobs

    @torch.inference_mode()
    def load_model(self) -> None:
        """Build the model and stream its weights in."""
        with AllocationMeter() as meter:
            self.model = build_model(self._config, self._catalog, self._context)
        meter.stop()
        self.ledger.weights_bytes = meter.live_bytes

    def kv_needs(self) -> list[KVLayerNeed]:
        """Return what each layer asks of the KV manager. After `load_model`."""
        return [self._context.needs[layer] for layer in sorted(self._context.needs)]

    @torch.inference_mode()
    def profile_memory(self) -> int:
        """Run a small step without KV; return the bytes that the largest one would hold.

        Activations grow with a step's tokens (attention, whose own memory its backend bounds,
        is left out), so a small step tells and costs little of the start's time.
        """
        most = self._config.scheduler.max_num_batched_tokens
        num_tokens = min(_PROFILE_TOKENS, most)
        tokens = torch.zeros(num_tokens, dtype=torch.int64, device=self._device)
        num_layers = 1 + max(self._context.layers, default=-1)
        with (
            AllocationMeter() as meter,
            enter_forward_context(profiling_context(num_layers, num_tokens)),
        ):
            hidden = self.model(tokens, torch.zeros_like(tokens))
            logits = self.model.compute_logits(hidden[:1])
        meter.stop()
        step_bytes = -(-meter.peak_bytes * most // num_tokens)
        rows = min(self._config.scheduler.max_num_seqs, most)
        logits_bytes = _LOGITS_COPIES * rows * logits.nbytes
        self.ledger.activations_bytes = step_bytes + logits_bytes
        return self.ledger.weights_bytes + self.ledger.activations_bytes

    @torch.inference_mode()
    def initialize_kv(self, groups: Sequence[KVGroup], num_blocks: int) -> None:
        """Allocate the caches and the persistent batch."""
        config, model = self._config, self._config.model
        vocab_size = model.description.vocab_size
        rows = config.scheduler.max_num_seqs
        with AllocationMeter() as meter:
            self.attention = AttentionGroups(
                groups,
                num_blocks,
                context=self._context,
                backends=self._backends,
                config=config,
                ops=self._ops,
            )
            self._batch = InputBatch(
                max_num_rows=rows,
                max_num_tokens=config.scheduler.max_num_batched_tokens,
                max_model_len=model.max_model_len,
                device=self._device,
                ops=self._ops,
            )
            self._sampler = Sampler(
                max_num_rows=rows,
                vocab_size=vocab_size,
                device=self._device,
                ops=self._ops,
                seed=model.seed,
                logprobs_mode=model.logprobs_mode,
                processors=build_processors(config, self._catalog, vocab_size, self._device),
            )
        meter.stop()
        self._prompt_logprobs = PromptLogprobs(vocab_size, model.logprobs_mode)
        self._graphs = DecodeGraphs(self._batch, self.attention, self.model, self._ops)
        self.ledger.kv_bytes = self.attention.cache.nbytes
        self.ledger.batch_bytes = meter.live_bytes - self.ledger.kv_bytes

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run a few tiny steps in the null block, then capture decode steps where that is on."""
        start = time.perf_counter()
        for step in warm_up_steps(self._config, len(self.attention.tables)):
            self.sample(self.execute(step))
        if self._can_capture():
            sizes = capture_sizes(self._config.scheduler.max_num_seqs)
            self._graphs.capture(self._platform, sizes)
        logger.debug("warm_up_s=%.3f", time.perf_counter() - start)

    def _can_capture(self) -> bool:
        graphs, spec = self._config.graphs, self._backends.spec
        return (
            self._platform.supports_graphs()
            and graphs.graph_mode != "none"
            and not graphs.enforce_eager
            and spec.graph_support != "never"
            and not spec.needs_host_lengths
            and self.tensor_parallel.size == 1
        )

    @torch.inference_mode()
    def execute(self, step: SchedulerOutput) -> RunningStep:
        """Update the batch and run the forward pass up to the logits.

        Raises:
            StepError: the step before has not been sampled, or this one cannot be run.
        """
        if self._unsampled is not None:
            raise StepError(
                f"step {step.step_id} came before step {self._unsampled.step_id} was sampled"
            )
        running = RunningStep(step)
        try:
            self._apply_changes(step)
            if step.rows:
                self._forward(step, running)
        except PegboardError:
            raise
        except Exception as error:
            raise StepError(f"step {step.step_id}: {type(error).__name__}: {error}") from error
        self._unsampled = running
        return running

    def sample(self, handle: StepHandle, grammar_masks: bytes | None = None) -> StepOutput:
        """Sample the rows that are due; waits for the device.

        Raises:
            StepError: sampling raised.
        """
        return self.start_sampling(handle, grammar_masks).wait_sync()

    @torch.inference_mode()
    def start_sampling(
        self, handle: StepHandle, grammar_masks: bytes | None = None
    ) -> PendingOutput:
        """Queue the sampling of the rows that are due; the next step may be executed at once.

        Raises:
            StepError: sampling raised.
        """
        assert isinstance(handle, RunningStep)
        self._unsampled = None
        try:
            return self._sample(handle, grammar_masks)
        except PegboardError:
            raise
        except Exception as error:
            raise StepError(f"step {handle.step_id}: {type(error).__name__}: {error}") from error

    def _apply_changes(self, step: SchedulerOutput) -> None:
        """Apply a step's diffs, in the order that `SchedulerOutput` sets."""
        if step.draft_token_ids:
            raise StepError(f"step {step.step_id} has draft tokens; no speculator is in use")
        for row in (*step.finished_rows, *step.preempted_rows):
            self._remove_row(row)
        for request in step.new_requests:
            self._add_row(request)
        for row, block_ids in step.new_block_ids.items():
            self.attention.append(row, block_ids)
        if step.blocks_to_zero:
            self.attention.cache.zero_blocks(step.blocks_to_zero)
        if step.blocks_to_copy:
            self.attention.cache.copy_blocks(step.blocks_to_copy)

    def _add_row(self, request: NewRequest) -> None:
        row = request.row
        self._remove_row(row)
        self._batch.add_row(request)
        self.attention.append(row, request.block_ids)
        self._prompt_logprobs.add_row(request)
        try:
            self._sampler.add_row(request)
        except Exception as error:
            self._sampler.remove_row(row)
            self._row_faults[row] = f"its sampling could not be set up: {error}"

    def _remove_row(self, row: int) -> None:
        self._batch.remove_row(row)
        self.attention.clear(row)
        self._sampler.remove_row(row)
        self._prompt_logprobs.remove_row(row)
        self._row_faults.pop(row, None)

    def _forward(self, step: SchedulerOutput, running: RunningStep) -> None:
        batch = self._batch
        inputs = batch.plan(step)
        if self._row_faults:
            running.faults = {r: f for r, f in self._row_faults.items() if r in set(step.rows)}
        running.sample_rows = rows = inputs.rows_cpu[inputs.sample_lines]
        # The token about to be sampled is already counted.
        outputs = batch.num_tokens_cpu[rows] - batch.num_prompt_cpu[rows] - 1
        running.num_output_tokens = outputs.tolist()
        if self._graphs.takes(inputs) and not self._prompt_logprobs.wanted:
            running.captured = self._graphs.replay(inputs)
            running.logits = running.captured.logits[: len(rows)]
        else:
            self._launch(inputs, running)

    def _launch(self, inputs: StepInputs, running: RunningStep) -> None:
        """Queue a step kernel by kernel."""
        self._batch.fill(inputs)
        with enter_forward_context(self.attention.forward_context(inputs)):
            hidden = self.model(inputs.input_ids, inputs.positions)
        running.prompt_logprobs = self._prompt_logprobs.compute(
            hidden, inputs, self._batch, self.model.compute_logits
        )
        if len(inputs.sample_lines):
            running.logits = self.model.compute_logits(self._last_hidden(hidden, inputs))

    def _last_hidden(self, hidden: Tensor, inputs: StepInputs) -> Tensor:
        """Return the hidden states that tell of the next token, of the rows that sample."""
        last = inputs.query_start_cpu[1:][inputs.sample_lines].astype(np.int64) - 1
        if len(last) == hidden.shape[0]:
            return hidden
        return hidden.index_select(0, upload(last, self._device))

    def _sample(self, running: RunningStep, grammar_masks: bytes | None) -> PendingOutput:
        output = StepOutput(
            step_id=running.step_id,
            sampled_token_ids=[[] for _ in running.rows],
            faults=running.faults,
        )
        for row, parts in running.prompt_logprobs.items():
            output.prompt_logprobs[row] = [entry for part in parts for entry in part.to_host()]
        if running.logits is None:
            return PendingOutput(lambda: output)
        grammar = _grammar(running, grammar_masks)
        if running.captured and not grammar and self._sampler.is_greedy(running.sample_rows):
            running.captured.greedy()
            tokens, sampled = running.captured.tokens, None
        else:
            sampled = self._sampler.sample(
                running.logits, running.sample_rows, running.num_output_tokens, self._batch, grammar
            )
            self._batch.append(upload(running.sample_rows, self._device), sampled.token_ids)
            tokens = sampled.token_ids.masked_fill(sampled.faulty, -1)
        running.logits = running.captured = None
        (copied,), event = to_host([tokens])
        logprobs = sampled.logprobs if sampled else None
        if logprobs is not None:
            event = None  # reading them waits for the device anyway
        pending = PendingOutput(lambda: _read(running, copied, sampled, output), event)
        if logprobs is None:
            return pending
        self._platform.synchronize()
        finished = pending.wait_sync()
        return PendingOutput(lambda: finished)


def _read(
    running: RunningStep, tokens: Tensor, sampled: Sampled | None, output: StepOutput
) -> StepOutput:
    """Write a step's tokens, logprobs and faults into its output; the device is done."""
    if sampled is not None:
        output.faults.update(sampled.faults)
    line_of = {row: line for line, row in enumerate(running.rows)}
    for row, token in zip(running.sample_rows.tolist(), tokens.tolist(), strict=False):
        if token < 0:
            output.faults.setdefault(
                row, "its logits are not finite, or its parameters allow no token"
            )
        if row not in output.faults:
            output.sampled_token_ids[line_of[row]] = [token]
    if sampled is not None and sampled.logprobs is not None:
        entries = zip(sampled.logprob_rows, sampled.logprobs.to_host(), strict=True)
        output.logprobs = {row: [entry] for row, entry in entries if row not in output.faults}
    return output


def _grammar(
    running: RunningStep, masks: bytes | None
) -> tuple[list[int], NDArray[np.int32]] | None:
    """Return the lines that have a grammar mask, and the masks."""
    if not masks or not running.structured_rows:
        return None
    words = np.frombuffer(masks, np.int32).reshape(len(running.structured_rows), -1)
    line_of = {row: line for line, row in enumerate(running.sample_rows.tolist())}
    kept = [(line_of[r], i) for i, r in enumerate(running.structured_rows) if r in line_of]
    return [line for line, _ in kept], words[[index for _, index in kept]]


def platform_detection(catalog: Catalog, platform: Platform) -> Detection:
    """Return what the platform's probe found.

    Raises:
        WorkerError: the catalog does not offer this platform.
    """
    for entry in catalog.entries("platforms"):
        if entry.spec == platform.spec:
            return catalog.detect(entry)
    raise WorkerError(f"platform {platform.name!r} is not in this worker's catalog")
