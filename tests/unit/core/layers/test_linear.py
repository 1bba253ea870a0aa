"""Linear layers: parts arrive in any order, are packed when complete, and divide over ranks."""

import itertools

import pytest
import torch
from tests.support.models import LocalGroup, SimpleModelContext, ThreadGroup, reference_ops

from pegboard.api.errors import ModelError
from pegboard.layers import (
    ColumnParallelLinear,
    GateUpLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
    packed_bytes,
)
from pegboard.ops import reference

CONFIG = {
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 8,
}


class Rank(LocalGroup):
    """A rank whose collectives are not called."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


def context(group=None, **ops):
    return SimpleModelContext(CONFIG, tensor_parallel=group, ops=reference_ops(**ops))


def fill(layer, tensors) -> None:
    slots = dict(layer.slots("block.proj"))
    assert set(slots) == set(tensors)
    for name, tensor in tensors.items():
        assert slots[name].shape == tuple(tensor.shape)
        slots[name].store(tensor)


def qkv_tensors(bias: bool) -> dict[str, torch.Tensor]:
    tensors = {}
    for name, rows in (("q_proj", 24), ("k_proj", 8), ("v_proj", 8)):
        tensors[f"block.{name}.weight"] = torch.randn(rows, 10)
        if bias:
            tensors[f"block.{name}.bias"] = torch.randn(rows)
    return tensors


def expected(tensors, x, names) -> torch.Tensor:
    return torch.cat(
        [
            x @ tensors[f"block.{name}.weight"].T + tensors.get(f"block.{name}.bias", 0)
            for name in names
        ],
        -1,
    )


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_qkv_parts_arrive_in_any_order(order: tuple[int, ...]) -> None:
    layer = QKVParallelLinear(context(), 10, 6, 2, 4)
    tensors = qkv_tensors(bias=False)
    names = list(tensors)
    fill(layer, {names[index]: tensors[names[index]] for index in order})
    x = torch.randn(3, 10)

    torch.testing.assert_close(layer(x), expected(tensors, x, ("q_proj", "k_proj", "v_proj")))


def test_biases_arrive_in_any_order() -> None:
    tensors = qkv_tensors(bias=True)
    x = torch.randn(3, 10)
    for names in (list(tensors), list(tensors)[::-1]):
        layer = QKVParallelLinear(context(), 10, 6, 2, 4, bias=True)
        fill(layer, {name: tensors[name] for name in names})
        torch.testing.assert_close(layer(x), expected(tensors, x, ("q_proj", "k_proj", "v_proj")))


def test_nothing_is_packed_before_the_last_part_and_nothing_is_kept_after() -> None:
    packed = []

    class Watching(reference.Linear):
        def prepare(self, weight, bias=None):
            packed.append(weight.data_ptr())
            return super().prepare(weight, bias)

    layer = QKVParallelLinear(context(linear=Watching()), 10, 6, 2, 4)
    tensors = qkv_tensors(bias=False)
    slots = dict(layer.slots("block.proj"))
    for name, tensor in list(tensors.items())[:2]:
        slots[name].store(tensor)
    assert not packed
    assert packed_bytes(layer) == 0

    slots["block.v_proj.weight"].store(tensors["block.v_proj.weight"])

    assert len(packed) == 1
    assert packed_bytes(layer) == 40 * 10 * 4
    held = [value for value in vars(layer).values() if isinstance(value, torch.Tensor)]
    assert not held, "the buffer is freed once it is packed"


def test_a_whole_matrix_is_packed_from_where_it_lies() -> None:
    seen = []

    class Watching(reference.Linear):
        def prepare(self, weight, bias=None):
            seen.append(weight.data_ptr())
            return super().prepare(weight, bias)

    layer = ColumnParallelLinear(context(linear=Watching()), 10, 4)
    weight = torch.randn(4, 10)
    fill(layer, {"block.proj.weight": weight})

    assert seen == [weight.data_ptr()]
    weight.zero_()
    assert layer(torch.ones(1, 10)).abs().sum() > 0, "and not kept"


def test_weights_are_converted_to_the_activations_dtype() -> None:
    layer = ReplicatedLinear(SimpleModelContext(CONFIG, dtype=torch.bfloat16), 10, 4, bias=True)
    fill(layer, {"block.proj.weight": torch.randn(4, 10), "block.proj.bias": torch.randn(4)})
    assert layer(torch.randn(2, 10, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_merged_matrices_are_side_by_side() -> None:
    layer = MergedColumnParallelLinear(context(), 10, [("a", 3), ("b", 5)])
    tensors = {"block.a.weight": torch.randn(3, 10), "block.b.weight": torch.randn(5, 10)}
    fill(layer, tensors)
    x = torch.randn(2, 10)
    torch.testing.assert_close(layer(x), expected(tensors, x, ("a", "b")))


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("fused", [False, True])
def test_gate_up_is_the_same_with_and_without_the_fused_op(activation, fused) -> None:
    ops = {"gate_up_linear": reference.GateUpLinear()} if fused else {}
    layer = GateUpLinear(context(**ops), 10, 12, activation)
    tensors = {
        "block.gate_proj.weight": torch.randn(12, 10),
        "block.up_proj.weight": torch.randn(12, 10),
    }
    fill(layer, tensors)
    x = torch.randn(3, 10)

    product = expected(tensors, x, ("gate_proj", "up_proj"))
    want = getattr(reference, f"{activation}_and_mul")(product)
    torch.testing.assert_close(layer(x), want)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("bias", [False, True])
def test_column_then_row_parallel_is_the_whole_product(size: int, bias: bool) -> None:
    up, down = torch.randn(12, 10), torch.randn(7, 12)
    up_bias, down_bias = torch.randn(12), torch.randn(7)
    x = torch.randn(4, 10)

    def rank(group: ThreadGroup) -> torch.Tensor:
        first = ColumnParallelLinear(context(group), 10, 12, bias=bias)
        second = RowParallelLinear(context(group), 12, 7, bias=bias)
        for layer, weight, vector in ((first, up, up_bias), (second, down, down_bias)):
            tensors = {"block.proj.weight": weight}
            fill(layer, {**tensors, "block.proj.bias": vector} if bias else tensors)
        return second(first(x))

    hidden = x @ up.T + up_bias if bias else x @ up.T
    want = hidden @ down.T + down_bias if bias else hidden @ down.T
    for got in ThreadGroup.run(size, rank):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [2, 3, 6])
def test_qkv_ranks_hold_their_heads_and_repeat_few_kv_heads(size: int) -> None:
    config = {**CONFIG, "num_key_value_heads": 2 if size != 3 else 3}
    kv_heads = config["num_key_value_heads"]
    tensors = {
        f"block.{name}.weight": torch.randn(heads * 4, 10)
        for name, heads in (("q_proj", 6), ("k_proj", kv_heads), ("v_proj", kv_heads))
    }
    x = torch.randn(3, 10)
    query, key, value = (
        (x @ tensors[f"block.{name}.weight"].T).unflatten(-1, (-1, 4))
        for name in ("q_proj", "k_proj", "v_proj")
    )
    for rank in range(size):
        ranked = SimpleModelContext(config, tensor_parallel=Rank(rank, size))
        layer = QKVParallelLinear(ranked, 10, 6, kv_heads, 4)
        fill(layer, tensors)
        heads = range(rank * 6 // size, (rank + 1) * 6 // size)
        group = 6 // kv_heads
        own_kv = sorted({head // group for head in heads})
        want = torch.cat(
            [
                query[:, list(heads)].flatten(1),
                key[:, own_kv].flatten(1),
                value[:, own_kv].flatten(1),
            ],
            -1,
        )
        torch.testing.assert_close(layer(x), want)


@pytest.mark.parametrize(
    "build",
    [
        lambda c: QKVParallelLinear(c, 10, 6, 2, 4),
        lambda c: GateUpLinear(c, 10, 14, "silu"),
        lambda c: RowParallelLinear(c, 14, 10),
    ],
)
def test_a_size_that_does_not_divide_is_refused_with_those_that_do(build) -> None:
    with pytest.raises(
        ModelError, match=r"tensor_parallel_size is 4, .*sizes that do: 1, 2, 6 \(--tensor"
    ):
        build(context(Rank(0, 4)))


def test_kv_heads_that_neither_divide_nor_repeat_are_refused() -> None:
    config = {**CONFIG, "num_key_value_heads": 4, "num_attention_heads": 12}
    with pytest.raises(ModelError, match="4 key and value heads; sizes that do: 1, 2, 4, 12"):
        QKVParallelLinear(SimpleModelContext(config, tensor_parallel=Rank(0, 3)), 10, 12, 4, 4)
