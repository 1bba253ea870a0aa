"""Bad input is refused by name, with the numbers; good input becomes whole requests."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.arithmetic import fake_config
from tests.support.arithmetic_parts import EOS, VOCAB_SIZE

from pegboard.api.engine import TextPrompt, TokensPrompt
from pegboard.api.errors import ContextLength, InvalidRequest
from pegboard.api.messages import LoraRequest
from pegboard.api.sampling import LogitsProcessor
from pegboard.api.sampling_params import SamplingParams
from pegboard.engine.frontend import load_tokenizer
from pegboard.engine.input_processor import InputProcessor

P = SamplingParams


@pytest.fixture
def inputs(tmp_path: Path) -> InputProcessor:
    config, catalog = fake_config(tmp_path, max_model_len=64)
    return InputProcessor(config, load_tokenizer(config, catalog))


BAD: list[tuple[str, Any, SamplingParams, type[Exception], str, str]] = [
    ("empty text", TextPrompt(prompt=""), P(), InvalidRequest, "empty", "prompt"),
    ("empty ids", TokensPrompt(prompt_token_ids=[]), P(), InvalidRequest, "empty", "prompt"),
    ("id too high", TokensPrompt(prompt_token_ids=[1, VOCAB_SIZE]), P(), InvalidRequest,
     f"token id {VOCAB_SIZE}.*0 to {VOCAB_SIZE - 1}", "prompt"),
    ("negative id", TokensPrompt(prompt_token_ids=[-1, 3]), P(), InvalidRequest, "-1", "prompt"),
    ("bool id", TokensPrompt(prompt_token_ids=[True]), P(), InvalidRequest, "whole", "prompt"),
    ("text of bytes", TextPrompt(prompt=b"x"), P(), InvalidRequest, "bytes", "prompt"),  # type: ignore[arg-type]
    ("surrogate", TextPrompt(prompt="a\ud800"), P(), InvalidRequest, "Unicode", "prompt"),
    ("full context", TokensPrompt(prompt_token_ids=[5] * 64), P(), ContextLength,
     "64 tokens.*64.*63 fit", "prompt"),
    ("long text", TextPrompt(prompt="x" * 300), P(), ContextLength, "300 characters.*64", "prompt"),
    ("min over room", TokensPrompt(prompt_token_ids=[5] * 60),
     P(min_tokens=9, max_tokens=9), ContextLength, "min_tokens is 9.*60.*64 leaves 4",
     "min_tokens"),
    ("stop id", TextPrompt(prompt="x"), P(stop_token_ids=[VOCAB_SIZE]), InvalidRequest,
     "stop_token_ids has 258", "stop_token_ids"),
    ("bad word id", TextPrompt(prompt="x"), P(bad_words_token_ids=[[3], [4, -1]]), InvalidRequest,
     "bad_words_token_ids has -1", "bad_words_token_ids"),
    ("bias id", TextPrompt(prompt="x"), P(logit_bias={999: 1.0}), InvalidRequest, "999",
     "logit_bias"),
    ("logprobs", TextPrompt(prompt="x"), P(logprobs=21), InvalidRequest, "at most 20",
     "logprobs"),
    ("all logprobs", TextPrompt(prompt="x"), P(prompt_logprobs=-1), InvalidRequest, "at most 20",
     "prompt_logprobs"),
    ("bad words", TextPrompt(prompt="x"), P(bad_words=["y" * 600]), InvalidRequest,
     "1201 tokens.*1024", "bad_words"),
    ("extra", TextPrompt(prompt="x"), P(extra_args={"speed": 11}), InvalidRequest, "speed",
     "extra_args"),
    ("salt", TextPrompt(prompt="x", cache_salt=""), P(), InvalidRequest, "cache_salt",
     "cache_salt"),
    ("salt of surrogates", TextPrompt(prompt="x", cache_salt="\ud800"), P(), InvalidRequest,
     "Unicode", "cache_salt"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("prompt", "params", "error", "match", "param"),
    [case[1:] for case in BAD],
    ids=[case[0] for case in BAD],
)
def test_bad_input_is_refused_by_name(
    inputs: InputProcessor,
    prompt: Any,
    params: SamplingParams,
    error: type[Exception],
    match: str,
    param: str,
) -> None:
    with pytest.raises(error, match=match) as caught:
        inputs.process("r", prompt, params)
    assert caught.value.param == param  # type: ignore[attr-defined]
    assert "\n" not in str(caught.value)


def test_adapter_is_refused(inputs: InputProcessor) -> None:
    with pytest.raises(InvalidRequest, match="'mine'"):
        inputs.process(
            "r", TextPrompt(prompt="x"), P(), lora=LoraRequest(name="mine", lora_id=1, path="p")
        )


def test_unknown_parameter_cannot_be_given() -> None:
    with pytest.raises(msgspec.ValidationError, match="structured_outputs"):
        msgspec.convert({"structured_outputs": {"json": {}}}, SamplingParams)


def test_request_is_whole(inputs: InputProcessor) -> None:
    prepared = inputs.process(
        "mine", TextPrompt(prompt="hey", cache_salt="s"), P(max_tokens=None), priority=3
    )
    (child,) = prepared.children
    assert child.request_id.startswith("mine-")
    assert child.request_id != inputs.process("mine", TextPrompt(prompt="hey"), P()).children[0]
    assert child.prompt_token_ids == list(b"hey")
    assert child.sampling.max_tokens == 64 - 3
    assert child.sampling.seed is not None
    assert child.eos_token_ids == [EOS]
    assert (child.priority, child.cache_salt) == (3, "s")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(child), type=type(child)) == child


def test_max_tokens_is_cut_to_the_context(inputs: InputProcessor) -> None:
    prepared = inputs.process("r", TokensPrompt(prompt_token_ids=[5] * 60), P(max_tokens=50))
    assert prepared.children[0].sampling.max_tokens == 4


def test_completions_get_seeds_in_order(inputs: InputProcessor) -> None:
    prepared = inputs.process("r", TextPrompt(prompt="x"), P(n=3, seed=2**63 - 2))
    assert [c.sampling.seed for c in prepared.children] == [2**63 - 2, 2**63 - 1, -(2**63)]
    assert [c.sampling.n for c in prepared.children] == [1, 1, 1]
    assert len({c.request_id for c in prepared.children}) == 3


def test_seeds_of_an_engine_are_reproducible_and_differ(tmp_path: Path) -> None:
    def seeds(seed: int) -> list[int | None]:
        config, catalog = fake_config(tmp_path, seed=seed)
        made = InputProcessor(config, load_tokenizer(config, catalog))
        prepared = [made.process("r", TextPrompt(prompt="x"), P()) for _ in range(4)]
        return [p.children[0].sampling.seed for p in prepared]

    assert seeds(1) == seeds(1)
    assert seeds(1) != seeds(2)
    assert len(set(seeds(1))) == 4


def test_bad_words_are_tokenised_with_and_without_a_space(inputs: InputProcessor) -> None:
    prepared = inputs.process("r", TextPrompt(prompt="x"), P(bad_words=["no", " no"]))
    assert prepared.children[0].sampling.bad_words_token_ids == [list(b"no"), list(b" no")]


def test_logits_processors_check_their_arguments(tmp_path: Path) -> None:
    class Speed(LogitsProcessor):
        @classmethod
        def validate(cls, params: SamplingParams) -> None:
            if (params.extra_args or {}).get("speed", 0) > 10:
                raise InvalidRequest("extra_args.speed is over 10", param="extra_args")

    config, catalog = fake_config(tmp_path)
    made = InputProcessor(config, load_tokenizer(config, catalog), [Speed])
    made.process("r", TextPrompt(prompt="x"), P(extra_args={"speed": 10}))
    with pytest.raises(InvalidRequest, match="over 10"):
        made.process("r", TextPrompt(prompt="x"), P(extra_args={"speed": 11}))
    with pytest.raises(InvalidRequest, match="64 bits"):
        made.process("r", TextPrompt(prompt="x"), P(extra_args={"speed": 2**64}))
