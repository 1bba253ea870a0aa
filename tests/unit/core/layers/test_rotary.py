"""Rotary tables against transformers' frequencies, in both spellings of the configuration."""

import pytest
import torch
from tests.support.models import SimpleModelContext
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from pegboard.api.errors import ModelError
from pegboard.layers import Rotary, rope_parameters
from pegboard.layers.rope_scaling import ROPE_KINDS, rope_frequencies

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LONG = [1.0 + i for i in range(8)]
KINDS = {
    "linear": {"rope_type": "linear", "factor": 2.5},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn-betas": {**YARN, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn-untruncated": {**YARN, "truncate": False},
    "yarn-mscale": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.2},
    "yarn-given": {**YARN, "attention_factor": 0.9},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
    "longrope": {
        "rope_type": "longrope",
        "short_factor": [1.0] * 8,
        "long_factor": LONG,
        "original_max_position_embeddings": 64,
    },
}


def config_of(parameters, **more) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        max_position_embeddings=256,
        rope_parameters={"rope_theta": 5_000.0, **parameters},
        **more,
    )


@pytest.mark.parametrize("length", [200, 700])
@pytest.mark.parametrize("kind", KINDS)
def test_frequencies_equal_transformers(kind: str, length: int) -> None:
    config = config_of(KINDS[kind])
    function = ROPE_INIT_FUNCTIONS[KINDS[kind]["rope_type"]]
    want, factor = function(config, torch.device("cpu"), seq_len=length)

    got = rope_frequencies(rope_parameters(config.to_dict()), 16, length)

    torch.testing.assert_close(got[0], want.float())
    assert got[1] == pytest.approx(factor)


def test_every_kind_is_compared() -> None:
    assert {KINDS[kind]["rope_type"] for kind in KINDS} | {"default"} == set(ROPE_KINDS)


def test_former_spelling_means_the_same() -> None:
    today = {
        "max_position_embeddings": 256,
        "rope_parameters": {**LLAMA3, "rope_theta": 5_000.0, "partial_rotary_factor": 0.5},
    }
    scaling = {key: value for key, value in LLAMA3.items() if key != "rope_type"}
    former = {
        "max_position_embeddings": 256,
        "rope_theta": 5_000.0,
        "partial_rotary_factor": 0.5,
        "rope_scaling": {**scaling, "type": "llama3"},
    }
    assert rope_parameters(today) == rope_parameters(former)
    bare = rope_parameters({"max_position_embeddings": 32, "rope_scaling": None})
    assert (bare["rope_type"], bare["rope_theta"]) == ("default", 10_000.0)


def test_a_table_a_layer_type() -> None:
    config = {
        "max_position_embeddings": 16,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    }
    assert rope_parameters(config, "full_attention")["factor"] == 8.0
    assert rope_parameters(config, "sliding_attention")["rope_theta"] == 1e4


def test_the_table_holds_cosines_then_sines_of_each_position() -> None:
    context = SimpleModelContext(config_of({}).to_dict(), max_model_len=37)
    rotary = Rotary.from_config(context, 16)
    angles = 5.0 * 5_000.0 ** (-torch.arange(0, 16, 2) / 16)
    assert rotary.cos_sin.shape == (37, 16)
    assert rotary.cos_sin.dtype == torch.float32
    torch.testing.assert_close(rotary.cos_sin[5], torch.cat((angles.cos(), angles.sin())))


def test_a_part_of_the_head_turns() -> None:
    context = SimpleModelContext(config_of({"partial_rotary_factor": 0.25}).to_dict())
    assert Rotary.from_config(context, 16).cos_sin.shape[1] == 4


def test_the_attention_factor_is_in_the_table() -> None:
    context = SimpleModelContext(config_of(KINDS["yarn-given"]).to_dict())
    cosines, sines = Rotary.from_config(context, 16).cos_sin.chunk(2, -1)
    torch.testing.assert_close(cosines**2 + sines**2, torch.full_like(sines, 0.81))


def test_an_unknown_kind_is_refused_by_name() -> None:
    parameters = rope_parameters(
        {"max_position_embeddings": 8, "rope_scaling": {"rope_type": "spiral"}}
    )
    with pytest.raises(ModelError, match=r"'spiral'.*llama3"):
        rope_frequencies(parameters, 8, 8)
