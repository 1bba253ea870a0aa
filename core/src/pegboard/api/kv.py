"""KV groups: the layers that share one block table and one policy, and what a policy decides.

Blocks of all groups have equal bytes, so that one pool serves them all. A block belongs to one
group at a time, so the groups lie over each other in the same memory: tensor slot i is shared by
the i-th layer of every group.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import msgspec

from pegboard.api.plugin import ComponentSpec

__all__ = ["KVGroup", "KVGroupType", "KVGroupTypeQuery", "KVGroupTypeSpec", "KVLayerNeed"]


class KVGroupTypeQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which group type a model's layers ask for, by name."""

    name: str


class KVGroupTypeSpec(ComponentSpec, frozen=True, kw_only=True):
    """Describes a `KVGroupType`; its `target` is the class."""

    kind: ClassVar[str] = "kv_group_types"

    def reasons_against(self, query: KVGroupTypeQuery) -> list[str]:
        """Fits exactly the type that is asked for."""
        if query.name in (self.name, *self.aliases):
            return []
        return [f"the layers ask for {query.name!r}"]


class KVLayerNeed(msgspec.Struct, frozen=True, kw_only=True):
    """What one layer of a model asks of the KV manager. Layers of equal need form groups.

    Attributes:
        layer: the layer's index in the model.
        group_type: name of a KV group type, such as "full" or "sliding_window".
        bytes_per_token: of this layer's cache, all its tensors.
        window: last tokens a query sees, itself included; None for all.
    """

    layer: int
    group_type: str
    bytes_per_token: int
    window: int | None = None


class KVGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Layers that share a block table.

    Attributes:
        group_type: the KV group type's name.
        layers: layer indices; the i-th lives in tensor slot i, which it shares with the i-th
            layer of every other group, indexed by the pool's block ids.
        block_size: tokens a block of this group.
        window: see `KVLayerNeed.window`.
    """

    group_type: str
    layers: tuple[int, ...]
    block_size: int
    window: int | None = None


class KVGroupType(ABC):
    """The policy of one KV group: which blocks a prefix hit needs, and which may be freed.

    Runs in the engine core; holds no request state; never blocks.
    """

    def __init__(self, group: KVGroup) -> None:
        """Keep the group this policy serves."""
        self.group = group

    @abstractmethod
    def longest_hit(
        self, num_blocks: int, is_cached: Callable[[int], bool]
    ) -> tuple[int, Sequence[int]]:
        """Find the longest cached prefix.

        Args:
            num_blocks: full blocks of the prompt that may be hit, counted from its start.
            is_cached: whether this group's block at an index of the chain is in the cache.

        Returns:
            The hit's length in blocks, and the indices of the blocks it needs; the others of
            the hit are out of reach of any later query and become the null block.
        """

    @abstractmethod
    def first_needed_block(self, num_computed_tokens: int) -> int:
        """Return the index of the first block that a query at `num_computed_tokens` can see.

        Blocks before it may be freed once no step in flight reads them.
        """

    def max_blocks(self, num_tokens: int, max_tokens_in_flight: int) -> int:
        """Return the most blocks a request of `num_tokens` can hold at once.

        Args:
            num_tokens: the request's total length.
            max_tokens_in_flight: most tokens scheduled but not yet computed.
        """
        del max_tokens_in_flight
        return -(-num_tokens // self.group.block_size)
