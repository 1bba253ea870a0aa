"""What a block is found by: a SHA-256 chain over its tokens and everything else its KV depends on.

A block's hash covers its parent's, so that equal hashes mean equal prefixes. The bytes that are
hashed are unambiguous: parent (32), token ids (4 each, as many as a block has), then the extra
keys as one msgpack value, if there are any.
"""

from array import array
from collections.abc import Sequence
from hashlib import sha256

import msgspec

from pegboard.api.messages import LoraRequest, MediaInput

__all__ = ["BlockHasher", "HashExtras"]

#: Parent of the first block of every chain.
_ROOT = sha256(b"pegboard block hash 1").digest()


class HashExtras:
    """What a request's KV depends on besides its token ids.

    The adapter and the salt go into the first block only: the chain carries them on. A media item
    goes into every block that its placeholder tokens touch, with its place in that block, since
    all placeholders are one token id.
    """

    __slots__ = ("_first", "_media")

    def __init__(
        self,
        *,
        cache_salt: str | None = None,
        lora: LoraRequest | None = None,
        media: Sequence[MediaInput] = (),
    ) -> None:
        first: list[tuple[object, ...]] = []
        if lora is not None:
            first.append(("lora", lora.lora_id, lora.name, lora.path))
        if cache_salt is not None:
            first.append(("salt", cache_salt))
        self._first = first
        self._media = [(m.offset, m.offset + m.length, m.content_hash) for m in media]

    def __bool__(self) -> bool:
        return bool(self._first or self._media)

    def of_block(self, start: int, end: int) -> bytes:
        """Return the extra keys of the block that holds positions `start` to `end`, encoded."""
        extras = list(self._first) if start == 0 else []
        for first, last, content_hash in self._media:
            if first < end and last > start:
                extras.append(("media", content_hash, first - start))
        return msgspec.msgpack.encode(extras) if extras else b""


class BlockHasher:
    """Hashes sequences in blocks of a fixed number of tokens."""

    __slots__ = ("block_size",)

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size

    def extend(
        self,
        hashes: list[bytes],
        token_ids: Sequence[int],
        num_tokens: int,
        extras: HashExtras | None = None,
    ) -> None:
        """Append the hashes of the full blocks that `hashes` lacks, in place.

        Args:
            hashes: of the sequence's first blocks.
            token_ids: the sequence.
            num_tokens: only blocks that end at or before this position are hashed.
            extras: what else the KV depends on.
        """
        size = self.block_size
        parent = hashes[-1] if hashes else _ROOT
        for start in range(len(hashes) * size, num_tokens - size + 1, size):
            end = start + size
            content = parent + array("I", token_ids[start:end]).tobytes()
            if extras:
                content += extras.of_block(start, end)
            parent = sha256(content).digest()
            hashes.append(parent)
