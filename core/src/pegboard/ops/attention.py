"""The attention op: opaque, mutating, by layer index. Compiled graphs are split at it.

It knows no backend: the forward context says which implementation, cache and metadata a layer
has in this step.
"""

from torch import Tensor

from pegboard.api.forward_context import forward_context
from pegboard.ops.registration import torch_operator

__all__ = ["ATTENTION_SCHEMA", "attention", "traced_attention"]

ATTENTION_SCHEMA = "(Tensor query, Tensor? key, Tensor? value, Tensor(a!) output, int layer) -> ()"


def attention(
    query: Tensor, key: Tensor | None, value: Tensor | None, output: Tensor, layer: int
) -> None:
    """Write the new keys and values to the layer's cache and attend, into `output`.

    Args:
        query: [num_tokens, num_heads, head_size]; may be a view into a fused product.
        key: [num_tokens, num_kv_heads, head_size], or None if the cache has it already.
        value: [num_tokens, num_kv_heads, v_head_size], or None as `key`.
        output: [num_tokens, num_heads, v_head_size], written in place; zeros in a pass without
            metadata, which only measures memory.
        layer: the layer's index in the forward context.

    Raises:
        EngineError: outside a forward pass.
    """
    context = forward_context()
    metadata = context.metadata[layer]
    if metadata is None:
        output.zero_()
        return
    context.attention[layer].forward(query, key, value, context.kv_caches[layer], metadata, output)


#: `attention` as the torch operator `pegboard::attention`, for graphs that are being traced.
traced_attention = torch_operator("pegboard::attention", ATTENTION_SCHEMA, attention)
