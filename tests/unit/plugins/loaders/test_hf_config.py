import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, Gemma3TextConfig, LlamaConfig, Qwen2Config, Qwen3Config

from pegboard.api.errors import ModelError
from pegboard.api.models import ModelDescription
from pegboard.api.plugin import ComponentContext
from pegboard_loaders.hf_config import HfConfigReader

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 256,
    "torch_dtype": "bfloat16",
    "eos_token_id": 2,
    "bos_token_id": 1,
}
GEMMA3_WRAPPER: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "eos_token_id": [1, 106],
    "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1152},
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
}


def write(folder: Path, **files: Any) -> Path:
    for name, value in files.items():
        text = value if isinstance(value, str) else json.dumps(value)
        (folder / f"{name}.json").write_text(text)
    return folder


def read(folder: Path) -> ModelDescription:
    return HfConfigReader(ComponentContext(plugin="loaders")).read(str(folder))


def read_config(folder: Path, **changes: Any) -> ModelDescription:
    config = {key: value for key, value in {**LLAMA, **changes}.items() if value is not ...}
    return read(write(folder, config=config))


def test_folder_is_described(tmp_path: Path) -> None:
    write(
        tmp_path,
        config=LLAMA,
        generation_config={"eos_token_id": [2, 5], "temperature": 0.6, "top_p": 0.9},
        tokenizer_config={"chat_template": "{{ 1 }}"},
    )
    description = read(tmp_path)
    assert description.architectures == ("LlamaForCausalLM",)
    assert description.dtype == "bfloat16"
    assert (description.vocab_size, description.max_model_len) == (100, 256)
    assert description.eos_token_ids == (2, 5)
    assert description.bos_token_id == 1
    assert description.generation["temperature"] == 0.6
    assert description.chat_template == "{{ 1 }}"
    assert (description.loader, description.tokenizer) == ("safetensors", "hf")
    assert description.config["num_key_value_heads"] == 4
    assert description.config["head_dim"] == 16
    assert description.config["rope_parameters"] == {
        "rope_theta": 10_000.0,
        "rope_type": "default",
    }


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 5e5,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            }
        ),
        Qwen2Config(),
        Qwen3Config(),
        Gemma3TextConfig(),
    ],
    ids=lambda config: config.model_type,
)
@pytest.mark.parametrize("left_out", [False, True])
def test_configuration_equals_transformers(tmp_path: Path, config: Any, left_out: bool) -> None:
    """Written whole, or without the values that equal the class's defaults."""
    fields = config.to_diff_dict() if left_out else config.to_dict()
    needed = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    for key in (*needed, "max_position_embeddings", "intermediate_size"):
        fields.setdefault(key, getattr(config, key))
    write(tmp_path, config={**fields, "architectures": ["A"]})
    ours = read(tmp_path).config
    theirs = AutoConfig.from_pretrained(tmp_path)
    for key in (
        "head_dim",
        "num_key_value_heads",
        "rms_norm_eps",
        "tie_word_embeddings",
        "hidden_act",
        "hidden_activation",
        "attention_bias",
        "sliding_window",
        "query_pre_attn_scalar",
    ):
        if hasattr(theirs, key) and (key != "sliding_window" or config.model_type[:3] == "gem"):
            assert ours.get(key) == getattr(theirs, key), key
    assert ours["rope_parameters"] == theirs.rope_parameters
    if config.model_type == "gemma3_text":
        assert ours["layer_types"] == theirs.layer_types


def test_text_model_is_taken_out_of_its_wrapper(tmp_path: Path) -> None:
    description = read(write(tmp_path, config=GEMMA3_WRAPPER))
    assert "Gemma3ForCausalLM" in description.architectures
    config = description.config
    assert config["hidden_size"] == 2560
    assert config["head_dim"] == 256
    assert "vision_config" not in config
    assert description.dtype == "bfloat16"
    assert description.eos_token_ids == (1, 106)
    assert config["rope_parameters"]["full_attention"] == {
        "rope_theta": 1e6,
        "factor": 8.0,
        "rope_type": "linear",
    }
    assert config["rope_parameters"]["sliding_attention"]["rope_theta"] == 1e4
    assert config["layer_types"].count("full_attention") == 5


def test_yarn_stretches_the_context(tmp_path: Path) -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    description = read_config(tmp_path, rope_scaling=scaling, rope_theta=1e6)
    assert description.max_model_len == 1024
    assert description.config["rope_parameters"] == {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 4.0,
        "original_max_position_embeddings": 256,
    }


def test_template_file_outranks_the_tokenizers(tmp_path: Path) -> None:
    write(tmp_path, config=LLAMA, tokenizer_config={"chat_template": "old"})
    (tmp_path / "chat_template.jinja").write_text("new")
    assert read(tmp_path).chat_template == "new"


def test_default_of_named_templates_is_taken(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    write(tmp_path, config=LLAMA, tokenizer_config={"chat_template": named})
    assert read(tmp_path).chat_template == "d"


def test_code_in_a_checkpoint_is_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / "modeling_evil.py").write_text("raise SystemExit('ran')")
    description = read_config(tmp_path, auto_map={"AutoConfig": "modeling_evil.Config"})
    assert description.architectures == ("LlamaForCausalLM",)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architectures": ...}, "architectures is None"),
        ({"architectures": []}, "architectures is"),
        ({"architectures": [7]}, "architectures is"),
        ({"hidden_size": ...}, "no hidden_size"),
        ({"vocab_size": None}, "no vocab_size"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"hidden_size": 2**40}, "hidden_size"),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_attention_heads": True}, "num_attention_heads is True"),
        ({"num_key_value_heads": 3}, "not a multiple"),
        ({"head_dim": 7}, "head_dim is 7"),
        ({"vocab_size": 1.5}, "vocab_size is 1.5"),
        ({"max_position_embeddings": 10**18}, "max_position_embeddings"),
        ({"rms_norm_eps": -1}, "rms_norm_eps"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps"),
        ({"torch_dtype": "int3"}, "int3"),
        ({"rope_theta": "big"}, "rope_theta"),
        ({"rope_theta": 0}, "rope_theta"),
        ({"rope_scaling": 7}, "rotary settings"),
        ({"rope_scaling": {"type": "yarn"}}, "factor is None"),
        ({"rope_scaling": {"rope_type": ["x"]}}, "rope_type"),
        ({"eos_token_id": "two"}, "no token id"),
        ({"eos_token_id": [-1]}, "no token id"),
        ({"quantization_config": 7}, "quantization_config"),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 0}, "sliding_window_pattern"),
    ],
)
def test_absurd_configuration_is_refused(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ModelError) as caught:
        read_config(tmp_path, **changes)
    message = str(caught.value)
    assert reason in message
    assert str(tmp_path) in message
    assert "\n" not in message


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"a": ', "[" * 100_000, "\x00"])
@pytest.mark.parametrize("name", ["config", "generation_config", "tokenizer_config"])
def test_malformed_json_is_refused_with_its_file(tmp_path: Path, name: str, text: str) -> None:
    write(tmp_path, **{"config": LLAMA, name: text})
    with pytest.raises(ModelError) as caught:
        read(tmp_path)
    assert f"{name}.json" in str(caught.value)


def test_invalid_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(ModelError, match=r"config\.json"):
        read(tmp_path)


def test_only_folders_with_a_configuration_are_recognised(tmp_path: Path) -> None:
    reader = HfConfigReader(ComponentContext(plugin="loaders"))
    assert "no config.json" in (reader.recognises(str(tmp_path)) or "")
    write(tmp_path, config=LLAMA)
    assert reader.recognises(str(tmp_path)) is None
    assert "file" in (reader.recognises(str(tmp_path / "config.json")) or "")
