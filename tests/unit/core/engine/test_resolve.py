"""What was left open is decided, what cannot work is refused, and torch is not needed for it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.arithmetic import fake_config

from pegboard.api.errors import ConfigError, ModelError, PegboardError, SelectionError
from pegboard.config.engine import EngineConfig


def _resolve(folder: Path, **settings: Any) -> EngineConfig:
    return fake_config(folder, **settings)[0]


def test_defaults_are_decided(tmp_path: Path) -> None:
    config = _resolve(
        tmp_path,
        attention_backend=None,
        block_size=None,
        max_num_seqs=None,
        max_num_batched_tokens=None,
        distributed_executor_backend=None,
    )
    assert config.model.dtype == "float32"
    assert config.model.max_model_len == 1024
    assert config.model.served_model_name == [config.model.model]
    assert (config.platform, config.attention_backend) == ("fake", "REFERENCE")
    assert (config.executor, config.loader, config.tokenizer) == ("uni", "none", "bytes")
    assert config.cache.block_size == 16
    assert config.cache.kv_cache_dtype == "float32"
    assert config.scheduler.max_num_seqs == 64
    assert config.scheduler.max_num_batched_tokens == 2048
    assert config.scheduler.max_num_queued_reqs is not None
    assert config.model.default_sampling == {"temperature": 0.5, "max_tokens": 9}
    assert [p.name for p in config.plugins] == ["builtin", "fake"]


def test_configuration_crosses_processes_unchanged(tmp_path: Path) -> None:
    config = _resolve(tmp_path)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=EngineConfig) == config


REFUSED: dict[str, tuple[dict[str, Any], type[PegboardError], str]] = {
    "missing model": ({"model": "/nowhere/x"}, ModelError, "/nowhere/x"),
    "too long": ({"max_model_len": 2000}, ConfigError, "2000.*1024"),
    "too short": ({"max_model_len": 1}, ConfigError, "at least 2"),
    "dtype": ({"dtype": "half"}, ConfigError, "float16.*float32, bfloat16"),
    "attention": ({"attention_backend": "NOPE"}, SelectionError, "NOPE"),
    "executor": ({"distributed_executor_backend": "nope"}, SelectionError, "nope"),
    "loader": ({"load_format": "nope"}, SelectionError, "nope"),
    "tokenizer": ({"tokenizer_mode": "nope"}, SelectionError, "nope"),
    "policy": ({"scheduling_policy": "nope"}, SelectionError, "nope"),
    "logits processor": ({"logits_processors": ["nope"]}, SelectionError, "nope"),
    "format": ({"config_format": "hf"}, ModelError, "format hf was asked for"),
    "fleet": ({"tensor_parallel_size": 3}, ConfigError, "divide over 1, 2, 4"),
    "uni fleet": (
        {"tensor_parallel_size": 2, "distributed_executor_backend": "uni"},
        SelectionError,
        "at most 1 worker",
    ),
    "budget": ({"max_num_batched_tokens": 4}, ConfigError, "max_num_seqs=8"),
    "no chunks": ({"enable_chunked_prefill": False}, ConfigError, "max_model_len=1024"),
    "template": ({"chat_template": "/nowhere.jinja"}, ConfigError, "chat-template"),
    "default sampling": (
        {"override_generation_config": {"temperature": -1}},
        ConfigError,
        "temperature is -1",
    ),
    "default sampling type": (
        {"override_generation_config": {"top_k": "x"}},
        ConfigError,
        "top_k is 'x'",
    ),
    "generation": ({"generation_config": "/nowhere"}, ConfigError, "generation-config"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    settings, error, match = REFUSED[name]
    with pytest.raises(error, match=match) as caught:
        _resolve(tmp_path, **settings)
    assert "\n" not in str(caught.value)


def test_overrides_and_template_reach_the_description(tmp_path: Path) -> None:
    config = _resolve(
        tmp_path,
        hf_overrides={"rope_parameters": {"rope_theta": 5.0}, "max_position_embeddings": 4096},
        chat_template="{{ messages }}",
        max_model_len=4096,
        num_gpu_blocks_override=300,
    )
    description = config.model.description
    assert description.config["rope_parameters"] == {"rope_theta": 5.0}
    assert description.config["hidden_size"] == 64
    assert description.chat_template == "{{ messages }}"


def test_generation_values_follow_the_option(tmp_path: Path) -> None:
    assert _resolve(tmp_path, generation_config="none").model.default_sampling == {}
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps({"top_k": 7, "eos_token_id": 3}))
    over = {"temperature": 0.25}
    config = _resolve(tmp_path, generation_config=str(tmp_path), override_generation_config=over)
    assert config.model.default_sampling == {"top_k": 7, "temperature": 0.25}


def test_front_end_imports_no_torch(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "import pegboard.engine.llm, pegboard.engine.async_llm, pegboard.engine.process_client\n"
        "from tests.support.arithmetic import fake_config\n"
        "from pegboard.engine.frontend import load_tokenizer\n"
        f"load_tokenizer(*fake_config(Path({str(tmp_path)!r})))\n"
        "heavy = {'torch', 'transformers', 'numpy', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_quantised_checkpoint_is_refused_rather_than_misread(tmp_path: Path) -> None:
    path = tmp_path / "model-awq.fake"
    path.touch()
    with pytest.raises(ModelError, match="quantised with awq"):
        _resolve(tmp_path, model=str(path))
