"""Tiny random checkpoints made on the spot, and the least that runs a model on them.

`Checkpoint.make` builds a random transformers model and saves it as a safetensors folder.
`PagedDriver` runs a Pegboard model over a paged REFERENCE cache in hand-made forward contexts.
"""

import importlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file

from pegboard.api.attention import (
    AttentionBackend,
    AttentionBackendConfig,
    AttentionLayer,
    CommonAttentionMetadata,
)
from pegboard.api.errors import ModelError
from pegboard.api.forward_context import ForwardContext, enter_forward_context
from pegboard.api.kv import KVGroup, KVLayerNeed
from pegboard.api.plugin import ComponentContext
from pegboard.builtin.plugin import op_definitions
from pegboard.builtin.reference_attention import ReferenceBackend
from pegboard.ops.dispatch import ResolvedOpTable

_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}

_SMALL = {
    "vocab_size": 199,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

#: Family to (transformers' configuration class, what differs from a small decoder).
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "mistral": ("MistralConfig", {"sliding_window": 11}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "gemma3": (
        "Gemma3TextConfig",
        {
            "head_dim": 16,
            "sliding_window": 9,
            "query_pre_attn_scalar": 24,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
}


class Checkpoint:
    """A random transformers model and the folder it was saved to.

    Attributes:
        model: in evaluation mode, float32 unless another dtype was asked for.
        folder: with config.json and model.safetensors.
        config: what config.json says.
    """

    def __init__(self, model: transformers.PreTrainedModel, folder: Path) -> None:
        self.model = model
        self.folder = folder
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())

    @classmethod
    def make(
        cls,
        folder: Path,
        family: str = "llama",
        *,
        dtype: torch.dtype = torch.float32,
        **overrides: Any,
    ) -> "Checkpoint":
        """Build a random model of a family and save it; the weights differ at each call.

        Args:
            folder: to save into; made if it is not there.
            family: of `FAMILIES`.
            dtype: of the weights.
            overrides: of the configuration.
        """
        class_name, differences = FAMILIES[family]
        config = getattr(transformers, class_name)(**{**_SMALL, **differences, **overrides})
        config._attn_implementation = "eager"
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                # Norms and biases start at a constant, which would hide mistakes.
                wide = 0.3 if parameter.ndim == 1 else 0.6 / parameter.shape[-1] ** 0.5
                noise = torch.randn_like(parameter) * wide
                parameter.copy_(parameter + noise if name.endswith("norm.weight") else noise)
            embeddings = model.get_input_embeddings().weight
            embeddings.copy_(torch.randn_like(embeddings))
        model.save_pretrained(folder)
        return cls(model, folder)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the saved tensors in the file's order."""
        for file in sorted(self.folder.glob("*.safetensors")):
            yield from load_file(file).items()

    def logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Return transformers' [len(token_ids), vocab_size] float32 logits."""
        with torch.no_grad():
            return self.model(torch.tensor([list(token_ids)]), use_cache=False).logits[0].float()


class LocalGroup:
    """A process group of one."""

    rank = 0
    size = 1

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def all_gather(self, tensor: torch.Tensor, dim: int = -1) -> torch.Tensor:
        del dim
        return tensor

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> torch.Tensor:
        del source
        return tensor


def reference_ops(**replaced: Any) -> ResolvedOpTable:
    """Return a table of the references, without optional ops unless they are given."""
    ops: dict[str, Any] = {}
    for definition in op_definitions():
        if definition.optional:
            ops[definition.name] = None
            continue
        module, _, attribute = definition.target.partition(":")
        try:
            target = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError:
            continue
        ops[definition.name] = target() if definition.packs else target
    return ResolvedOpTable({**ops, **replaced})


class SimpleModelContext:
    """The least that satisfies `pegboard.api.models.ModelContext`."""

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        dtype: torch.dtype = torch.float32,
        kv_dtype: torch.dtype | None = None,
        ops: ResolvedOpTable | None = None,
        tensor_parallel: Any = None,
        max_model_len: int | None = None,
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.kv_dtype = kv_dtype or dtype
        self.device = torch.device("cpu")
        self.ops = ops or reference_ops()
        self.tensor_parallel = tensor_parallel or LocalGroup()
        self.max_model_len = max_model_len or config["max_position_embeddings"]
        self.layers: dict[int, tuple[AttentionLayer, KVLayerNeed | None, Any]] = {}

    def add_attention(
        self, layer: AttentionLayer, need: KVLayerNeed | None, sinks: torch.Tensor | None = None
    ) -> None:
        if layer.index in self.layers:
            raise ModelError(f"attention layer {layer.index} was declared twice")
        self.layers[layer.index] = (layer, need, sinks)


class PagedDriver:
    """Runs steps of a model over a paged cache, its blocks handed out in random order.

    The caches start as NaN, so that a slot nobody wrote cannot go unnoticed.

    Attributes:
        sequences: name to the token ids computed so far.
    """

    def __init__(
        self,
        model: Any,
        context: SimpleModelContext,
        *,
        block_size: int = 4,
        backend_class: type[AttentionBackend] = ReferenceBackend,
    ) -> None:
        self.model = model
        self.context = context
        self.block_size = block_size
        self.sequences: dict[str, list[int]] = {}
        self._tables: dict[str, list[int]] = {}
        self._max_blocks = -(-context.max_model_len // block_size)
        num_blocks = 4 * self._max_blocks
        self._free = torch.randperm(num_blocks - 1).add(1).tolist()
        backend = backend_class(
            ComponentContext(plugin="builtin"),
            AttentionBackendConfig(
                dtype=_DTYPES[context.dtype],
                kv_dtype=_DTYPES[context.kv_dtype],
                device="cpu",
                block_size=block_size,
                max_num_reqs=8,
                max_num_tokens=context.max_model_len,
                max_model_len=context.max_model_len,
            ),
        )
        layers = [context.layers[index] for index in sorted(context.layers)]
        self._implementations = [backend.implementation(layer, sinks) for layer, _, sinks in layers]
        group = KVGroup(group_type="full", layers=tuple(range(len(layers))), block_size=block_size)
        self._builder = backend.metadata_builder(group)
        self._caches = [
            tuple(
                torch.full(shape, torch.nan, dtype=context.kv_dtype)
                for shape in backend.kv_layout(layer, num_blocks).shapes
            )
            for layer, _, _ in layers
        ]

    def step(self, new_tokens: Mapping[str, Sequence[int]], *, padding: int = 0) -> dict:
        """Run one step and return, by sequence, the logits of its new tokens.

        Args:
            new_tokens: sequence name to its new token ids; sequences with one come first.
            padding: tokens beyond the real ones.
        """
        tokens, positions, slots, starts, lengths = [], [], [], [0], []
        ordered = sorted(new_tokens.items(), key=lambda item: len(item[1]) > 1)
        for name, ids in ordered:
            sequence = self.sequences.setdefault(name, [])
            table = self._tables.setdefault(name, [])
            for token in ids:
                if len(sequence) == len(table) * self.block_size:
                    table.append(self._free.pop())
                block, offset = divmod(len(sequence), self.block_size)
                positions.append(len(sequence))
                slots.append(table[block] * self.block_size + offset)
                sequence.append(token)
            tokens.extend(ids)
            starts.append(len(tokens))
            lengths.append(len(sequence))
        tables = torch.zeros((len(ordered), self._max_blocks), dtype=torch.int32)
        for row, (name, _) in enumerate(ordered):
            tables[row, : len(self._tables[name])] = torch.tensor(self._tables[name])
        common = CommonAttentionMetadata(
            num_reqs=len(ordered),
            num_tokens=len(tokens),
            num_decodes=sum(len(ids) == 1 for _, ids in ordered),
            max_query_len=max(len(ids) for _, ids in ordered),
            max_seq_len=max(lengths),
            query_start_loc=torch.tensor(starts, dtype=torch.int32),
            seq_lens=torch.tensor(lengths, dtype=torch.int32),
            block_table=tables,
            slot_mapping=torch.tensor(slots + [-1] * padding),
        )
        hidden = self._forward(tokens + [0] * padding, positions + [0] * padding, common)
        logits = self.model.compute_logits(hidden[: len(tokens)])
        return {
            name: logits[starts[row] : starts[row + 1]] for row, (name, _) in enumerate(ordered)
        }

    def _forward(
        self, tokens: list[int], positions: list[int], common: CommonAttentionMetadata
    ) -> torch.Tensor:
        num_layers = len(self._implementations)
        context = ForwardContext(
            attention=self._implementations,
            kv_caches=self._caches,
            metadata=[self._builder.build(common)] * num_layers,
            slot_mapping=[common.slot_mapping] * num_layers,
            num_tokens=common.num_tokens,
        )
        with torch.inference_mode(), enter_forward_context(context):
            return self.model(torch.tensor(tokens), torch.tensor(positions))


class ThreadGroup:
    """A process group whose ranks are threads of one process; `run` gives each its own."""

    def __init__(self, rank: int, size: int, barrier: threading.Barrier, board: list[Any]) -> None:
        self.rank = rank
        self.size = size
        self._barrier = barrier
        self._board = board

    @classmethod
    def run(cls, size: int, function: Callable[["ThreadGroup"], Any]) -> list[Any]:
        """Call `function(group)` once a rank, at the same time, and return the results."""
        barrier, board = threading.Barrier(size, timeout=60), [None] * size
        groups = [cls(rank, size, barrier, board) for rank in range(size)]

        def guarded(group: "ThreadGroup") -> Any:
            try:
                return function(group)
            except BaseException:
                barrier.abort()
                raise

        with ThreadPoolExecutor(size) as pool:
            futures = [pool.submit(guarded, group) for group in groups]
            return [future.result(timeout=60) for future in futures]

    def _exchange(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        self._board[self.rank] = tensor.clone()
        self._barrier.wait()
        tensors = list(self._board)
        self._barrier.wait()
        return tensors

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._exchange(tensor)).sum(0)

    def all_gather(self, tensor: torch.Tensor, dim: int = -1) -> torch.Tensor:
        return torch.cat(self._exchange(tensor), dim)

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> torch.Tensor:
        return tensor.copy_(self._exchange(tensor)[source])
