"""Greedy text is transformers' float32 text, whatever the engine does to batch and cache."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.support.checkpoints import smollm2_folder  # noqa: F401 -- a fixture
from tests.support.greedy import PROMPTS, GreedyReference
from tests.support.models import Checkpoint

from pegboard import LLM, SamplingParams
from pegboard.api.errors import ConfigError
from pegboard.api.outputs import RequestOutput

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

_TOKENS = 24
_BASE: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_seqs": 32,
    "kv_cache_memory_bytes": 256 << 20,
    "log_level": "warning",
}
_PARAMS = SamplingParams(temperature=0, max_tokens=_TOKENS, ignore_eos=True)


@pytest.fixture(scope="module")
def reference(smollm2_folder: Path) -> Iterator[GreedyReference]:  # noqa: F811
    model = transformers.AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32)
    yield GreedyReference(model)
    del model


def _run(
    model: Path, reference: GreedyReference, rounds: int = 1, **settings: Any
) -> tuple[list[RequestOutput], dict[str, Any]]:
    """Run all prompts at once, `rounds` times; check each; return the last round and the stats."""
    first: list[RequestOutput] = []
    outputs: list[RequestOutput] = []
    with LLM(str(model), **{**_BASE, **settings}) as llm:
        for _ in range(rounds):
            outputs = llm.generate(PROMPTS, _PARAMS)
            for output in outputs:
                reference.check(output.prompt_token_ids, output.outputs[0].token_ids)
            first = first or outputs
            _same(outputs, first, reference)
        stats = llm.get_metrics()
    return outputs, stats


def _same(
    outputs: list[RequestOutput], others: list[RequestOutput], reference: GreedyReference
) -> None:
    """Texts are equal, unless the reference found two logits of that text that either may win."""
    for one, other in zip(outputs, others, strict=True):
        reference.check_equal(
            one.prompt_token_ids, one.outputs[0].token_ids, other.outputs[0].token_ids
        )
        if one.outputs[0].token_ids == other.outputs[0].token_ids:
            assert one.outputs[0].text == other.outputs[0].text


@pytest.fixture(scope="module")
def plain(smollm2_folder: Path, reference: GreedyReference) -> list[RequestOutput]:  # noqa: F811
    """The outputs with everything as it comes, prefix cache on, asynchronous; run twice."""
    outputs, stats = _run(smollm2_folder, reference, rounds=2)
    assert stats["prefix_hits_tokens"] > 0
    assert stats["num_running"] == stats["num_waiting"] == 0
    return outputs


def test_default_settings_are_greedy_and_warm_cache_changes_nothing(
    plain: list[RequestOutput],
) -> None:
    assert len(plain) >= 20
    assert all(output.outputs[0].text for output in plain)


CORE_VARIANTS = {
    "synchronous": {"async_scheduling": False},
    "tiny_budget_and_preemption": {
        "max_num_batched_tokens": 24,
        "max_num_seqs": 12,
        "max_model_len": 160,
        "block_size": 16,
        "num_gpu_blocks_override": 24,
    },
}
MORE_VARIANTS = {
    "no_prefix_caching": {"enable_prefix_caching": False},
    "reference_attention": {"attention_backend": "REFERENCE"},
    "synchronous_preemption": {
        "async_scheduling": False,
        "max_model_len": 160,
        "block_size": 16,
        "num_gpu_blocks_override": 24,
    },
    "no_chunks": {"enable_chunked_prefill": False, "max_num_batched_tokens": 256},
    "one_at_a_time": {"max_num_seqs": 1},
    "odd_blocks": {"block_size": 48, "attention_backend": "REFERENCE"},
    "tensor_parallel_3": {"tensor_parallel_size": 3},
    "tensor_parallel_3_synchronous_preemption": {
        "tensor_parallel_size": 3,
        "async_scheduling": False,
        "max_model_len": 160,
        "block_size": 16,
        "num_gpu_blocks_override": 24,
    },
}


@pytest.mark.parametrize("name", CORE_VARIANTS)
def test_variant_gives_the_same_text(
    name: str,
    plain: list[RequestOutput],
    smollm2_folder: Path,  # noqa: F811
    reference: GreedyReference,
) -> None:
    outputs, stats = _run(smollm2_folder, reference, **CORE_VARIANTS[name])
    _same(outputs, plain, reference)
    if "preemption" in name:
        assert stats["num_preemptions"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE_VARIANTS)
def test_further_variant_gives_the_same_text(
    name: str,
    plain: list[RequestOutput],
    smollm2_folder: Path,  # noqa: F811
    reference: GreedyReference,
) -> None:
    outputs, stats = _run(smollm2_folder, reference, **MORE_VARIANTS[name])
    _same(outputs, plain, reference)
    if "preemption" in name:
        assert stats["num_preemptions"] > 0


def test_size_that_does_not_divide_is_refused_with_those_that_do(smollm2_folder: Path) -> None:  # noqa: F811
    with pytest.raises(ConfigError, match=r"9 query and 3 KV heads, which divide over 1, 3"):
        LLM(str(smollm2_folder), tensor_parallel_size=2)


@pytest.fixture(scope="module")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Eight query and two KV heads: they divide over 2, and are replicated over 4."""
    return Checkpoint.make(
        tmp_path_factory.mktemp("tiny") / "llama",
        hidden_size=64,
        intermediate_size=96,
        num_attention_heads=8,
        num_key_value_heads=2,
    )


@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.slow), 4])
def test_tiny_llama_is_greedy_over_any_fleet(
    size: int,
    tiny_llama: Checkpoint,
    smollm2_folder: Path,  # noqa: F811
) -> None:
    reference = GreedyReference(tiny_llama.model)
    generator = torch.Generator().manual_seed(5)
    prompts = [
        torch.randint(3, 190, (length,), generator=generator).tolist()
        for length in (1, 2, 7, 16, 17, 31, 64, 90)
    ]
    with LLM(
        str(tiny_llama.folder),
        tokenizer=str(smollm2_folder),
        tensor_parallel_size=size,
        dtype="float32",
        max_model_len=160,
        kv_cache_memory_bytes=16 << 20,
        log_level="warning",
    ) as llm:
        outputs = llm.generate(
            prompts, SamplingParams(temperature=0, max_tokens=32, ignore_eos=True, detokenize=False)
        )
    for output in outputs:
        reference.check(output.prompt_token_ids, output.outputs[0].token_ids)
