"""How many blocks the KV pool gets, and whether the longest sequence fits it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pegboard.api.errors import ConfigError
from pegboard.api.kv import KVGroup, KVGroupType, KVLayerNeed
from pegboard.config.engine import EngineConfig
from pegboard.kv.planning import block_bytes, longest_sequence, plan_groups, sequence_blocks

__all__ = ["KVPlan", "plan_kv"]

#: Block 0 is the null block: nobody owns it.
_RESERVED_BLOCKS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KVPlan:
    """The KV pool of each worker.

    Attributes:
        groups: layers that share a block table.
        group_types: their policies, in the same order.
        num_blocks: blocks of the pool, the reserved one included.
        block_bytes: of one block of one group.
        max_tokens: the longest sequence that the pool holds alone.
    """

    groups: list[KVGroup]
    group_types: list[KVGroupType]
    num_blocks: int
    block_bytes: int
    max_tokens: int

    @property
    def kv_bytes(self) -> int:
        """Bytes of the whole pool."""
        return self.num_blocks * self.block_bytes


def plan_kv(
    config: EngineConfig,
    needs: Sequence[KVLayerNeed],
    available_bytes: int,
    make_group_type: Callable[[KVGroup], KVGroupType],
) -> KVPlan:
    """Plan the pool.

    Args:
        config: for the block size, the longest sequence and an override of the block count.
        needs: of every layer of a worker.
        available_bytes: that each worker has for the pool.
        make_group_type: makes a group's policy.

    Raises:
        ConfigError: the longest sequence does not fit; names the value that does.
    """
    groups = plan_groups(needs, config.cache.block_size)
    group_types = [make_group_type(group) for group in groups]
    size = block_bytes(groups, needs)
    num_blocks = config.cache.num_gpu_blocks_override or available_bytes // size
    plan = KVPlan(
        groups=groups,
        group_types=group_types,
        num_blocks=num_blocks,
        block_bytes=size,
        max_tokens=longest_sequence(
            group_types,
            num_blocks - _RESERVED_BLOCKS,
            config.model.max_model_len,
            config.scheduler.max_tokens_in_flight,
        ),
    )
    _check(config, plan)
    return plan


def _check(config: EngineConfig, plan: KVPlan) -> None:
    wanted = config.model.max_model_len
    if plan.max_tokens >= wanted:
        return
    in_flight = config.scheduler.max_tokens_in_flight
    needed = sequence_blocks(plan.group_types, wanted, in_flight) + _RESERVED_BLOCKS
    if config.cache.num_gpu_blocks_override is not None:
        raise ConfigError(
            f"max_model_len is {wanted}, which needs {needed} KV blocks, but "
            f"num_gpu_blocks_override is {plan.num_blocks}; set it to {needed}, or "
            f"--max-model-len {max(plan.max_tokens, 1)}"
        )
    mend = f"--kv-cache-memory-bytes {needed * plan.block_bytes}"
    if plan.max_tokens > 0:
        mend = f"--max-model-len {plan.max_tokens}, or {mend}"
    raise ConfigError(
        f"max_model_len is {wanted}, which needs {needed} KV blocks of {plan.block_bytes} bytes, "
        f"but there is room for {plan.num_blocks} ({plan.kv_bytes / 2**20:.0f} MiB); use {mend}"
    )
