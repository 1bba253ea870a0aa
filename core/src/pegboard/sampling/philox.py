"""Counter-based random numbers: Philox-4x32-10 of (seed, output position, lane, stream).

No state is kept, so a number depends on nothing but its four coordinates: a request draws the
same numbers after preemption, in another row, on every tensor-parallel rank, and when its step
was scheduled before the token before it was known.

The algorithm, so that any kernel can give the same bits. All words are 32 bits, products 64:

    key     = (low word of seed, high word of seed)            seed as two's complement
    counter = (position, lane, stream, 0)
    ten times:
        p, q    = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = (high(q) ^ counter[1] ^ key[0], low(q), high(p) ^ counter[3] ^ key[1], low(p))
        key     = (key[0] + 0x9E3779B9, key[1] + 0xBB67AE85)
    uniform = ((counter[0] << 21) | (counter[1] >> 11)) * 2**-53

Source: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011.
"""

import hashlib

import torch
from torch import Tensor

__all__ = ["STREAM_SAMPLE", "philox_4x32_10", "philox_uniform", "seed_of"]

#: The stream that draws output tokens; speculation and others take further numbers.
STREAM_SAMPLE = 0

_ROUNDS = 10
_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def philox_4x32_10(counter: Tensor, key: Tensor) -> Tensor:
    """Return the four output words of each counter.

    Args:
        counter: [4, n] int64, each a 32-bit word.
        key: [2, n] int64, each a 32-bit word.

    Returns:
        [4, n] int64, each a 32-bit word.
    """
    device = counter.device
    multipliers = torch.tensor(_MULTIPLIERS, dtype=torch.int64, device=device).unsqueeze(1)
    weyl = torch.tensor(_WEYL, dtype=torch.int64, device=device).unsqueeze(1)
    even, odd = counter[0::2], counter[1::2]  # words 0, 2 and words 1, 3: [2, n]
    for round_index in range(_ROUNDS):
        # The product may pass 2**63; wrapped around, its bits are still the right ones.
        product = even * multipliers
        round_key = (key + weyl * round_index) & _WORD
        even = ((product >> 32) & _WORD).flip(0) ^ odd ^ round_key
        odd = (product & _WORD).flip(0)
    return torch.stack((even[0], odd[0], even[1], odd[1]))


def philox_uniform(seeds: Tensor, positions: Tensor, stream: int) -> Tensor:
    """Draw one uniform number for each row; the reference of the op `philox_uniform`.

    Args:
        seeds: [n] int64, any value.
        positions: [n] int64, in [0, 2**32): the output position that is drawn.
        stream: which use of random numbers this is.

    Returns:
        [n] float64 in [0, 1), multiples of 2**-53; lane 0 of each row.
    """
    zeros = torch.zeros_like(positions)
    counter = torch.stack((positions, zeros, torch.full_like(positions, stream), zeros))
    key = torch.stack((seeds & _WORD, (seeds >> 32) & _WORD))
    words = philox_4x32_10(counter, key)
    return ((words[0] << 21) | (words[1] >> 11)).double() * 2.0**-53


def seed_of(seed: int | None, request_id: str, engine_seed: int) -> int:
    """Return a request's seed as int64; one that brings none gets its own from the engine's."""
    if seed is not None:
        return seed
    digest = hashlib.blake2b(
        request_id.encode(), digest_size=8, key=engine_seed.to_bytes(16, "little", signed=True)
    )
    return int.from_bytes(digest.digest(), "little", signed=True)
