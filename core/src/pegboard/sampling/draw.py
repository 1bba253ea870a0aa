"""Draw one token a row from its logits, by the inverse of the cumulative distribution.

One uniform number a row is enough for that. The other way, Gumbel noise and an argmax, needs a
random number and a logarithm for every entry of the vocabulary: at 50,000 entries far more work
than the model's last layer gives a row. The order of summation is fixed, so every rank and every
batch draws the same token from the same logits.
"""

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["BLOCK", "draw_tokens", "most_likely"]

#: Lanes of one block of the two-level sum.
BLOCK = 256


def most_likely(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's greatest logit and its first index; the reference of `most_likely`.

    A NaN counts as the greatest, so a row that holds one shows it here.

    Args:
        logits: [n, vocab] float32.

    Returns:
        values [n] float32, and indices [n] int64.
    """
    values, indices = logits.max(dim=-1)
    return values, indices


def draw_tokens(logits: Tensor, uniforms: Tensor) -> Tensor:
    """Draw a token from softmax(logits); the reference of the op `draw_tokens`.

    weight = exp(logit - greatest logit) in float32; blocks of `BLOCK` consecutive weights are
    summed, the last one padded with zeros, and the block sums accumulated in float64. The token
    lies in the first block whose cumulative sum exceeds uniform * total; in it, it is the first
    whose cumulative sum in float64 exceeds the rest, or, where rounding leaves none, the last
    with a weight.

    Args:
        logits: [n, vocab] float32; -inf is never drawn. A row without a finite greatest logit
            gives some index inside the vocabulary.
        uniforms: [n] float64 in [0, 1).

    Returns:
        [n] int64.
    """
    vocab = logits.shape[-1]
    weights = (logits - logits.amax(dim=-1, keepdim=True)).exp()
    if vocab % BLOCK:
        weights = functional.pad(weights, (0, BLOCK - vocab % BLOCK))
    blocks = weights.unflatten(-1, (-1, BLOCK))  # [n, num_blocks, BLOCK]
    upto = blocks.sum(dim=-1).double().cumsum(dim=-1)
    target = (uniforms * upto[:, -1]).unsqueeze(1)
    block = (upto <= target).sum(dim=-1, keepdim=True).clamp_(max=upto.shape[-1] - 1)
    before = functional.pad(upto, (1, 0)).gather(1, block)
    lanes = blocks.gather(1, block.unsqueeze(-1).expand(-1, -1, BLOCK)).squeeze(1)
    lanes_upto = lanes.double().cumsum(dim=-1)
    lane = (lanes_upto <= target - before).sum(dim=-1, keepdim=True)
    indices = torch.arange(BLOCK, device=logits.device)
    last = torch.where(lanes > 0, indices, 0).amax(dim=-1, keepdim=True)
    token = (block * BLOCK + torch.minimum(lane, last)).squeeze(1)
    return token.clamp_(max=vocab - 1)
