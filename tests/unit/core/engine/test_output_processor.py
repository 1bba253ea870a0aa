"""What clients see of what the engine core sends."""

from pathlib import Path
from typing import Any

import pytest
from tests.support.arithmetic import fake_config
from tests.support.arithmetic_parts import EOS

from pegboard.api.engine import TextPrompt
from pegboard.api.errors import EngineDead, StepError
from pegboard.api.messages import EngineCoreOutput, RequestEvent, TokenLogprobs
from pegboard.api.outputs import RequestOutput
from pegboard.api.sampling_params import SamplingParams
from pegboard.engine.frontend import load_tokenizer
from pegboard.engine.input_processor import InputProcessor, PreparedRequest
from pegboard.engine.output_processor import OutputProcessor


class Client:
    """One processor, and what each request's sink got."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        config, catalog = fake_config(folder, **settings)
        tokenizer = load_tokenizer(config, catalog)
        self.inputs = InputProcessor(config, tokenizer)
        self.outputs = OutputProcessor(tokenizer, stream_interval=config.scheduler.stream_interval)
        self.got: list[RequestOutput | Exception] = []
        self.aborted: list[str] = []
        self.stats: list[Any] = []

    def add(self, request_id: str = "r", **params: Any) -> PreparedRequest:
        prepared = self.inputs.process(
            request_id, TextPrompt(prompt="hi"), SamplingParams(**params)
        )
        self.outputs.add(prepared, self.got.append)
        return prepared

    def send(
        self, prepared: PreparedRequest, text: str | list[int] = "", index: int = 0, **more: Any
    ) -> None:
        ids = list(text.encode()) if isinstance(text, str) else text
        output = EngineCoreOutput(
            request_id=prepared.children[index].request_id, new_token_ids=ids, **more
        )
        processed = self.outputs.process([output])
        self.aborted += processed.abort_ids
        self.stats.append(processed.stats)

    @property
    def texts(self) -> list[str]:
        return [o.outputs[0].text for o in self.got if isinstance(o, RequestOutput)]


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path)


def test_cumulative_outputs_hold_all_so_far(client: Client) -> None:
    request = client.add()
    client.send(request, "ab")
    client.send(request, "c", finish_reason="length")
    assert client.texts == ["ab", "abc"]
    last = client.got[-1]
    assert isinstance(last, RequestOutput)
    assert last.finished
    assert last.outputs[0].token_ids == list(b"abc")
    assert last.outputs[0].finish_reason == "length"
    assert client.outputs.num_open == 0
    earlier = client.got[0]
    assert isinstance(earlier, RequestOutput)
    assert earlier.outputs[0].token_ids == list(b"ab")


def test_deltas_hold_what_is_new(client: Client) -> None:
    request = client.add(output_kind="delta")
    for piece in ("a", "bc"):
        client.send(request, piece)
    client.send(request, "", finish_reason="abort")
    assert client.texts == ["a", "bc", ""]
    assert [o.finished for o in client.got if isinstance(o, RequestOutput)] == [False, False, True]


def test_final_output_comes_once_with_everything(client: Client) -> None:
    request = client.add(output_kind="final", logprobs=1)
    for byte in "né":
        ids = list(byte.encode())
        client.send(
            request, ids, logprobs=[TokenLogprobs([i, 65], [-1.0, -2.0], [1, 2]) for i in ids]
        )
    assert client.got == []
    client.send(request, "", finish_reason="length")
    (output,) = client.got
    assert isinstance(output, RequestOutput)
    assert output.outputs[0].text == "né"
    assert output.outputs[0].cumulative_logprob == -3.0
    assert len(output.outputs[0].logprobs or []) == 3


def test_stop_string_ends_the_text_and_aborts_in_the_core(client: Client) -> None:
    request = client.add(stop=["STOP"], output_kind="delta", max_tokens=50, logprobs=0)
    ids = list(b"go ST")
    client.send(request, ids, logprobs=[TokenLogprobs([i], [-1.0], [1]) for i in ids])
    ids = list(b"OP and on")
    client.send(request, ids, logprobs=[TokenLogprobs([i], [-1.0], [1]) for i in ids])
    assert "".join(client.texts) == "go "
    last = client.got[-1]
    assert isinstance(last, RequestOutput)
    assert (last.outputs[0].finish_reason, last.outputs[0].stop_reason) == ("stop", "STOP")
    assert last.outputs[0].token_ids == list(b"OP")
    assert len(last.outputs[0].logprobs or []) == 2
    assert client.aborted == [request.children[0].request_id]
    client.send(request, "late")  # of a step that was in flight
    assert len(client.texts) == 2


def test_stop_token_is_no_text_unless_asked_for(client: Client) -> None:
    first = client.add(output_kind="final", skip_special_tokens=False)
    client.send(first, [*b"ab", EOS], finish_reason="stop")
    second = client.add(
        output_kind="final", skip_special_tokens=False, include_stop_str_in_output=True
    )
    client.send(second, [*b"ab", EOS], finish_reason="stop")
    third = client.add(output_kind="final", stop_token_ids=[98])
    client.send(third, b"ab".decode(), finish_reason="stop", stop_token_id=98)
    assert client.texts == ["ab", "ab</s>", "a"]
    last = client.got[-1]
    assert isinstance(last, RequestOutput)
    assert last.outputs[0].stop_reason == 98
    assert last.outputs[0].token_ids == list(b"ab")
    assert client.aborted == []


def test_least_length_lets_a_stop_string_through(client: Client) -> None:
    request = client.add(stop=["a"], min_tokens=2, max_tokens=9, output_kind="final")
    client.send(request, "aaba")
    assert client.texts == ["aab"]


def test_stream_interval_holds_all_but_first_and_last(tmp_path: Path) -> None:
    client = Client(tmp_path, stream_interval=3)
    request = client.add(output_kind="delta")
    for byte in "abcdefgh":
        client.send(request, byte)
    client.send(request, "i", finish_reason="length")
    assert client.texts == ["a", "bcd", "efg", "hi"]


def test_own_stream_interval_outranks_the_engines(client: Client) -> None:
    request = client.add(output_kind="delta", stream_interval=2)
    for byte in "abcd":
        client.send(request, byte)
    assert client.texts == ["a", "bc"]


def test_completions_of_one_request_are_gathered(client: Client) -> None:
    request = client.add(n=2, output_kind="final", temperature=1.0)
    client.send(request, "x", index=1, finish_reason="length")
    assert client.got == []
    client.send(request, "y", index=0, finish_reason="length")
    (output,) = client.got
    assert isinstance(output, RequestOutput)
    assert [(o.index, o.text) for o in output.outputs] == [(0, "y"), (1, "x")]
    assert output.finished


def test_deltas_of_completions_say_whose_they_are(client: Client) -> None:
    request = client.add(n=2, output_kind="delta", temperature=1.0)
    client.send(request, "x", index=1, finish_reason="length")
    client.send(request, "y", index=0, finish_reason="length")
    outputs = [o for o in client.got if isinstance(o, RequestOutput)]
    assert [(o.outputs[0].index, o.finished) for o in outputs] == [(1, False), (0, True)]


def test_lost_request_fails_with_its_cause_and_its_siblings_end(client: Client) -> None:
    request = client.add(n=2, temperature=1.0)
    client.send(request, index=0, finish_reason="error", error="numbers were not finite")
    (error,) = client.got
    assert isinstance(error, StepError)
    assert "request r failed: numbers were not finite" in str(error)
    assert client.aborted == [request.children[1].request_id]
    assert client.outputs.num_open == 0


def test_death_fails_every_open_request(client: Client) -> None:
    client.add("a")
    client.add("b", n=2, temperature=1.0)
    client.outputs.fail_all(EngineDead("gone"))
    assert [type(e) for e in client.got] == [EngineDead, EngineDead]
    assert client.got[0] is not client.got[1]
    assert client.outputs.num_open == 0
    assert client.outputs.engine_ids(["a", "b"]) == []


def test_prompt_positions_before_the_asked_start_are_none(client: Client) -> None:
    request = client.add(prompt_logprobs=0, prompt_logprob_start=50)
    client.send(request, "a")
    output = client.got[0]
    assert isinstance(output, RequestOutput)
    assert output.prompt_logprobs == [None] * len(output.prompt_token_ids)


def test_prompt_logprobs_come_whole_with_the_first_output(client: Client) -> None:
    request = client.add(prompt_logprobs=1)
    client.send(request, "", prompt_logprobs=[TokenLogprobs([105, 65], [-0.1, -3.0], [1, 7])])
    assert client.got == []
    client.send(request, "a")
    output = client.got[0]
    assert isinstance(output, RequestOutput)
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert output.prompt_logprobs[1] is not None
    assert output.prompt_logprobs[1][105].decoded_token == "i"
    assert output.prompt_logprobs[1][65].rank == 7


@pytest.mark.parametrize("flat", [False, True])
def test_logprobs_name_the_token_first(client: Client, flat: bool) -> None:
    request = client.add(logprobs=2, flat_logprobs=flat, output_kind="delta")
    client.send(request, "a", logprobs=[TokenLogprobs([97, 66, 67], [-5.0, -0.1, -0.2], [9, 1, 2])])
    output = client.got[0]
    assert isinstance(output, RequestOutput)
    logprobs = output.outputs[0].logprobs
    assert logprobs is not None
    assert len(logprobs) == 1
    assert list(logprobs[0]) == [97, 66, 67]
    assert logprobs[0][97].rank == 9
    assert logprobs[0][66].decoded_token == "B"


def test_times_and_counts_are_kept(client: Client) -> None:
    request = client.add(max_tokens=7)
    arrival = request.arrival_time
    client.send(
        request,
        "a",
        num_cached_tokens=1,
        events=[RequestEvent("queued", arrival + 1), RequestEvent("scheduled", arrival + 3)],
    )
    client.send(request, "b", events=[RequestEvent("preempted", arrival + 4)])
    client.send(request, "c", finish_reason="length")
    output = client.got[-1]
    assert isinstance(output, RequestOutput)
    assert output.metrics is not None
    assert output.metrics.num_generation_tokens == 3
    assert output.metrics.num_preemptions == 1
    assert output.num_cached_tokens == 1
    assert output.metrics.scheduled_ts == arrival + 3
    assert [s.num_prompt_tokens for s in client.stats] == [2, 0, 0]
    assert [len(s.inter_token_latency_s) for s in client.stats] == [0, 1, 1]
    (finished,) = client.stats[-1].finished
    assert finished.queued_s == pytest.approx(2)
    assert (finished.num_generation_tokens, finished.max_tokens) == (3, 7)


def test_client_id_used_twice_names_both(client: Client) -> None:
    first, second = client.add("same"), client.add("same")
    ids = [first.children[0].request_id, second.children[0].request_id]
    assert client.outputs.engine_ids(["same", "other"]) == ids
    assert client.outputs.forget(first) == ids[:1]
    assert client.outputs.engine_ids(["same"]) == ids[1:]
