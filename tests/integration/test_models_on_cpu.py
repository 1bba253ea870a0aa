"""Every family on the CPU plugin's ops and attention, chosen by the catalog."""

import importlib
import random
from pathlib import Path

import pytest
import torch
from tests.support.models import Checkpoint, PagedDriver, SimpleModelContext

from pegboard.api.models import ModelArchitectureQuery
from pegboard.api.ops import OpQuery
from pegboard.api.platforms import PlatformQuery
from pegboard.catalog.build import build_catalog
from pegboard.catalog.catalog import Catalog
from pegboard.config.plugins import PluginsConfig
from pegboard.ops.dispatch import build_op_table

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 4e-2}
NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    pytest.importorskip("pegboard_cpu")
    return build_catalog(PluginsConfig(enabled=(), only=["cpu", "models"]))


@pytest.fixture(scope="module")
def features(catalog: Catalog) -> tuple[str, ...]:
    platform = catalog.select("platforms", PlatformQuery(name="cpu"))
    found = catalog.detect(platform.entry).features
    if "kernels" not in found:
        pytest.skip("the native kernels are not built")
    return found


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gemma3"])
def test_logits_equal_transformers(
    catalog: Catalog,
    features: tuple[str, ...],
    family: str,
    dtype: torch.dtype,
    tied: bool,
    tmp_path: Path,
) -> None:
    checkpoint = Checkpoint.make(
        tmp_path, family, dtype=dtype, tie_word_embeddings=tied, head_dim=16
    )
    table = build_op_table(
        catalog,
        OpQuery(
            op="",
            platform="cpu",
            platform_features=features,
            dtype=NAMES[dtype],
            kv_layout="cpu_paged",
        ),
    )
    context = SimpleModelContext(checkpoint.config, dtype=dtype, ops=table)
    architectures = tuple(checkpoint.config["architectures"])
    chosen = catalog.select(
        "model_architectures", ModelArchitectureQuery(architectures=architectures)
    )
    model = catalog.load(chosen.entry)(context)
    model.load_weights(checkpoint.weights())
    backend_class = importlib.import_module("pegboard_cpu.attention").CpuAttentionBackend
    driver = PagedDriver(model, context, block_size=16, backend_class=backend_class)
    tokens = [random.randrange(199) for _ in range(60)]

    parts = [driver.step({"a": tokens[:21], "b": tokens[:3]}, padding=2)["a"]]
    parts.append(driver.step({"b": [5], "a": tokens[21:40]})["a"])
    parts += [driver.step({"a": [token], "b": [7]})["a"] for token in tokens[40:]]

    got, want = torch.cat(parts), checkpoint.logits(tokens)
    assert (got - want).abs().max() <= TOLERANCE[dtype] * want.abs().max()
    used = {choice.op: choice.implementation for choice in table.choices}
    assert used["rope_and_write_kv"].startswith("cpu.")
    assert used["linear"].startswith("cpu.")
