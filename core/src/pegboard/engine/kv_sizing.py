"""How many blocks the KV pool gets, and whether the longest sequence fits it."""

from collections.abc import Sequence

import msgspec

from pegboard.api.errors import ConfigError
from pegboard.api.kv import KVGroup, KVLayerNeed
from pegboard.config.engine import EngineConfig
from pegboard.kv.planning import block_bytes, plan_groups

__all__ = ["KVPlan", "plan_kv"]

#: Block 0 is the null block: nobody owns it.
_RESERVED_BLOCKS = 1


class KVPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The KV pool of each worker.

    Attributes:
        groups: layers that share a block table.
        num_blocks: blocks of the pool, the reserved one included.
        block_bytes: of one block of one group.
        max_tokens: the longest sequence that the pool holds alone.
    """

    groups: list[KVGroup]
    num_blocks: int
    block_bytes: int
    max_tokens: int

    @property
    def kv_bytes(self) -> int:
        """Bytes of the whole pool."""
        return self.num_blocks * self.block_bytes


def plan_kv(config: EngineConfig, needs: Sequence[KVLayerNeed], available_bytes: int) -> KVPlan:
    """Plan the pool.

    Args:
        config: for the block size, the longest sequence and an override of the block count.
        needs: of every layer of a worker.
        available_bytes: that each worker has for the pool.

    Raises:
        ConfigError: the longest sequence does not fit; names the value that does.
    """
    groups = plan_groups(needs, config.cache.block_size)
    size = block_bytes(groups, needs)
    num_blocks = config.cache.num_gpu_blocks_override or available_bytes // size
    plan = KVPlan(
        groups=groups,
        num_blocks=num_blocks,
        block_bytes=size,
        max_tokens=_longest(config, groups, num_blocks - _RESERVED_BLOCKS),
    )
    _check(config, plan)
    return plan


def _blocks_for(config: EngineConfig, groups: Sequence[KVGroup], num_tokens: int) -> int:
    """Return the most blocks that one sequence of `num_tokens` holds at once."""
    in_flight = 2 * config.scheduler.max_num_batched_tokens
    total = 0
    for group in groups:
        blocks = -(-num_tokens // group.block_size)
        if group.window is not None:
            blocks = min(blocks, -(-(group.window + in_flight) // group.block_size) + 1)
        total += blocks
    return total


def _longest(config: EngineConfig, groups: Sequence[KVGroup], num_blocks: int) -> int:
    """Return the longest sequence, up to the model's, that `num_blocks` hold."""
    low, high = 0, config.model.max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        if _blocks_for(config, groups, middle) <= num_blocks:
            low = middle
        else:
            high = middle - 1
    return low


def _check(config: EngineConfig, plan: KVPlan) -> None:
    wanted = config.model.max_model_len
    if plan.max_tokens >= wanted:
        return
    needed = _blocks_for(config, plan.groups, wanted) + _RESERVED_BLOCKS
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
