"""Whole models on the kernels: layers in one call are bit for bit the layers one by one."""

import importlib
import random
from pathlib import Path

import pytest
import torch
from tests.support.models import Checkpoint, PagedDriver, SimpleModelContext, reference_ops

from pegboard_cpu import decoder, plugin
from pegboard_cpu.attention import CpuAttentionBackend
from pegboard_kernels import KernelError
from pegboard_models.plugin import model_architectures

TARGETS = {spec.name: spec.target for spec in model_architectures()}
CLASSES = {"linear", "gate_up_linear", "logits", "decoder_layers"}


def _ops(*, fused: bool) -> dict:
    ops = {}
    for spec in plugin.op_implementations():
        module, _, attribute = spec.target.partition(":")
        target = getattr(importlib.import_module(module), attribute)
        ops[spec.op] = target() if spec.op in CLASSES else target
    return ops if fused else {**ops, "decoder_layers": None}


def _driver(checkpoint: Checkpoint, dtype: torch.dtype, **ops: object) -> PagedDriver:
    context = SimpleModelContext(checkpoint.config, dtype=dtype, ops=reference_ops(**ops))
    module, _, name = TARGETS[checkpoint.config["architectures"][0]].partition(":")
    model = getattr(importlib.import_module(module), name)(context)
    model.load_weights(checkpoint.weights())
    return PagedDriver(model, context, block_size=16, backend_class=CpuAttentionBackend)


def _steps() -> list[dict[str, list[int]]]:
    def tokens(count: int) -> list[int]:
        return [random.randrange(3, 199) for _ in range(count)]

    return [
        {"a": tokens(19), "b": tokens(3)},
        {"a": tokens(1), "b": tokens(30), "c": tokens(7)},
        {"a": tokens(1), "b": tokens(1), "c": tokens(1)},
    ]


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_layers_in_one_call_give_the_bits_of_layers_one_by_one(
    tmp_path: Path, family: str, dtype: torch.dtype
) -> None:
    checkpoint = Checkpoint.make(tmp_path, family)
    together = _driver(checkpoint, dtype, **_ops(fused=True))
    apart = _driver(checkpoint, dtype, **_ops(fused=False))
    for step in _steps():
        got, expected = together.step(step), apart.step(step)
        for name in step:
            assert torch.equal(got[name], expected[name])
    if dtype is torch.float32:
        wanted = checkpoint.logits(together.sequences["b"])[-1]
        error = (got["b"][-1] - wanted).abs().max() / wanted.abs().max()
        assert error < 1e-4


def test_padding_changes_nothing(tmp_path: Path) -> None:
    checkpoint = Checkpoint.make(tmp_path)
    plain, padded = (_driver(checkpoint, torch.float32, **_ops(fused=True)) for _ in range(2))
    for step in _steps():
        got, expected = padded.step(step, padding=5), plain.step(step)
        for name in step:
            assert torch.equal(got[name], expected[name])


def test_caches_that_move_are_found_again(tmp_path: Path) -> None:
    driver = _driver(Checkpoint.make(tmp_path), torch.float32, **_ops(fused=True))
    first, second, third = _steps()
    driver.step(first)
    driver.step(second)
    copies = {name: list(ids) for name, ids in driver.sequences.items()}
    before = [tuple(cache.clone() for cache in layer) for layer in driver._caches]
    expected = driver.step(third)
    driver.sequences.update({name: list(ids) for name, ids in copies.items()})
    old, driver._caches = driver._caches, before
    for layer in old:
        for cache in layer:
            cache.fill_(torch.nan)
    got = driver.step(third)
    for name in third:
        assert torch.equal(got[name], expected[name])


def test_products_of_another_op_are_left_to_the_layers(tmp_path: Path) -> None:
    ops = _ops(fused=True)
    del ops["linear"]  # the reference's
    asked: list[object] = []

    class Watched(decoder.DecoderLayers):
        def prepare(self, parts):
            asked.append(super().prepare(parts))
            return asked[-1]

    checkpoint = Checkpoint.make(tmp_path)
    driver = _driver(checkpoint, torch.float32, **{**ops, "decoder_layers": Watched()})
    got = [driver.step(step) for step in _steps()][-1]
    assert asked == [None]
    wanted = checkpoint.logits(driver.sequences["a"])[-1]
    assert (got["a"][-1] - wanted).abs().max() / wanted.abs().max() < 1e-4


def test_fault_in_a_layer_is_an_error_with_its_cause(tmp_path: Path) -> None:
    driver = _driver(Checkpoint.make(tmp_path), torch.float32, **_ops(fused=True))
    (first, *_) = _steps()
    forward = driver._forward

    def spoiled(tokens, positions, common):
        common.seq_lens[0] = 100_000
        return forward(tokens, positions, common)

    driver._forward = spoiled
    with pytest.raises(KernelError, match="its block table holds"):
        driver.step(first)
