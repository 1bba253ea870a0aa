"""A slow client finds its outputs merged, and loses nothing."""

import asyncio

import pytest

from pegboard.api.errors import EngineDead
from pegboard.api.outputs import CompletionOutput, RequestOutput
from pegboard.engine.output_queue import OutputQueue


def _output(text: str, index: int = 0, *, finished: bool = False) -> RequestOutput:
    completion = CompletionOutput(
        index=index,
        text=text,
        token_ids=list(text.encode()),
        logprobs=[{} for _ in text],
        finish_reason="length" if finished else None,
    )
    return RequestOutput(request_id="r", outputs=[completion], finished=finished)


async def test_deltas_that_were_not_read_are_joined() -> None:
    queue = OutputQueue(is_delta=True)
    for text in "abc":
        queue.put(_output(text))
    queue.put(_output("d", finished=True))
    output = await queue.get()
    assert output.outputs[0].text == "abcd"
    assert output.outputs[0].token_ids == list(b"abcd")
    assert len(output.outputs[0].logprobs or []) == 4
    assert output.outputs[0].finish_reason == "length"
    assert output.finished


async def test_deltas_of_several_completions_are_kept_apart() -> None:
    queue = OutputQueue(is_delta=True)
    for text, index in (("a", 0), ("x", 1), ("b", 0)):
        queue.put(_output(text, index))
    output = await queue.get()
    assert [(o.index, o.text) for o in output.outputs] == [(0, "ab"), (1, "x")]


async def test_newest_cumulative_output_is_kept() -> None:
    queue = OutputQueue(is_delta=False)
    queue.put(_output("a"))
    queue.put(_output("ab"))
    assert (await queue.get()).outputs[0].text == "ab"


async def test_reader_waits_and_is_woken() -> None:
    queue = OutputQueue(is_delta=True)
    reader = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.put(_output("a"))
    assert (await reader).outputs[0].text == "a"


async def test_error_is_raised_and_nothing_replaces_it() -> None:
    queue = OutputQueue(is_delta=True)
    queue.put(EngineDead("gone"))
    queue.put(_output("late"))
    with pytest.raises(EngineDead, match="gone"):
        await queue.get()
