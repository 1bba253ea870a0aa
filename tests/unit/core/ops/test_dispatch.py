"""The op table: which implementation each op gets, and what is said where none fits."""

import logging
import sys
from types import ModuleType

import pytest

from pegboard.api.errors import ConfigError, PluginLoadError, SelectionError
from pegboard.api.ops import OpImplementationSpec, OpQuery
from pegboard.api.plugin import PluginInfo
from pegboard.builtin import plugin as builtin
from pegboard.catalog.catalog import Catalog, CatalogPlugin
from pegboard.config.plugins import ResolvedPlugin
from pegboard.ops import reference
from pegboard.ops.dispatch import build_op_table

QUERY = OpQuery(op="", platform="toy", dtype="float32")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of implementations, as a plugin would have."""
    module = ModuleType("toy_ops")
    monkeypatch.setitem(sys.modules, "toy_ops", module)
    module.fast_norm = lambda x, weight, eps: "fast"  # type: ignore[attr-defined]
    module.other_norm = lambda x, weight, eps: "other"  # type: ignore[attr-defined]
    module.Linear = type("Linear", (reference.Linear,), {})  # type: ignore[attr-defined]
    module.fused = lambda *args: None  # type: ignore[attr-defined]
    return module


def implementation(name: str, op: str, attribute: str, **constraints: object):
    target = f"toy_ops:{attribute}"
    return OpImplementationSpec(name=name, op=op, target=target, **constraints)  # type: ignore[arg-type]


def catalog_of(*implementations: OpImplementationSpec) -> Catalog:
    toy = PluginInfo(name="toy", version="1", api="1.0", summary="Toy ops.")
    parts = (
        (builtin.PLUGIN, {"op_definitions": builtin.op_definitions()}),
        (toy, {"op_implementations": list(implementations)}),
    )
    plugins = [
        CatalogPlugin(
            info=info,
            resolved=ResolvedPlugin(name=info.name, target=f"{info.name}_plugin"),
            config=None,
            components=components,  # type: ignore[arg-type]
            observers={},
        )
        for info, components in parts
    ]
    return Catalog(plugins, process="test")


def test_ops_without_an_implementation_get_their_reference() -> None:
    table = build_op_table(catalog_of(), QUERY)

    assert table["rms_norm"] is reference.rms_norm
    assert isinstance(table["linear"], reference.Linear)
    assert table.get("rope_and_write_kv") is None
    with pytest.raises(KeyError, match="rope_and_write_kv"):
        table["rope_and_write_kv"]
    with pytest.raises(KeyError, match="not defined"):
        table["nonsense"]
    by_op = {choice.op: choice for choice in table.choices}
    assert by_op["rms_norm"].implementation == "reference"
    assert by_op["rms_norm"].reason == "no plugin implements it"
    assert by_op["rope_and_write_kv"].implementation == "none"


def test_the_highest_priority_that_fits_wins(module: ModuleType) -> None:
    table = build_op_table(
        catalog_of(
            implementation("toy.slow", "rms_norm", "other_norm", priority=1),
            implementation("toy.norm", "rms_norm", "fast_norm", priority=5),
            implementation("toy.bf16", "rms_norm", "missing", priority=9, dtypes=("bfloat16",)),
            implementation("toy.linear", "linear", "Linear"),
        ),
        QUERY,
    )

    assert table["rms_norm"](0, 0, 0) == "fast"
    assert type(table["linear"]) is module.Linear


def test_configuration_orders_implementations(module: ModuleType) -> None:
    catalog = catalog_of(
        implementation("toy.norm", "rms_norm", "fast_norm", priority=5),
        implementation("toy.other", "rms_norm", "other_norm"),
        implementation("toy.bf16", "rms_norm", "fast_norm", dtypes=("bfloat16",)),
    )

    table = build_op_table(catalog, QUERY, {"rms_norm": ["toy.bf16", "toy.other"]})
    assert table["rms_norm"](0, 0, 0) == "other"

    table = build_op_table(catalog, QUERY, {"rms_norm": ["reference", "toy.norm"]})
    assert table["rms_norm"] is reference.rms_norm


def test_an_order_in_which_nothing_fits_is_refused_with_reasons() -> None:
    catalog = catalog_of(implementation("toy.bf16", "rms_norm", "x", dtypes=("bfloat16",)))

    with pytest.raises(SelectionError, match=r"toy\.bf16.*dtype float32"):
        build_op_table(catalog, QUERY, {"rms_norm": ["toy.bf16"]})
    with pytest.raises(SelectionError, match="absent"):
        build_op_table(catalog, QUERY, {"rms_norm": ["absent"]})


def test_an_order_for_an_unknown_op_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'rms_nrom'.*rms_norm"):
        build_op_table(catalog_of(), QUERY, {"rms_nrom": ["reference"]})


def test_why_an_implementation_was_left_out_is_kept(module: ModuleType) -> None:
    spec = implementation("toy.fused", "rope_and_write_kv", "fused", kv_layouts=("toy",))

    left_out = build_op_table(catalog_of(spec), QUERY)
    taken = build_op_table(
        catalog_of(spec), OpQuery(op="", platform="toy", dtype="float32", kv_layout="toy")
    )

    choice = next(c for c in left_out.choices if c.op == "rope_and_write_kv")
    assert "toy.fused" in choice.reason
    assert "KV layout" in choice.reason
    assert taken.get("rope_and_write_kv") is module.fused


def test_an_implementation_that_does_not_import_stops_the_table(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)
    with pytest.raises(PluginLoadError, match=r"toy\.norm"):
        build_op_table(catalog_of(implementation("toy.norm", "rms_norm", "nothing")), QUERY)
