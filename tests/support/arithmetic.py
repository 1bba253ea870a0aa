"""Options and configurations of engines on the fake plugin: start in a blink, need no model."""

from pathlib import Path
from typing import Any

from pegboard.catalog import Catalog, build_catalog
from pegboard.config.engine import EngineConfig, EngineOptions
from pegboard.config.load import load_options
from pegboard.engine.resolve import resolve

PLUGIN_FILE = str(Path(__file__).with_name("arithmetic_plugin.py"))


def fake_options(folder: Path, **settings: Any) -> EngineOptions:
    """Options of an engine on a fake checkpoint written into `folder`."""
    model = folder / "model.fake"
    model.touch()
    chosen = {
        "model": str(model),
        "distributed_executor_backend": "fake",
        "attention_backend": "REFERENCE",
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "block_size": 16,
        "num_gpu_blocks_override": 200,
        "log_level": "warning",
        "only_plugins": [PLUGIN_FILE],
        "plugins": [PLUGIN_FILE],
        **settings,
    }
    return load_options(chosen)


def fake_catalog(options: EngineOptions) -> Catalog:
    """The core and the fake plugin."""
    return build_catalog(options.plugins)


def fake_config(folder: Path, **settings: Any) -> tuple[EngineConfig, Catalog]:
    """A resolved configuration and its catalog."""
    options = fake_options(folder, **settings)
    catalog = fake_catalog(options)
    return resolve(options, catalog), catalog
