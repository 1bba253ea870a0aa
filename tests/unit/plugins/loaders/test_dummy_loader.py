from collections.abc import Iterable
from types import SimpleNamespace

import pytest
import torch
from tests.support.checkpoints import default_gguf, describe_gguf

from pegboard.api.errors import ModelError
from pegboard.api.plugin import ComponentContext
from pegboard_loaders.dummy_loader import DummyLoader


class Model:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.weights: dict[str, torch.Tensor] = {}

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"a": (64, 32), "b": (32,)}

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        self.weights.update(weights)


def filled(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    config = SimpleNamespace(model=SimpleNamespace(seed=seed))
    loader = DummyLoader(ComponentContext(plugin="loaders", config=config))
    model = Model()
    loader.load(model, describe_gguf(default_gguf()), dtype)  # type: ignore[arg-type]
    return model.weights


def test_every_tensor_is_small_and_of_its_shape() -> None:
    weights = filled(0, torch.bfloat16)
    assert {name: tuple(tensor.shape) for name, tensor in weights.items()} == {
        "a": (64, 32),
        "b": (32,),
    }
    assert all(tensor.dtype == torch.bfloat16 for tensor in weights.values())
    assert 0.01 < weights["a"].float().std() < 0.03


def test_seed_and_name_decide_the_numbers() -> None:
    assert all(torch.equal(filled(3)[name], filled(3)[name]) for name in "ab")
    assert not torch.equal(filled(3)["a"], filled(4)["a"])
    assert not torch.equal(filled(3)["a"][0], filled(3)["b"])


def test_weights_without_a_model_are_refused() -> None:
    loader = DummyLoader(ComponentContext(plugin="loaders"))
    with pytest.raises(ModelError, match="need the model"):
        next(iter(loader.weights(describe_gguf(default_gguf()), torch.float32)))
