"""The attention layer: fused and unfused alike, and what it declares to the context."""

import pytest
import torch
from tests.support.models import LocalGroup, PagedDriver, SimpleModelContext, reference_ops

from pegboard.api.errors import EngineError, ModelError
from pegboard.api.forward_context import ForwardContext, enter_forward_context
from pegboard.layers import Attention, Layer, RMSNorm, Rotary, packed_bytes, weight_slots
from pegboard.ops import reference

CONFIG = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rope_theta": 100.0,
}


class Toy(Layer):
    """Attention over made-up products, one row a token id."""

    def __init__(self, context: SimpleModelContext, table: torch.Tensor, **options) -> None:
        self._table = table
        self.attn = Attention(context, 0, 4, 2, 8, **options)

    def __call__(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return self.attn(self._table[ids], positions)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


def outputs(table: torch.Tensor, ops, *, norms=None, interleaved=False, **options) -> torch.Tensor:
    context = SimpleModelContext(CONFIG, ops=ops)
    if norms is not None:
        options["q_norm"], options["k_norm"] = (RMSNorm(context, 8, 1e-6) for _ in range(2))
        for norm, weight in zip((options["q_norm"], options["k_norm"]), norms, strict=True):
            norm.weight.copy_(weight)
    rotary = Rotary.from_config(context, 8, interleaved=interleaved)
    driver = PagedDriver(Toy(context, table, rotary=rotary, **options), context)
    ids = list(range(20))
    steps = [{"a": ids[:9], "b": [3, 4]}, {"b": [5], "a": ids[9:12]}]
    steps += [{"a": [token], "b": [token]} for token in ids[12:]]
    return torch.cat(
        [driver.step(step, padding=index % 3)["a"] for index, step in enumerate(steps)]
    )


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("v_head_size", [8, 6])
def test_the_fused_write_changes_nothing(interleaved, normed, v_head_size) -> None:
    table = torch.randn(20, 4 * 8 + 2 * (8 + v_head_size))
    options = {
        "norms": (torch.rand(8), torch.rand(8)) if normed else None,
        "interleaved": interleaved,
        "v_head_size": v_head_size,
        "sliding_window": 7,
    }
    fused = reference_ops(rope_and_write_kv=reference.rope_and_write_kv)

    torch.testing.assert_close(
        outputs(table, fused, **options), outputs(table, reference_ops(), **options)
    )


@pytest.mark.parametrize("fused", [False, True])
def test_a_pass_without_metadata_gives_zeros(fused: bool) -> None:
    ops = {"rope_and_write_kv": reference.rope_and_write_kv} if fused else {}
    context = SimpleModelContext(CONFIG, ops=reference_ops(**ops))
    layer = Attention(context, 0, 4, 2, 8, rotary=Rotary.from_config(context, 8))
    empty = ForwardContext(
        attention=[], kv_caches=[()], metadata=[None], slot_mapping=[None], num_tokens=5
    )
    with enter_forward_context(empty):
        output = layer(torch.randn(5, 64), torch.arange(5))
    assert output.shape == (5, 32)
    assert not output.any()


def test_it_needs_a_forward_pass() -> None:
    layer = Attention(SimpleModelContext(CONFIG), 0, 4, 2, 8)
    with pytest.raises(EngineError, match="forward pass"):
        layer(torch.randn(1, 64), torch.arange(1))


def test_it_declares_itself_and_its_need() -> None:
    context = SimpleModelContext(CONFIG, dtype=torch.bfloat16, kv_dtype=torch.float32)
    Attention(context, 0, 4, 2, 8, v_head_size=6, soft_cap=30.0)
    Attention(context, 1, 4, 2, 8, sliding_window=5, scale=0.5)
    Attention(context, 2, 4, 2, 8, causal=False)

    (full, full_need, _), (sliding, window_need, _), (encoder, no_need, _) = (
        context.layers[index] for index in range(3)
    )
    assert full_need is not None
    assert window_need is not None
    assert full.scale == pytest.approx(8**-0.5)
    assert full.soft_cap == 30.0
    assert (full_need.group_type, full_need.bytes_per_token) == ("full", 2 * (8 + 6) * 4)
    assert sliding.scale == 0.5
    assert (window_need.group_type, window_need.window) == ("sliding_window", 5)
    assert not encoder.causal
    assert no_need is None
    with pytest.raises(ModelError, match="twice"):
        Attention(context, 1, 4, 2, 8)


def test_one_norm_without_the_other_is_refused() -> None:
    context = SimpleModelContext(CONFIG)
    with pytest.raises(ModelError, match="k_norm"):
        Attention(context, 0, 4, 2, 8, q_norm=RMSNorm(context, 8, 1e-6))


def test_sinks_are_loaded_and_divided() -> None:
    class Second(LocalGroup):
        rank, size = 1, 2

    context = SimpleModelContext(CONFIG, tensor_parallel=Second())
    toy = Toy(context, torch.empty(0), sinks=True)
    given = torch.randn(4)

    slots = weight_slots(toy)
    assert list(slots) == ["sinks"]
    assert slots["sinks"].shape == (4,)
    slots["sinks"].store(given)

    layer, _, sinks = context.layers[0]
    assert layer.has_sinks
    assert torch.equal(sinks, given[2:])
    assert packed_bytes(toy) == sinks.nbytes
