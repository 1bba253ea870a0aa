"""Configurations, catalogs and steps around a tiny checkpoint, without the engine."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from tests.support.models import Checkpoint

from pegboard.api.kv import KVGroup, KVLayerNeed
from pegboard.api.messages import NewRequest, SchedulerOutput
from pegboard.api.models import ModelDescription
from pegboard.api.sampling_params import SamplingParams
from pegboard.catalog import Catalog, build_catalog
from pegboard.config.engine import EngineConfig, ResolvedCacheConfig, ResolvedSchedulerConfig
from pegboard.config.model import LoadConfig, ModelConfig
from pegboard.config.plugins import PluginsConfig
from pegboard.config.runtime import (
    AttentionConfig,
    KernelConfig,
    ObservabilityConfig,
    ParallelConfig,
)

PLUGIN_FILE = str(Path(__file__).with_name("tiny_plugin.py"))


def tiny_catalog(*more: str) -> Catalog:
    """The core, the models and the tiny plugin; `more` are names or paths of further plugins."""
    wanted = ("models", PLUGIN_FILE, *more)
    return build_catalog(PluginsConfig(enabled=wanted, only=list(wanted)))


def tiny_config(checkpoint: Checkpoint, catalog: Catalog, **changes: Any) -> EngineConfig:
    """The configuration of an engine on a checkpoint.

    Args:
        checkpoint: of a family that the models plugin has.
        catalog: whose plugins children load.
        changes: fields of any of the structs inside, by name.
    """
    config = checkpoint.config
    description = ModelDescription(
        path=str(checkpoint.folder),
        format="hf",
        architectures=tuple(config["architectures"]),
        config=config,
        dtype="float32",
        vocab_size=config["vocab_size"],
        max_model_len=config["max_position_embeddings"],
        loader="tiny",
        tokenizer="hf",
    )
    model = ModelConfig(
        model="tiny",
        served_model_name=["tiny"],
        description=description,
        architecture=config["architectures"][0],
        dtype="float32",
        max_model_len=128,
        tokenizer_path=str(checkpoint.folder),
    )
    cache = ResolvedCacheConfig(
        block_size=4,
        gpu_memory_utilization=0.5,
        kv_cache_memory_bytes=None,
        num_gpu_blocks_override=None,
        kv_cache_dtype="float32",
        enable_prefix_caching=True,
    )
    scheduler = ResolvedSchedulerConfig(max_num_batched_tokens=256, max_num_seqs=8)
    parts = {
        "model": model,
        "load": LoadConfig(),
        "cache": cache,
        "scheduler": scheduler,
        "parallel": ParallelConfig(),
        "attention": AttentionConfig(),
        "ops": KernelConfig(),
        "observability": ObservabilityConfig(),
    }
    names: dict[str, Any] = {
        "plugins": catalog.resolved(),
        "platform": "tiny",
        "attention_backend": "REFERENCE",
        "executor": "uni",
        "loader": "tiny",
        "tokenizer": "hf",
    }
    names |= {name: changes.pop(name) for name in set(names) & set(changes)}
    for key, part in parts.items():
        fields = set(part.__struct_fields__) & set(changes)
        parts[key] = msgspec.structs.replace(part, **{f: changes.pop(f) for f in fields})
    assert not changes, f"no such fields: {', '.join(changes)}"
    return EngineConfig(**parts, **names)  # type: ignore[arg-type]


def one_group(needs: Sequence[KVLayerNeed], block_size: int = 4) -> list[KVGroup]:
    """All layers in one full group."""
    layers = tuple(need.layer for need in needs)
    return [KVGroup(group_type="full", layers=layers, block_size=block_size)]


class HandScheduler:
    """Makes steps by hand: rows, blocks and counts, without budgets or queues.

    Every row owns the blocks [row * blocks + 1, …); block 0 stays null.
    """

    def __init__(self, num_groups: int = 1, block_size: int = 4, max_len: int = 128) -> None:
        self.blocks_a_row = -(-(max_len + 1) // block_size)
        self.num_groups = num_groups
        self.step_id = 0
        self.known: dict[int, int] = {}
        self.computed: dict[int, int] = {}
        self._changes: dict[str, Any] = {}

    @property
    def num_blocks(self) -> int:
        return 8 * self.blocks_a_row * self.num_groups + 1

    def add(
        self,
        row: int,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        output: Sequence[int] = (),
        request_id: str | None = None,
        eos: Sequence[int] = (),
    ) -> None:
        groups = range(self.num_groups)
        first = [(row * self.num_groups + g) * self.blocks_a_row + 1 for g in groups]
        request = NewRequest(
            request_id=request_id or f"request-{row}",
            row=row,
            token_ids=[*prompt, *output],
            num_prompt_tokens=len(prompt),
            num_computed_tokens=0,
            sampling=params,
            eos_token_ids=list(eos),
            block_ids=[list(range(f, f + self.blocks_a_row)) for f in first],
        )
        self._changes.setdefault("new_requests", []).append(request)
        self.known[row] = len(prompt) + len(output)
        self.computed[row] = 0

    def finish(self, row: int, *, preempted: bool = False) -> None:
        key = "preempted_rows" if preempted else "finished_rows"
        self._changes.setdefault(key, []).append(row)
        del self.known[row], self.computed[row]

    def step(self, limits: dict[int, int] | None = None) -> SchedulerOutput:
        """Give every row what it needs, or what `limits` leaves it (0 leaves it out)."""
        wanted = {
            row: min(self.known[row] - self.computed[row], (limits or {}).get(row, 1 << 30))
            for row in self.known
        }
        rows = sorted((row for row in wanted if wanted[row] > 0), key=lambda r: wanted[r] != 1)
        for row in rows:
            self.computed[row] += wanted[row]
            self.known[row] += self.computed[row] == self.known[row]
        self.step_id += 1
        changes, self._changes = self._changes, {}
        scheduled = [wanted[row] for row in rows]
        return SchedulerOutput(
            step_id=self.step_id,
            rows=rows,
            num_scheduled_tokens=scheduled,
            total_num_scheduled_tokens=sum(scheduled),
            **changes,
        )
