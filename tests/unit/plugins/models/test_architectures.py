"""Every architecture against transformers: the same random weights, the same logits."""

import importlib
import itertools
import random
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from tests.support.models import (
    Checkpoint,
    PagedDriver,
    SimpleModelContext,
    ThreadGroup,
    reference_ops,
)

from pegboard.api.errors import ModelError
from pegboard.layers import packed_bytes
from pegboard.ops import reference
from pegboard_models.plugin import model_architectures

TARGETS = {spec.name: spec.target for spec in model_architectures()}
FLOAT32 = 1e-4  # largest difference of logits over the largest logit
BFLOAT16 = 4e-2

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}

#: name: (family, what differs)
CASES = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-one-kv-head": ("llama", {"num_key_value_heads": 1}),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama-yarn": ("llama", {"rope_parameters": YARN}),
    "llama-linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0}},
    ),
    "mistral": ("mistral", {}),
    "mistral-unlimited": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-sliding": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {}),
    "qwen3-tied-biases": ("qwen3", {"tie_word_embeddings": True, "attention_bias": True}),
    "gemma3": ("gemma3", {}),
    "gemma3-untied-capped": (
        "gemma3",
        {"tie_word_embeddings": False, "final_logit_softcapping": 5.0},
    ),
    "gemma3-linear": (
        "gemma3",
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e4},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            }
        },
    ),
}


def build(config: dict, **options):
    module, _, name = TARGETS[config["architectures"][0]].partition(":")
    context = SimpleModelContext(config, **options)
    return getattr(importlib.import_module(module), name)(context), context


def ours(checkpoint: Checkpoint, tokens: list[int], chunks: list[int], **options) -> torch.Tensor:
    """Logits of `tokens`, computed in `chunks` beside another sequence."""
    model, context = build(checkpoint.config, **options)
    model.load_weights(checkpoint.weights())
    driver = PagedDriver(model, context, block_size=random.choice([1, 4, 16]))
    parts, start = [], 0
    for chunk in chunks:
        other = [random.randrange(199) for _ in range(random.choice([1, 3]))]
        step = {"ours": tokens[start : start + chunk], "other": other}
        parts.append(driver.step(step, padding=random.choice([0, 2]))["ours"])
        start += chunk
    return torch.cat(parts)


def difference(got: torch.Tensor, want: torch.Tensor) -> float:
    return ((got - want).abs().max() / want.abs().max()).item()


def some_tokens(count: int) -> list[int]:
    return [random.randrange(199) for _ in range(count)]


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_transformers_in_float32(name: str, tmp_path: Path) -> None:
    family, overrides = CASES[name]
    checkpoint = Checkpoint.make(tmp_path, family, **overrides)
    tokens = some_tokens(60)

    got = ours(checkpoint, tokens, [23, 11, 1, 1, 8] + [1] * 16)

    assert difference(got, checkpoint.logits(tokens)) <= FLOAT32


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3"])
def test_logits_are_near_transformers_in_bfloat16(family: str, tmp_path: Path) -> None:
    checkpoint = Checkpoint.make(tmp_path, family, dtype=torch.bfloat16)
    tokens = some_tokens(40)

    got = ours(checkpoint, tokens, [30] + [1] * 10, dtype=torch.bfloat16)

    assert difference(got, checkpoint.logits(tokens)) <= BFLOAT16


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_fused_ops_change_nothing(family: str, tmp_path: Path) -> None:
    checkpoint = Checkpoint.make(tmp_path, family)
    tokens = some_tokens(30)
    fused = reference_ops(
        rope_and_write_kv=reference.rope_and_write_kv, gate_up_linear=reference.GateUpLinear()
    )

    got = ours(checkpoint, tokens, [17, 5] + [1] * 8, ops=fused)

    assert difference(got, checkpoint.logits(tokens)) <= FLOAT32


def parallel_cases() -> list[tuple[str, int, int]]:
    """(family, kv heads, ranks): whole heads a rank, and fewer KV heads than ranks."""
    families = ["llama", "qwen2", "qwen3", "gemma3"]
    return [
        *((family, heads, 2) for family, heads in itertools.product(families, (2, 1))),
        ("llama", 3, 3),
        ("llama", 2, 4),
        ("qwen3", 1, 4),
    ]


@pytest.mark.parametrize(("family", "kv_heads", "size"), parallel_cases())
def test_tensor_parallel_ranks_agree_with_one(
    family: str, kv_heads: int, size: int, tmp_path: Path
) -> None:
    heads = 12 if size == 4 else 6
    # An odd vocabulary, so that the last rank's part is padded; untied and tied.
    overrides = {"num_key_value_heads": kv_heads, "num_attention_heads": heads}
    tied = random.choice([True, False])
    hidden = {"hidden_size": 96} if size == 4 else {}
    checkpoint = Checkpoint.make(
        tmp_path, family, tie_word_embeddings=tied, intermediate_size=96, **overrides, **hidden
    )
    tokens = some_tokens(25)
    want = checkpoint.logits(tokens)

    def rank(group: ThreadGroup) -> torch.Tensor:
        model, context = build(checkpoint.config, tensor_parallel=group)
        model.load_weights(checkpoint.weights())
        driver = PagedDriver(model, context)
        steps = [tokens[:14], *([token] for token in tokens[14:])]
        return torch.cat([driver.step({"a": step})["a"] for step in steps])

    for got in ThreadGroup.run(size, rank):
        assert difference(got, want) <= FLOAT32


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3"])
def test_weights_are_held_once(family: str, tmp_path: Path) -> None:
    checkpoint = Checkpoint.make(tmp_path, family, tie_word_embeddings=True)
    model, _ = build(checkpoint.config, dtype=torch.bfloat16)
    model.load_weights(checkpoint.weights())

    stored = dict(checkpoint.weights())
    norms = sum(t.numel() for name, t in stored.items() if name.endswith("norm.weight"))
    others = sum(t.numel() for name, t in stored.items() if not name.endswith("norm.weight"))
    assert packed_bytes(model) == others * 2 + norms * 4


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3"])
def test_declared_shapes_are_the_checkpoints(family: str, tmp_path: Path) -> None:
    checkpoint = Checkpoint.make(tmp_path, family)
    model, _ = build(checkpoint.config)
    stored = {name: tuple(tensor.shape) for name, tensor in checkpoint.weights()}
    assert dict(model.weight_shapes()) == stored


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_planted_loading_faults_are_named_in_one_line(family: str, tmp_path: Path) -> None:
    checkpoint = Checkpoint.make(tmp_path, family)
    weights = dict(checkpoint.weights())
    lost = random.choice([name for name in weights if "mlp" in name])
    bent = random.choice([name for name in weights if "self_attn" in name and "proj" in name])
    del weights[lost]
    weights[bent] = weights[bent][:-1]
    weights["model.layers.7.self_attn.q_proj.weight"] = torch.zeros(1)
    model, _ = build(checkpoint.config)

    with pytest.raises(ModelError) as caught:
        model.load_weights(weights.items())

    message = str(caught.value)
    assert f"1 missing: {lost}" in message
    assert f"{bent} is {list(weights[bent].shape)}" in message
    assert "1 unexpected: model.layers.7" in message
    assert "\n" not in message


def test_a_size_that_does_not_divide_is_refused_with_those_that_do(tmp_path: Path) -> None:
    checkpoint = Checkpoint.make(tmp_path, "llama")

    class Group(ThreadGroup):
        def __init__(self) -> None:
            self.rank, self.size = 0, 4

    with pytest.raises(ModelError, match=r"is 4, .*sizes that do: 1, 2 \(--tensor-parallel-size\)"):
        build(checkpoint.config, tensor_parallel=Group())


def test_gemma3_reads_former_configurations(tmp_path: Path) -> None:
    parameters = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e4},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    }
    checkpoint = Checkpoint.make(
        tmp_path, "gemma3", layer_types=None, sliding_window_pattern=3, rope_parameters=parameters
    )
    tokens = some_tokens(30)
    former = dict(checkpoint.config)
    for name in ("layer_types", "rope_parameters", "_sliding_window_pattern"):
        former.pop(name, None)
    former |= {
        "sliding_window_pattern": 3,
        "rope_theta": 1e4,
        "rope_local_base_freq": 100.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    checkpoint.config = former

    assert difference(ours(checkpoint, tokens, [20, 10]), checkpoint.logits(tokens)) <= FLOAT32


def test_gemma3_takes_the_text_model_out_of_a_checkpoint_with_images(tmp_path: Path) -> None:
    text = Checkpoint.make(tmp_path / "text", "gemma3").config
    vision = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    config = transformers.Gemma3Config(
        text_config={**text, "initializer_range": 0.3},
        vision_config=vision,
        mm_tokens_per_image=4,
        image_token_index=198,
    )
    whole = transformers.Gemma3ForConditionalGeneration(config).eval()
    whole.save_pretrained(tmp_path / "whole")
    tokens = [random.randrange(190) for _ in range(30)]
    with torch.no_grad():
        ids = torch.tensor([tokens])
        want = whole(input_ids=ids, token_type_ids=torch.zeros_like(ids)).logits[0]
    model, context = build(text)

    model.load_weights(load_file(tmp_path / "whole" / "model.safetensors").items())

    assert difference(PagedDriver(model, context).step({"a": tokens})["a"], want) <= FLOAT32


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_compiler_splits_the_model_at_attention(family: str, tmp_path: Path) -> None:
    checkpoint = Checkpoint.make(tmp_path, family)
    tokens = some_tokens(20)
    model, context = build(checkpoint.config)
    model.load_weights(checkpoint.weights())
    calls = []

    def count(graph: torch.fx.GraphModule, inputs: list):
        attention = torch.ops.pegboard.attention.default
        calls.append(sum(node.target is attention for node in graph.graph.nodes))
        return graph.forward

    driver = PagedDriver(model, context)
    compiled = torch.compile(model.__call__, backend=count, fullgraph=True, dynamic=True)
    driver.model = Forwarded(compiled, model)

    got = torch.cat([driver.step({"a": part})["a"] for part in (tokens[:9], tokens[9:])])

    assert difference(got, checkpoint.logits(tokens)) <= FLOAT32
    assert set(calls) == {3}


class Forwarded:
    """A compiled forward pass with the model's own head."""

    def __init__(self, forward, model) -> None:
        self._forward = forward
        self.compute_logits = model.compute_logits

    def __call__(self, *args: torch.Tensor) -> torch.Tensor:
        return self._forward(*args)
