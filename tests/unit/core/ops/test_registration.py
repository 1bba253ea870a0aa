"""Ops as torch operators: fakes agree, and a compiler sees one opaque call."""

import importlib

import pytest
import torch

from pegboard.builtin.plugin import op_definitions
from pegboard.ops import reference
from pegboard.ops.attention import ATTENTION_SCHEMA, traced_attention
from pegboard.ops.registration import torch_operator

DEFINITIONS = {definition.name: definition for definition in op_definitions()}


def attribute(target: str):
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def registered(name: str):
    definition = DEFINITIONS[name]
    fake = attribute(definition.fake) if definition.fake else None
    name = f"pegboard_test::{definition.name}"
    return torch_operator(name, definition.schema, attribute(definition.target), fake)


def arguments(name: str) -> tuple:
    x = torch.randn(3, 8)
    return {
        "rms_norm": (x, torch.rand(8), 1e-5),
        "fused_add_rms_norm": (x, torch.randn(3, 8), torch.rand(8), 1e-5),
        "silu_and_mul": (x,),
        "gelu_tanh_and_mul": (x,),
        "embedding": (torch.tensor([2, 0]), x),
        "rotary_embedding": (
            torch.randn(3, 2, 8), torch.randn(3, 1, 8), torch.arange(3), torch.rand(4, 8), False,
        ),
    }[name]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["embedding", "fused_add_rms_norm", "gelu_tanh_and_mul", "rms_norm", "rotary_embedding",
     "silu_and_mul"],
)  # fmt: skip
def test_schema_and_fake_tell_the_truth(name: str) -> None:
    operator = registered(name)
    torch.library.opcheck(operator, arguments(name), test_utils=("test_schema", "test_faketensor"))


def test_registering_twice_gives_the_same_operator() -> None:
    assert registered("rms_norm") is registered("rms_norm")


def test_a_graph_holds_the_operator_as_one_call() -> None:
    operator = registered("rms_norm")
    graphs = []

    def keep(graph: torch.fx.GraphModule, inputs: list):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x, w: operator(x, w, 1e-5) + 1, backend=keep, fullgraph=True)
    x, weight = torch.randn(3, 8), torch.rand(8)

    torch.testing.assert_close(compiled(x, weight), reference.rms_norm(x, weight, 1e-5) + 1)
    assert operator in [node.target for node in graphs[0].graph.nodes]


def test_what_torch_cannot_call_is_refused() -> None:
    with pytest.raises(ValueError, match="packs"):
        registered("linear")
    with pytest.raises(ValueError, match="fake"):
        torch_operator("pegboard_test::twin", "(Tensor x) -> Tensor", lambda x: x)


def test_attention_is_registered_as_it_is_defined() -> None:
    assert DEFINITIONS["attention"].schema == ATTENTION_SCHEMA
    assert traced_attention is torch.ops.pegboard.attention.default
