"""Streaming loads: what is wrong is listed in one line, and nothing is held twice."""

import pytest
import torch
from tests.support.models import SimpleModelContext

from pegboard.api.errors import ModelError
from pegboard.layers import Layer, ReplicatedLinear, RMSNorm, WeightMap, load_weights, weight_slots

CONTEXT = SimpleModelContext({"max_position_embeddings": 8})


class Block(Layer):
    def __init__(self) -> None:
        self.norm = RMSNorm(CONTEXT, 4, 1e-6)
        self.proj = ReplicatedLinear(CONTEXT, 4, 3)
        self._elsewhere = RMSNorm(CONTEXT, 4, 1e-6)


class Tower(Layer):
    def __init__(self, num_blocks: int = 2) -> None:
        self.blocks = [Block() for _ in range(num_blocks)]


def tensors(num_blocks: int = 2) -> dict[str, torch.Tensor]:
    made = {}
    for index in range(num_blocks):
        made[f"blocks.{index}.norm.weight"] = torch.randn(4)
        made[f"blocks.{index}.proj.weight"] = torch.randn(3, 4)
    return made


def test_names_are_attribute_paths() -> None:
    assert list(weight_slots(Tower())) == list(tensors())


def test_a_complete_stream_fills_every_layer() -> None:
    tower, given = Tower(), tensors()
    load_weights(tower, given.items())
    x = torch.randn(2, 4)
    for index, block in enumerate(tower.blocks):
        assert torch.equal(block.norm.weight, given[f"blocks.{index}.norm.weight"])
        torch.testing.assert_close(block.proj(x), x @ given[f"blocks.{index}.proj.weight"].T)


def test_each_tensor_is_dropped_before_the_next_is_taken() -> None:
    alive = []

    def stream():
        import weakref

        for name, tensor in tensors().items():
            assert all(reference() is None for reference in alive)
            fresh = tensor.clone()
            alive.append(weakref.ref(fresh))
            yield name, fresh
            del fresh

    load_weights(Tower(), stream())


@pytest.mark.parametrize(
    ("plant", "line"),
    [
        (lambda t: t.pop("blocks.1.proj.weight"), "1 missing: blocks.1.proj.weight"),
        (lambda t: t.update({"extra.weight": torch.ones(1)}), "1 unexpected: extra.weight"),
        (
            lambda t: t.update({"blocks.0.norm.weight": torch.ones(5)}),
            "1 wrong shape: blocks.0.norm.weight is [5], not [4]",
        ),
        (
            lambda t: t.update({"blocks.0.proj.weight": torch.ones(4, 3)}),
            "blocks.0.proj.weight is [4, 3], not [3, 4]",
        ),
    ],
)
def test_a_planted_fault_is_named(plant, line: str) -> None:
    given = tensors()
    plant(given)
    with pytest.raises(ModelError) as caught:
        load_weights(Tower(), given.items())
    message = str(caught.value)
    assert line in message
    assert "\n" not in message
    assert "Tower" in message


def test_several_faults_are_one_line_and_long_lists_are_cut() -> None:
    given = tensors(1)
    given["odd"] = torch.ones(1)
    with pytest.raises(ModelError) as caught:
        load_weights(Tower(5), given.items())
    message = str(caught.value)
    assert "8 missing: blocks.1.norm.weight" in message
    assert "and 4 more" in message
    assert "1 unexpected: odd" in message


def test_a_repeated_tensor_is_refused() -> None:
    given = list(tensors().items())
    with pytest.raises(ModelError, match=r"1 repeated: blocks\.0\.norm\.weight"):
        load_weights(Tower(), [*given, given[0]])


def test_a_weight_map_renames_and_drops() -> None:
    renamed = {f"language.{name}": tensor for name, tensor in tensors().items()}
    renamed["vision.patch.weight"] = torch.ones(2)
    weight_map = WeightMap(prefixes=(("language.", ""),), ignored=("vision.",))
    load_weights(Tower(), renamed.items(), weight_map)
