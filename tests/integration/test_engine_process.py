"""The engine core in its own process: death, orphans, storms and junk on the socket."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import zmq
from tests.support.arithmetic import fake_options
from tests.support.arithmetic_executor import next_token

from pegboard import LLM, AsyncLLM
from pegboard.api.engine import TextPrompt, TokensPrompt
from pegboard.api.errors import (
    ContextLength,
    EngineDead,
    InvalidRequest,
    ModelError,
    Overloaded,
    PegboardError,
    StepError,
)
from pegboard.api.outputs import RequestOutput
from pegboard.api.sampling_params import SamplingParams
from pegboard.engine.health import HealthMonitor

pytestmark = pytest.mark.timeout(120)

_LONG = SamplingParams(temperature=0, seed=0, max_tokens=900, ignore_eos=True, output_kind="delta")
_SHORT = SamplingParams(temperature=0, seed=0, max_tokens=12, ignore_eos=True)


def _text(prompt: str, count: int) -> str:
    ids = list(prompt.encode())
    for _ in range(count):
        ids.append(next_token(ids))
    return bytes(ids[len(prompt) :]).decode()


@contextlib.asynccontextmanager
async def _engine(
    folder: Path, *, in_process: bool = False, **settings: Any
) -> AsyncIterator[AsyncLLM]:
    llm = AsyncLLM.from_options(fake_options(folder, **settings), in_process=in_process)
    llm._make_parts = llm._frontend.make_parts  # type: ignore[method-assign] # no chat template here
    try:
        await llm.start()
        yield llm
    finally:
        await llm.shutdown()


async def _all(llm: AsyncLLM, prompt: str, params: SamplingParams = _SHORT) -> RequestOutput:
    last = None
    async for output in llm.generate(TextPrompt(prompt=prompt), params, f"id-{prompt}"):
        last = output
    assert last is not None
    return last


async def _open_streams(llm: AsyncLLM, count: int) -> list[AsyncIterator[RequestOutput]]:
    """Start streams that will run for long, each with its first output read."""
    streams = [llm.generate(TextPrompt(prompt=f"stream {i}"), _LONG, f"s{i}") for i in range(count)]
    await asyncio.gather(*(anext(s) for s in streams))
    return streams


async def _fails(stream: AsyncIterator[RequestOutput]) -> PegboardError:
    with pytest.raises(PegboardError) as caught:
        async for _ in stream:
            pass
    return caught.value


def _gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def _until(condition: Any, timeout_s: float = 30.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("async_scheduling", [True, False])
@pytest.mark.parametrize("in_process", [True, False])
async def test_every_client_gives_the_same_text(
    tmp_path: Path, in_process: bool, async_scheduling: bool
) -> None:
    async with _engine(tmp_path, in_process=in_process, async_scheduling=async_scheduling) as llm:
        prompts = [f"prompt {'x' * 9 * i}" for i in range(20)]
        outputs = await asyncio.gather(*(_all(llm, p) for p in prompts))
        assert [o.outputs[0].text for o in outputs] == [_text(p, 12) for p in prompts]
        assert all(o.finished for o in outputs)
        assert llm.health().ready
        assert llm.num_open == 0


async def test_killed_core_fails_every_stream_and_ends_readiness(tmp_path: Path) -> None:
    async with _engine(tmp_path) as llm:
        streams = await _open_streams(llm, 6)
        waiting = llm.generate(TextPrompt(prompt="one that waits"), _LONG, "w")
        pid = llm.engine_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(20):
            errors = await asyncio.gather(*(_fails(s) for s in [*streams, waiting]))
        assert all(isinstance(e, EngineDead) for e in errors)
        assert f"pid {pid}" in str(errors[0])
        assert "signal 9" in str(errors[0])
        health = llm.health()
        assert (health.live, health.ready) == (False, False)
        assert await llm.wait_dead() == health.reason
        with pytest.raises(EngineDead):
            await _all(llm, "later")
        with pytest.raises(EngineDead):
            await llm.call("stats")
        await _until(lambda: _gone(pid))


async def test_dead_worker_fails_every_stream_with_its_cause(tmp_path: Path) -> None:
    async with _engine(tmp_path) as llm:
        streams = await _open_streams(llm, 3)
        with contextlib.suppress(EngineDead):  # the answer races with the end
            await llm.call("collective_rpc", "lose_worker")
        async with asyncio.timeout(20):
            errors = await asyncio.gather(*(_fails(s) for s in streams))
        assert all("worker 0 (pid 1) was told to die" in str(e) for e in errors)
        assert not llm.health().ready


async def test_frozen_core_ends_readiness_and_a_thaw_restores_it(tmp_path: Path) -> None:
    options = fake_options(tmp_path)
    llm = AsyncLLM.from_options(options)
    llm._monitor = HealthMonitor(silent_after_s=1.5, stalled_after_s=30)
    llm._make_parts = llm._frontend.make_parts  # type: ignore[method-assign]
    async with llm:
        pid = llm.engine_pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            await _until(lambda: not llm.health().ready)
            assert "not answered" in llm.health().reason
            assert llm.health().live
        finally:
            os.kill(pid, signal.SIGCONT)
        await _until(lambda: llm.health().ready)
        assert (await _all(llm, "after")).outputs[0].text == _text("after", 12)


async def test_abort_storm_leaves_nothing_behind(tmp_path: Path) -> None:
    async with _engine(tmp_path) as llm:
        free = (await llm.call("stats"))["num_free_blocks"]
        for turn in range(5):
            tasks = [
                asyncio.create_task(_all(llm, f"t{turn} {i} " + "y" * 3 * i, _LONG))
                for i in range(30)
            ]
            for _ in range(turn):
                await asyncio.sleep(0.01)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert llm.num_open == 0

        async def idle() -> bool:
            stats = await llm.call("stats")
            return stats["num_running"] == stats["num_waiting"] == 0

        async with asyncio.timeout(30):
            while not await idle():
                await asyncio.sleep(0.02)
        assert (await llm.call("stats"))["num_free_blocks"] == free
        assert (await _all(llm, "after")).outputs[0].text == _text("after", 12)


async def test_client_that_leaves_ends_its_request(tmp_path: Path) -> None:
    async with _engine(tmp_path) as llm:
        (stream,) = await _open_streams(llm, 1)
        await stream.aclose()  # type: ignore[attr-defined]
        assert llm.num_open == 0
        async with asyncio.timeout(30):
            while (await llm.call("stats"))["num_running"]:
                await asyncio.sleep(0.02)


async def test_abort_by_the_clients_id_ends_its_stream(tmp_path: Path) -> None:
    async with _engine(tmp_path) as llm:
        (stream,) = await _open_streams(llm, 1)
        await llm.abort(["s0", "nobody"])
        async with asyncio.timeout(20):
            outputs = [o async for o in stream]
        assert outputs[-1].finished
        assert outputs[-1].outputs[0].finish_reason == "abort"


async def test_junk_on_the_socket_is_ignored(tmp_path: Path) -> None:
    async with _engine(tmp_path) as llm:
        client: Any = llm._frontend.client
        for frames in ([b"junk"], [b"A", b"\xff\xff"], [b"?", b"\xc0"], [b"A", b"x", b"y"]):
            with client._send_lock:
                client._to_core.send_multipart(frames)
        assert (await _all(llm, "after")).outputs[0].text == _text("after", 12)
        assert llm.health().ready


async def test_request_that_does_not_decode_fails_alone(tmp_path: Path) -> None:
    async with _engine(tmp_path) as llm:
        add = llm._frontend.client.add

        def spoil(request: Any) -> None:
            msgspec.structs.force_setattr(request.sampling, "stop", 5)
            add(request)

        llm._frontend.client.add = spoil  # type: ignore[method-assign]
        async with asyncio.timeout(20):
            with pytest.raises(StepError, match="does not decode"):
                await _all(llm, "spoilt")
        llm._frontend.client.add = add  # type: ignore[method-assign]
        assert (await _all(llm, "whole")).outputs[0].text == _text("whole", 12)
        assert llm.num_open == 0


async def test_request_that_cannot_be_sent_is_refused_and_forgotten(tmp_path: Path) -> None:
    async with _engine(tmp_path) as llm:
        add = llm._frontend.client.add

        def spoil(request: Any) -> None:
            msgspec.structs.force_setattr(request.sampling, "stop", [2**70])
            add(request)

        llm._frontend.client.add = spoil  # type: ignore[method-assign]
        with pytest.raises(InvalidRequest, match="cannot be sent"):
            await _all(llm, "spoilt")
        assert llm.num_open == 0


def test_prompts_of_no_known_form_are_refused(tmp_path: Path) -> None:
    with LLM(options=fake_options(tmp_path)) as llm:
        for prompts in (None, 1, object(), b"x"):
            with pytest.raises(InvalidRequest, match="prompts is"):
                llm.generate(prompts)  # type: ignore[arg-type]
        for messages in (None, 1, "x", b"x"):
            with pytest.raises(InvalidRequest, match="messages is"):
                llm.chat(messages)  # type: ignore[arg-type]
        assert not llm.engine.has_unfinished


async def test_lost_request_fails_alone(tmp_path: Path) -> None:
    async with _engine(tmp_path) as llm:
        await llm.call("collective_rpc", "fail_next", ["sample"])
        with pytest.raises(StepError, match="told to fail"):
            await _all(llm, "unlucky")
        assert (await _all(llm, "lucky")).outputs[0].text == _text("lucky", 12)


async def test_full_queue_is_refused_and_the_rest_is_served(tmp_path: Path) -> None:
    async with _engine(tmp_path, max_num_seqs=2, max_num_queued_reqs=3) as llm:
        await llm.call("collective_rpc", "hold")
        tasks = [asyncio.create_task(_all(llm, f"p{i}")) for i in range(9)]
        await _until(lambda: sum(t.done() for t in tasks) >= 4)
        await llm.call("collective_rpc", "go")
        results = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [r for r in results if isinstance(r, Overloaded)]
        served = [r for r in results if isinstance(r, RequestOutput)]
        assert len(refused) == 4
        assert len(served) == 5
        assert refused[0].retry_after_s > 0


async def test_bad_input_never_reaches_the_core(tmp_path: Path) -> None:
    async with _engine(tmp_path) as llm:
        with pytest.raises(ContextLength, match="1024"):
            await _all(llm, "x" * 1024)
        with pytest.raises(InvalidRequest, match="vocabulary"):
            await anext(llm.generate(TokensPrompt(prompt_token_ids=[9999]), _SHORT, "r"))
        with pytest.raises(InvalidRequest, match="utility 'nope'"):
            await llm.call("nope")
        assert (await llm.call("stats"))["num_steps"] == 0
        assert llm.num_open == 0


async def test_completions_of_one_prompt_differ_by_seed_alone(tmp_path: Path) -> None:
    params = SamplingParams(n=3, seed=5, temperature=1.0, max_tokens=8, output_kind="final")
    async with _engine(tmp_path) as llm:
        output = await _all(llm, "many", params)
        alone = [
            (await _all(llm, "many", params.replace(n=1, seed=5 + i))).outputs[0].text
            for i in range(3)
        ]
    assert [c.text for c in output.outputs] == alone
    assert len(set(alone)) == 3


def test_failed_start_repeats_the_first_cause(tmp_path: Path) -> None:
    before = psutil.Process().children(recursive=True)
    with pytest.raises(ModelError, match="weights of layer 3 are torn"):
        LLM(options=fake_options(tmp_path, distributed_executor_backend="broken"))
    assert psutil.Process().children(recursive=True) == before


def test_pool_that_is_too_small_is_refused_with_what_fits(tmp_path: Path) -> None:
    options = fake_options(tmp_path, num_gpu_blocks_override=None, kv_cache_memory_bytes=81920)
    with pytest.raises(PegboardError, match=r"--max-model-len 304"):
        LLM(options=options)


_PARENT = """
import sys
from pathlib import Path
from pegboard import LLM, SamplingParams
from tests.support.arithmetic import fake_options
llm = LLM(options=fake_options(Path(sys.argv[1])))
llm.enqueue("hello", SamplingParams(max_tokens=900, ignore_eos=True))
sys.stdout.write(f"{llm.engine.frontend.client.pid}\\n")
sys.stdout.flush()
sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_death_of_the_parent_ends_the_core(tmp_path: Path, number: int) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    core = psutil.Process(int(parent.stdout.readline()))
    parent.send_signal(number)
    parent.wait(10)
    gone, alive = psutil.wait_procs([core], timeout=5)
    assert gone
    assert not alive
    _, errors = parent.communicate(timeout=5)
    assert "engine_core" not in errors


def test_script_without_a_main_guard_runs_and_leaves_nothing(tmp_path: Path) -> None:
    script = tmp_path / "queue.py"  # a name that would hide a module of the library
    script.write_text(
        "import sys\n"
        "sys.path.pop(0)\n"
        "from pathlib import Path\n"
        "from pegboard import LLM, SamplingParams\n"
        "from tests.support.arithmetic import fake_options\n"
        f"llm = LLM(options=fake_options(Path({str(tmp_path)!r})))\n"
        "out = llm.generate(['a', 'b'], SamplingParams(temperature=0, seed=0, max_tokens=5))\n"
        "sys.stdout.write(' '.join(o.outputs[0].text for o in out))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout == f"{_text('a', 5)} {_text('b', 5)}"
    assert done.stderr == ""


async def test_sockets_are_private_and_removed(tmp_path: Path) -> None:
    async with _engine(tmp_path) as llm:
        client: Any = llm._frontend.client
        folder = Path(client._folder)
        assert folder.stat().st_mode & 0o777 == 0o700
        assert client._to_core.get(zmq.LAST_ENDPOINT).startswith(b"ipc://")
    assert not folder.exists()
