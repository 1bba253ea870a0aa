"""The offline API on the default model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.support.checkpoints import smollm2_folder  # noqa: F401 -- a fixture

from pegboard import LLM, SamplingParams
from pegboard.api.engine import TokensPrompt
from pegboard.api.errors import ConfigError, ContextLength, InvalidRequest
from pegboard.api.sampling_params import RepetitionDetection

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

_GREEDY = SamplingParams(temperature=0, max_tokens=12)


@pytest.fixture(scope="module")
def llm(smollm2_folder: Path) -> Iterator[LLM]:  # noqa: F811
    with LLM(
        str(smollm2_folder),
        dtype="float32",
        max_model_len=256,
        kv_cache_memory_bytes=128 << 20,
        log_level="warning",
        logprobs_mode="raw_logprobs",
    ) as made:
        yield made


def test_every_form_of_a_prompt_is_the_same_prompt(llm: LLM) -> None:
    text = "The capital of France is"
    ids = llm.get_tokenizer().encode(text)
    forms: list[Any] = [
        text,
        ids,
        {"prompt": text},
        {"prompt_token_ids": ids, "cache_salt": "mine"},
        TokensPrompt(prompt_token_ids=ids),
    ]
    outputs = llm.generate(forms, _GREEDY)
    assert {o.outputs[0].text for o in outputs} == {outputs[0].outputs[0].text}
    assert all(o.prompt_token_ids == ids for o in outputs)
    (single,) = llm.generate(ids, _GREEDY)
    assert single.outputs[0].text == outputs[0].outputs[0].text
    assert "Paris" in single.outputs[0].text


def test_outputs_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = [f"Number {i}:" for i in range(12)]
    params = [
        SamplingParams(temperature=0, max_tokens=1 + i % 5, ignore_eos=True) for i in range(12)
    ]
    outputs = llm.generate(prompts, params)
    assert [o.prompt for o in outputs] == prompts
    assert [len(o.outputs[0].token_ids) for o in outputs] == [1 + i % 5 for i in range(12)]
    assert all(o.finished and o.outputs[0].finish_reason == "length" for o in outputs)


def test_conversation_is_rendered_and_answered(llm: LLM) -> None:
    one = [{"role": "user", "content": "What is the capital of France?"}]
    (output,) = llm.chat(one, _GREEDY)
    assert output.prompt is not None
    assert output.prompt.endswith("<|im_start|>assistant\n")
    assert "Paris" in output.outputs[0].text
    both = llm.chat([one, [{"role": "user", "content": "Say hello."}]], _GREEDY)
    assert both[0].outputs[0].text == output.outputs[0].text
    assert len(both) == 2


def test_enqueued_prompts_are_waited_for_later(llm: LLM) -> None:
    first = llm.enqueue(["a", "b"], _GREEDY)
    second = llm.enqueue("c", _GREEDY)
    outputs = llm.wait_for_completion()
    assert [o.request_id for o in outputs] == [*first, *second]
    assert llm.wait_for_completion() == []


def test_seed_reproduces_and_completions_differ(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, seed=7, n=3, max_tokens=16, ignore_eos=True)
    first, again = (llm.generate("Once", params)[0] for _ in range(2))
    texts = [c.text for c in first.outputs]
    assert texts == [c.text for c in again.outputs]
    assert len(set(texts)) == 3
    alone = llm.generate("Once", params.replace(n=1, seed=8))[0]
    assert alone.outputs[0].text == texts[1]


def test_stop_string_cuts_the_text_and_frees_the_request(llm: LLM) -> None:
    whole = (
        llm.generate("1, 2, 3, 4,", SamplingParams(temperature=0, max_tokens=30))[0].outputs[0].text
    )
    assert " 7" in whole
    params = SamplingParams(temperature=0, max_tokens=200, stop=[" 7"])
    output = llm.generate("1, 2, 3, 4,", params)[0].outputs[0]
    assert output.text == whole[: whole.index(" 7")]
    assert (output.finish_reason, output.stop_reason) == ("stop", " 7")
    kept = params.replace(include_stop_str_in_output=True)
    assert llm.generate("1, 2, 3, 4,", kept)[0].outputs[0].text == output.text + " 7"
    while llm.get_metrics()["num_running"]:
        pass


def test_logprobs_are_transformers(llm: LLM, smollm2_folder: Path) -> None:  # noqa: F811
    model = transformers.AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32)
    text = "A triangle has three sides, and a square has"
    params = SamplingParams(
        temperature=0.7, seed=3, max_tokens=6, logprobs=3, prompt_logprobs=2, ignore_eos=True
    )
    output = llm.generate(text, params)[0]
    completion = output.outputs[0]
    ids = output.prompt_token_ids + completion.token_ids
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
    assert output.prompt_logprobs[0] is None
    assert completion.logprobs is not None
    reported = [*output.prompt_logprobs[1:], *completion.logprobs]
    assert len(reported) == len(ids) - 1
    for position, entry in enumerate(reported):
        assert entry is not None
        assert next(iter(entry)) == ids[position + 1]
        for token_id, logprob in entry.items():
            assert logprob.logprob == pytest.approx(float(expected[position, token_id]), abs=1e-3)
    total = sum(
        e[i].logprob for e, i in zip(completion.logprobs, completion.token_ids, strict=True)
    )
    assert completion.cumulative_logprob == pytest.approx(total)


def test_tokens_are_kept_in_or_out(llm: LLM) -> None:
    text = "The capital of France is"
    ids = llm.get_tokenizer().encode
    (paris,) = ids(" Paris")
    (rome,) = ids(" Rome")
    greedy = SamplingParams(temperature=0, max_tokens=1)

    def first(**changes: Any) -> int:
        return llm.generate(text, greedy.replace(**changes))[0].outputs[0].token_ids[0]

    assert first() == paris
    assert first(bad_words=["Paris"]) != paris
    assert first(allowed_token_ids=[rome, *ids(" and")]) == rome
    assert first(logit_bias={rome: 100.0}) == rome
    assert first(logit_bias={paris: -100.0}) != paris


def test_ends_come_when_asked_and_not_before(llm: LLM) -> None:
    (paris,) = llm.get_tokenizer().encode(" Paris")
    stopping = SamplingParams(temperature=0, max_tokens=8, stop_token_ids=[paris])
    text = "The capital of France is"

    def only(params: SamplingParams) -> Any:
        return llm.generate(text, params)[0].outputs[0]

    stopped, held = only(stopping), only(stopping.replace(min_tokens=8))
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", paris)
    assert stopped.token_ids == [paris]
    assert len(held.token_ids) == 8
    assert paris not in held.token_ids
    looping = SamplingParams(
        temperature=0,
        max_tokens=100,
        logit_bias={paris: 100.0},
        repetition_detection=RepetitionDetection(max_pattern_size=2, min_count=4),
    )
    looped = only(looping)
    assert (looped.finish_reason, looped.token_ids) == ("repetition", [paris] * 4)
    ids_only = only(SamplingParams(temperature=0, max_tokens=4, detokenize=False))
    assert (ids_only.text, len(ids_only.token_ids)) == ("", 4)


def test_logprobs_come_for_what_was_asked(llm: LLM) -> None:
    text = "One two three four five six"
    ids = llm.get_tokenizer().encode(text)
    params = SamplingParams(
        temperature=0,
        max_tokens=3,
        ignore_eos=True,
        logprob_token_ids=[7, 11],
        prompt_logprob_token_ids=[5],
        prompt_logprob_start=3,
    )
    output = llm.generate(text, params)[0]
    assert output.prompt_logprobs is not None
    assert [p is None for p in output.prompt_logprobs] == [i < 3 for i in range(len(ids))]
    for token_id, position in zip(ids[3:], output.prompt_logprobs[3:], strict=True):
        assert position is not None
        assert set(position) == {token_id, 5}
    completion = output.outputs[0]
    assert completion.logprobs is not None
    for token_id, entry in zip(completion.token_ids, completion.logprobs, strict=True):
        assert set(entry) == {token_id, 7, 11}
    flat = llm.generate(text, params.replace(flat_logprobs=True))[0].outputs[0].logprobs
    assert flat is not None
    assert list(flat) == completion.logprobs


def test_prefix_cache_can_be_passed_by(llm: LLM) -> None:
    prompt = "phrase " * 60
    llm.generate(prompt, _GREEDY)
    assert llm.generate(prompt, _GREEDY)[0].num_cached_tokens > 0
    anew = _GREEDY.replace(skip_reading_prefix_cache=True)
    assert llm.generate(prompt, anew)[0].num_cached_tokens == 0


def test_refused_prompt_starts_nothing(llm: LLM) -> None:
    with pytest.raises(ContextLength, match="256"):
        llm.generate(["fine", [5] * 256], _GREEDY)
    with pytest.raises(InvalidRequest, match="multi_modal_data"):
        llm.generate({"prompt": "x", "multi_modal_data": {}}, _GREEDY)
    with pytest.raises(InvalidRequest, match="2 entries for 1 prompts"):
        llm.generate("x", [_GREEDY, _GREEDY])
    assert llm.wait_for_completion() == []
    assert not llm.engine.has_unfinished


def test_prefix_cache_is_hit_and_can_be_reset(llm: LLM) -> None:
    prompt = "word " * 120
    assert llm.reset_prefix_cache() is True
    cold = llm.generate(prompt, _GREEDY)[0]
    warm = llm.generate(prompt, _GREEDY)[0]
    assert (cold.num_cached_tokens, cold.outputs[0].text) == (0, warm.outputs[0].text)
    assert warm.num_cached_tokens > 60
    assert llm.reset_prefix_cache() is True
    assert llm.generate(prompt, _GREEDY)[0].num_cached_tokens == 0


def test_workers_answer_by_name_and_unknown_names_are_refused(llm: LLM) -> None:
    assert llm.collective_rpc("ping") == [0]
    with pytest.raises(InvalidRequest, match="no method"):
        llm.collective_rpc("os.system", args=["true"])


def test_defaults_are_the_checkpoints(llm: LLM) -> None:
    assert llm.get_default_sampling_params() == SamplingParams()
    report = llm.explain()
    assert report["platform"]
    assert report["phases"]["until ready"] > 0
    assert report["memory"]["kv_pool_bytes"] <= 128 << 20


def test_unknown_setting_is_refused_with_the_nearest(smollm2_folder: Path) -> None:  # noqa: F811
    with pytest.raises(ConfigError, match="max_model_len"):
        LLM(str(smollm2_folder), max_modle_len=5)
