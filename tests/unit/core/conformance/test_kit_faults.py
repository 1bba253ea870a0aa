"""The kit catches each planted fault of a component, by the check that is meant to."""

import secrets
from pathlib import Path

import pytest

from pegboard.api.loaders import ModelLoaderSpec
from pegboard.api.platforms import PlatformSpec
from pegboard.api.plugin import ComponentSpec
from pegboard.catalog import Catalog, Entry, build_catalog
from pegboard.config.plugins import PluginsConfig
from pegboard.conformance import Subject, checks_of

HERE = Path(__file__).parent
PACKAGE = "tests.unit.core.conformance"


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    plugins = (str(HERE / "broken_models_plugin.py"), str(HERE / "broken_executors_plugin.py"))
    return build_catalog(PluginsConfig(enabled=plugins))


def must_catch(catalog: Catalog, entry: Entry, check_name: str) -> None:
    check = next(c for c in checks_of(entry.kind) if c.name == check_name)
    with pytest.raises((AssertionError, AttributeError, ValueError, NotImplementedError)):
        check.function(Subject(catalog, entry, secrets.randbits(31)))


def named(catalog: Catalog, kind: str, name: str) -> Entry:
    return next(e for e in catalog.entries(kind) if e.name == name)


def planted(spec: ComponentSpec) -> Entry:
    return Entry(kind=spec.kind, spec=spec, plugin="builtin", distribution="", version="")


@pytest.mark.parametrize(
    ("model", "caught_by"),
    [
        ("WrongRope", "logprobs_match_transformers"),
        ("WrongEpsilon", "logprobs_match_transformers"),
        ("SwappedWeights", "logprobs_match_transformers"),
        ("HeadOffByOneRow", "logprobs_match_transformers"),
        ("IgnoresWindow", "logprobs_match_transformers"),
        ("SwappedLayerTypes", "logprobs_match_transformers"),
        ("PositionsOffByOne", "chunked_prefill_matches_transformers"),
        ("RemembersTheLastBatch", "logprobs_match_transformers"),
        ("IgnoresUnknownTensors", "unexpected_tensor_is_named"),
    ],
)
def test_broken_model_is_caught(catalog: Catalog, model: str, caught_by: str) -> None:
    must_catch(catalog, named(catalog, "model_architectures", model), caught_by)


@pytest.mark.parametrize(
    ("loader", "caught_by"),
    [
        ("YieldsTwice", "stored_tensors_come_out"),
        ("ForgetsTheLast", "stored_tensors_come_out"),
        ("RoundsValues", "stored_tensors_come_out"),
        ("Shuffles", "second_pass_gives_the_same"),
        ("SwallowsDamage", "truncated_files_are_refused"),
        ("SwallowsDamage", "missing_file_is_refused"),
        ("WritesManyLines", "truncated_files_are_refused"),
    ],
)
def test_broken_loader_is_caught(catalog: Catalog, loader: str, caught_by: str) -> None:
    spec = ModelLoaderSpec(
        name=loader,
        target=f"{PACKAGE}.broken_loaders:{loader}",
        example="pegboard_loaders.examples:safetensors",
    )
    must_catch(catalog, planted(spec), caught_by)


def test_foreign_error_of_a_loader_is_caught(catalog: Catalog) -> None:
    spec = ModelLoaderSpec(
        name="LeaksForeignErrors",
        target=f"{PACKAGE}.broken_loaders:LeaksForeignErrors",
        example="pegboard_loaders.examples:safetensors",
    )
    check = next(c for c in checks_of("model_loaders") if c.name == "truncated_files_are_refused")
    with pytest.raises(Exception, match=r"(?i)header|deserializ"):
        check.function(Subject(catalog, planted(spec), 1))


@pytest.mark.parametrize(
    ("platform", "probe", "caught_by"),
    [
        ("CpuPlatform", "without_reason", "probe_gives_a_reason"),
        ("CpuPlatform", "without_device", "probe_gives_a_reason"),
        ("CpuPlatform", "honest", "probe_imports_no_torch"),
        ("WrongDevice", "honest", "device_opens_and_computes"),
        ("NegativeMemory", "honest", "memory_adds_up"),
        ("NegativeKV", "honest", "memory_adds_up"),
        ("InventsDtypes", "honest", "dtypes_are_real"),
        ("PretendsToCapture", "honest", "graphs_are_honest"),
    ],
)
def test_broken_platform_is_caught(
    catalog: Catalog, platform: str, probe: str, caught_by: str
) -> None:
    spec = PlatformSpec(
        name="fake",
        target=f"{PACKAGE}.broken_platforms:{platform}",
        detect=f"{PACKAGE}.broken_platforms:{probe}",
        device_type="cpu",
    )
    must_catch(catalog, planted(spec), caught_by)


@pytest.mark.parametrize(
    ("executor", "caught_by"),
    [
        ("LosesTheCause", "failing_start_says_why"),
        ("AnswersAnything", "named_calls_reach_every_worker"),
        ("MixesUpSteps", "tokens_are_those_of_the_reference_forward"),
    ],
)
def test_broken_executor_is_caught(catalog: Catalog, executor: str, caught_by: str) -> None:
    must_catch(catalog, named(catalog, "executors", executor), caught_by)
