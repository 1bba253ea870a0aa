"""How a model's layers become KV groups with equal bytes a block, and how long a sequence fits.

Layers of equal need form groups of at most G layers. The i-th layer of every group shares tensor
slot i: a block belongs to one group at a time, so all groups' i-th layers can live in one tensor
of `num_blocks` blocks. A group with fewer than G layers leaves slots unused; G is chosen so that
little is lost that way.
"""

from collections.abc import Sequence
from math import lcm

from pegboard.api.errors import ConfigError
from pegboard.api.kv import KVGroup, KVGroupType, KVLayerNeed

__all__ = ["block_bytes", "longest_sequence", "plan_groups", "sequence_blocks"]

_MAX_BLOCK_SIZE = 1024
#: Slots that may stay unused, as a share of the layers: a tenth.
_PADDING_SHARE = 10


def plan_groups(needs: Sequence[KVLayerNeed], block_size: int) -> list[KVGroup]:
    """Group a model's layers.

    Where layers need different bytes a token, those that need less get proportionally larger
    blocks, so that a block of every group has the same bytes.

    Args:
        needs: of each layer with a cache, in the model's order.
        block_size: tokens a block of the layers that need most.

    Raises:
        ConfigError: no layer has a cache, or no block size makes the bytes equal.
    """
    if not needs:
        raise ConfigError("the model has no layer with a KV cache; nothing can be scheduled")
    kinds: dict[tuple[str, int | None, int], list[int]] = {}
    for need in needs:
        if need.bytes_per_token < 1:
            raise ConfigError(
                f"layer {need.layer} asks for {need.bytes_per_token} KV bytes a token; at least "
                "1 is needed"
            )
        kind = (need.group_type, need.window, need.bytes_per_token)
        kinds.setdefault(kind, []).append(need.layer)
    slot = _slot_bytes(needs, block_size)
    group_size = _group_size([len(layers) for layers in kinds.values()])
    groups = []
    for (group_type, window, layer_bytes), layers in kinds.items():
        for start in range(0, len(layers), group_size):
            groups.append(
                KVGroup(
                    group_type=group_type,
                    layers=tuple(layers[start : start + group_size]),
                    block_size=slot // layer_bytes,
                    window=window,
                )
            )
    return groups


def block_bytes(groups: Sequence[KVGroup], needs: Sequence[KVLayerNeed]) -> int:
    """Return the bytes of one block over all tensor slots of one worker."""
    bytes_per_token = {need.layer: need.bytes_per_token for need in needs}
    num_slots = max(len(group.layers) for group in groups)
    slots = {
        bytes_per_token[layer] * group.block_size for group in groups for layer in group.layers
    }
    assert len(slots) == 1, f"blocks have unequal bytes: {sorted(slots)}"
    return num_slots * slots.pop()


def sequence_blocks(
    group_types: Sequence[KVGroupType], num_tokens: int, max_tokens_in_flight: int
) -> int:
    """Return the most blocks that one sequence of `num_tokens` holds at once, over all groups."""
    in_flight = min(num_tokens, max_tokens_in_flight)
    return sum(group_type.max_blocks(num_tokens, in_flight) for group_type in group_types)


def longest_sequence(
    group_types: Sequence[KVGroupType], num_blocks: int, limit: int, max_tokens_in_flight: int
) -> int:
    """Return the longest sequence, up to `limit`, that `num_blocks` hold alone.

    Args:
        group_types: every group's policy.
        num_blocks: that can be given out, so without the null block.
        limit: the most tokens that are of interest.
        max_tokens_in_flight: most tokens scheduled but not yet computed.
    """
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if sequence_blocks(group_types, middle, max_tokens_in_flight) <= num_blocks:
            low = middle
        else:
            high = middle - 1
    return low


def _slot_bytes(needs: Sequence[KVLayerNeed], block_size: int) -> int:
    """Return the bytes of one layer's part of a block, the same for every layer."""
    smallest = min(need.bytes_per_token for need in needs)
    largest = max(need.bytes_per_token for need in needs)
    common = lcm(*{need.bytes_per_token for need in needs})
    # The largest layers keep `block_size` where that is possible.
    slot = lcm(common, largest * block_size)
    if slot // smallest > max(_MAX_BLOCK_SIZE, block_size):
        raise ConfigError(
            f"layers need {smallest} to {largest} KV bytes a token; equal blocks would have up "
            f"to {slot // smallest} tokens, more than {_MAX_BLOCK_SIZE}; a smaller --block-size "
            "may help"
        )
    return slot


def _group_size(counts: Sequence[int]) -> int:
    """Return the most layers a group may have without losing over a tenth to unused slots."""
    num_layers = sum(counts)
    for size in range(max(counts), 1, -1):
        num_slots = sum(-(-count // size) * size for count in counts)
        if (num_slots - num_layers) * _PADDING_SHARE <= num_layers:
            return size
    return 1
