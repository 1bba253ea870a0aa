"""The kit passes what is right and catches each planted fault, by the check that is meant to."""

import pytest

from pegboard.api.attention import AttentionBackendSpec
from pegboard.api.ops import OpImplementationSpec
from pegboard.api.plugin import ComponentSpec
from pegboard.catalog import Catalog, Entry, build_catalog
from pegboard.config.plugins import PluginsConfig
from pegboard.conformance import Outcome, Subject, run_checks
from pegboard.conformance.report import markdown_table

HERE = "tests.unit.core.conformance"
FEATURES = ("sliding_window", "soft_cap")


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return build_catalog(PluginsConfig(enabled=(), only=[]))


def outcomes(catalog: Catalog, spec: ComponentSpec, seed: int) -> list[Outcome]:
    entry = Entry(kind=spec.kind, spec=spec, plugin="builtin", distribution="", version="")
    return run_checks(spec.kind, Subject(catalog, entry, seed))


def failed(results: list[Outcome]) -> set[str]:
    return {o.check.name for o in results if o.status == "fail"}


def attention(name: str) -> AttentionBackendSpec:
    target = (
        f"{HERE}.broken_attention:{name}"
        if name != "ReferenceBackend"
        else "pegboard.builtin.reference_attention:ReferenceBackend"
    )
    return AttentionBackendSpec(
        name=name,
        target=target,
        dtypes=("float32",),
        head_sizes=(32,),
        features=FEATURES,
        graph_support="never",
    )


@pytest.fixture
def seed() -> int:
    import secrets

    return secrets.randbits(31)


def test_reference_attention_passes(catalog: Catalog, seed: int) -> None:
    results = outcomes(catalog, attention("ReferenceBackend"), seed)
    assert not failed(results), markdown_table(results)
    assert len(results) >= 12


@pytest.mark.parametrize(
    ("name", "caught_by"),
    [
        ("IgnoresWindow", "sliding_window_matches_dense_attention"),
        ("WindowOffByOne", "sliding_window_matches_dense_attention"),
        ("IgnoresSoftCap", "soft_cap_matches_dense_attention"),
        ("WrongScale", "prefill_matches_dense_attention"),
        ("ForgetsLastToken", "decode_matches_dense_attention"),
        ("SwapsBlockTables", "mixed_batch_matches_dense_attention"),
        ("WritesPadding", "padding_is_not_written"),
        ("OverwritesNullBlock", "padding_is_not_written"),
        ("MixesUpKVHeads", "head_ratios_match_dense_attention"),
        ("AddsNoise", "same_step_gives_same_bits"),
        ("LayoutLies", "layout_is_consistent"),
        ("LayoutGrows", "layout_is_consistent"),
    ],
)
def test_broken_attention_is_caught(catalog: Catalog, seed: int, name: str, caught_by: str) -> None:
    assert caught_by in failed(outcomes(catalog, attention(name), seed))


def op(op_name: str, target: str) -> OpImplementationSpec:
    return OpImplementationSpec(
        name=f"test.{op_name}", op=op_name, target=target, dtypes=("float32", "bfloat16")
    )


@pytest.mark.parametrize(
    "name",
    [
        "linear:Linear",
        "gate_up_linear:GateUpLinear",
        "logits:Logits",
        "rms_norm:rms_norm",
        "fused_add_rms_norm:fused_add_rms_norm",
        "silu_and_mul:silu_and_mul",
        "gelu_tanh_and_mul:gelu_tanh_and_mul",
        "rotary_embedding:rotary_embedding",
        "embedding:embedding",
    ],
)
def test_references_pass(catalog: Catalog, seed: int, name: str) -> None:
    op_name, _, attribute = name.partition(":")
    results = outcomes(catalog, op(op_name, f"pegboard.ops.reference:{attribute}"), seed)
    assert not failed(results), markdown_table(results)


@pytest.mark.parametrize(
    ("op_name", "attribute", "caught_by"),
    [
        ("rms_norm", "rms_norm_without_weight", "matches_reference"),
        ("rms_norm", "rms_norm_in_low_precision", "matches_reference"),
        ("rms_norm", "rms_norm_of_other_shape", "matches_reference"),
        ("rms_norm", "rms_norm_in_place", "keeps_what_it_may_not_change"),
        ("rms_norm", "rms_norm_with_noise", "same_call_gives_same_bits"),
        ("fused_add_rms_norm", "residual_not_written", "matches_reference"),
        ("linear", "LinearWithoutBias", "matches_reference"),
        ("linear", "LinearThatKeepsViews", "matches_reference"),
        ("linear", "LinearWithSecondCopy", "packed_weights_know_their_bytes"),
        ("logits", "HeadWithRoundedRows", "head_embeds_the_rows_it_was_given"),
        ("not_an_op", "rms_norm_in_place", "matches_reference"),
    ],
)
def test_broken_op_is_caught(
    catalog: Catalog, seed: int, op_name: str, attribute: str, caught_by: str
) -> None:
    results = outcomes(catalog, op(op_name, f"{HERE}.broken_ops:{attribute}"), seed)
    assert caught_by in failed(results), markdown_table(results)


def test_table_names_component_check_result_and_detail(catalog: Catalog, seed: int) -> None:
    results = outcomes(catalog, op("rms_norm", f"{HERE}.broken_ops:rms_norm_in_place"), seed)
    table = markdown_table(results)
    assert "| test.rms_norm | keeps_what_it_may_not_change | fail | AssertionError:" in table
    assert table.endswith(f"{sum(o.status == 'skip' for o in results)} skip")
