import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.support.checkpoints import describe_gguf
from tests.support.gguf_files import GgufTensorSource, write_gguf

from pegboard.api.errors import ModelError
from pegboard.api.plugin import ComponentContext
from pegboard_loaders.gguf.config import GgufConfigReader

LLAMA = {
    "llama.embedding_length": 64,
    "llama.block_count": 12,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.context_length": 128,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.tokens": ["a", "b", "<|im_end|>", "<|eot_id|>"],
    "tokenizer.ggml.token_type": [1, 1, 3, 1],
    "tokenizer.ggml.eos_token_id": 1,
    "tokenizer.ggml.bos_token_id": 0,
}
EMBEDDING = GgufTensorSource(np.zeros((4, 64)))


def described(path: Path, family: str = "llama", extra=None, **changes: object):
    metadata = {key.replace("llama.", f"{family}."): value for key, value in LLAMA.items()}
    metadata.update(changes)
    metadata = {key: value for key, value in metadata.items() if value is not None}
    tensors = {"token_embd.weight": EMBEDDING, **(extra or {})}
    return describe_gguf(write_gguf(path / "model.gguf", family, metadata, tensors))


def test_default_model_is_described(smollm2_gguf: Path) -> None:
    description = describe_gguf(smollm2_gguf)
    assert description.architectures == ("LlamaForCausalLM",)
    assert description.config["rope_parameters"] == {
        "rope_type": "default",
        "rope_theta": 100_000.0,
    }
    assert description.config["rms_norm_eps"] == 1e-5
    assert description.config["tie_word_embeddings"] is True
    assert description.vocab_size == 49152
    assert description.max_model_len == 8192
    assert description.eos_token_ids[0] == 2
    assert description.loader == description.tokenizer == description.format == "gguf"
    assert "<|im_start|>" in (description.chat_template or "")


def test_reading_imports_no_torch(smollm2_gguf: Path) -> None:
    code = (
        "import sys\n"
        "from pegboard_loaders.gguf.config import GgufConfigReader\n"
        "from pegboard.api.plugin import ComponentContext\n"
        "GgufConfigReader(ComponentContext(plugin='loaders')).read(sys.argv[1])\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(smollm2_gguf)], check=True, timeout=60)


def test_end_ids_are_those_of_the_file_and_of_turns(tmp_path: Path) -> None:
    assert described(tmp_path).eos_token_ids == (1, 2)
    changes = {"tokenizer.ggml.eot_token_id": 3}
    assert described(tmp_path, **changes).eos_token_ids == (1, 3, 2)


def test_gemma3_gets_its_pattern_and_both_bases(tmp_path: Path) -> None:
    changes = {
        "gemma3.attention.sliding_window": 512,
        "gemma3.rope.freq_base": 1e6,
        "gemma3.rope.scaling.type": "linear",
        "gemma3.rope.scaling.factor": 8.0,
    }
    config = described(tmp_path, "gemma3", **changes).config
    full = [index for index, kind in enumerate(config["layer_types"]) if kind == "full_attention"]
    assert full == [5, 11]
    assert config["sliding_window"] == 512
    assert config["rope_parameters"] == {
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }


def llama3_divisors(factor: float) -> np.ndarray:
    """Llama 3's published scaling, element by element."""
    divisors = []
    for index in range(8):
        wavelength = 2 * math.pi * 500_000.0 ** (2 * index / 16)
        if wavelength < 8192 / 4:
            divisors.append(1.0)
        elif wavelength > 8192:
            divisors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / 3
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors)


def test_llama3_scaling_is_recovered(tmp_path: Path) -> None:
    table = {"rope_freqs.weight": GgufTensorSource(llama3_divisors(32.0))}
    changes = {"llama.rope.freq_base": 500_000.0}
    rope = described(tmp_path, extra=table, **changes).config["rope_parameters"]
    assert rope == {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def test_other_table_of_frequencies_is_refused(tmp_path: Path) -> None:
    table = {"rope_freqs.weight": GgufTensorSource(np.linspace(1, 3, 8))}
    with pytest.raises(ModelError, match="no Llama 3 scaling"):
        described(tmp_path, extra=table)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"llama.block_count": None}, "no llama.block_count"),
        ({"llama.block_count": 0}, "num_hidden_layers is 0"),
        ({"llama.block_count": 2**31}, "num_hidden_layers"),
        ({"llama.attention.head_count": "four"}, "llama.attention.head_count is a str"),
        ({"llama.attention.head_count": [4, 4]}, "one number for all layers"),
        ({"llama.attention.head_count": 0}, "num_attention_heads is 0"),
        ({"llama.attention.head_count_kv": 3}, "not a multiple"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "rms_norm_eps"),
        ({"llama.context_length": 2**31}, "max_position_embeddings"),
        ({"llama.rope.freq_base": -1.0}, "freq_base"),
        ({"llama.rope.freq_base": float("inf")}, "freq_base"),
        ({"llama.rope.scaling.type": "magic"}, "'magic'"),
        ({"llama.rope.dimension_count": 8}, "8 of 16 dimensions"),
        ({"llama.expert_count": 8}, "mixture of experts"),
        ({"general.architecture": None, "tokenizer.ggml.eos_token_id": 77}, "outside"),
        ({"tokenizer.chat_template": 5}, "not text"),
        ({"split.count": 3}, "one of 3 parts"),
        ({"tokenizer.ggml.tokens": None}, "tokens is missing"),
    ],
)
def test_absurd_metadata_is_refused_with_the_files_name(
    tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(ModelError, match=reason) as caught:
        described(tmp_path, **changes)
    assert "model.gguf" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_architecture_is_refused_with_those_known(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"'rwkv6'.*llama, qwen2, qwen3, gemma3"):
        described(tmp_path, "rwkv6")


def test_folder_and_other_files_are_not_recognised(tmp_path: Path) -> None:
    reader = GgufConfigReader(ComponentContext(plugin="loaders"))
    (tmp_path / "x.gguf").write_bytes(b"PK\3\4")
    assert "folder" in (reader.recognises(str(tmp_path)) or "")
    assert "GGUF" in (reader.recognises(str(tmp_path / "x.gguf")) or "")
    assert reader.recognises(str(tmp_path / "absent.gguf")) is not None
