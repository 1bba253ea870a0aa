"""`platform bench serve` against a real socket."""

import json
import os
import subprocess
import sys

import pytest
from tests.support.served import serve

from pegboard.api.errors import EngineDead
from pegboard.cli.bench_memory import MemorySampler
from pegboard.cli.main import main


def long_answers(client):
    client.reply = lambda text: "x" * 64


@pytest.fixture(scope="module")
def served():
    with serve(setup=long_answers, max_model_len=20_000) as running:
        yield running


def bench(served, tmp_path, *flags):
    path = tmp_path / "out.json"
    status = main(["bench", "serve", "--base-url", f"{served.url}/v1", "--json", str(path), *flags])
    return status, json.loads(path.read_text())


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
@pytest.mark.parametrize("workload", ["single", "online", "throughput"])
def test_workload_counts_every_request_and_token(served, tmp_path, workload, endpoint):
    status, record = bench(
        served,
        tmp_path,
        *("--workload", workload, "--endpoint", endpoint),
        *("--num-prompts", "6", "--output-len", "9"),
    )

    assert status == 0
    assert (record["completed"], record["failed"]) == (6, 0)
    assert record["total_output_tokens"] == 54
    assert record["total_input_tokens"] > 6 * 128
    assert 0 < record["median_ttft_ms"] <= record["median_e2el_ms"]
    assert record["machine"]["cores"] >= 1


def test_prefix_workload_sends_the_same_prompts_twice(served, tmp_path):
    before = len(served.client.calls)
    _, record = bench(
        served,
        tmp_path,
        *("--workload", "prefix", "--num-prompts", "4", "--prefix-len", "200"),
        *("--num-warmups", "0"),
    )
    prompts = [call[0].prompt for call in served.client.calls[before:]]

    assert set(record["turns"]) == {"first", "second"}
    assert sorted(prompts[:4]) == sorted(prompts[4:])
    assert len({p[:500] for p in prompts}) == 1


def test_two_servers_get_the_same_prompts_in_turn(served, tmp_path, capsys):
    with serve(setup=long_answers, max_model_len=20_000) as other:
        before = len(served.client.calls)
        status, record = bench(
            served,
            tmp_path,
            *("--alternate-url", f"{other.url}/v1", "--rounds", "2"),
            *("--num-prompts", "3", "--num-warmups", "0", "--output-len", "4"),
        )
        ours = sorted(call[0].prompt for call in served.client.calls[before:])
        theirs = sorted(call[0].prompt for call in other.client.calls)

    urls = [one["url"].removesuffix("/v1") for one in record["rounds"]]
    assert status == 0
    assert urls == [served.url, other.url, other.url, served.url]
    assert ours == theirs
    assert record["ratio"]["output_throughput"] > 0
    assert "over" in capsys.readouterr().out


def test_failures_are_counted_told_and_give_a_failing_status(tmp_path):
    def failing(client):
        client.fail_after = 1
        client.failure = EngineDead("worker 0 was killed")

    with serve(setup=failing, max_model_len=20_000) as served:
        status, record = bench(served, tmp_path, "--num-prompts", "3", "--num-warmups", "0")

    assert status == 1
    assert record["failed"] == 3
    assert "worker 0 was killed" in record["first_error"]


def test_json_can_go_to_standard_output(served, capsys):
    url = f"{served.url}/v1"
    assert main(["bench", "serve", "--base-url", url, "--num-prompts", "2", "--json", "-"]) == 0

    assert json.loads(capsys.readouterr().out)["completed"] == 2


SERVER = """
import asyncio, sys
from tests.support.fake_engine import FakeEngineClient
from pegboard.api.plugin import ComponentContext
from pegboard_server.config import ServerConfig
from pegboard_server.frontend import HttpFrontend

options = ServerConfig(port=int(sys.argv[1]), shutdown_timeout=1.0)
frontend = HttpFrontend(ComponentContext(plugin="server", plugin_config=options))
frontend.bind()
asyncio.run(frontend.run(FakeEngineClient(max_model_len=20000), []))
"""


def test_command_is_started_timed_measured_and_ended(tmp_path, capsys):
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    with serve() as probe:
        port = probe.url.rpartition(":")[2]
    command = f"env PYTHONPATH={os.getcwd()} {sys.executable} {script} {port}"
    out = tmp_path / "out.json"
    flags = ["--base-url", f"http://127.0.0.1:{port}/v1", "--command", command]

    cold = main(
        ["bench", "serve", "--workload", "coldstart", "--repeats", "2", "--json", str(out), *flags]
    )
    record = json.loads(out.read_text())
    assert cold == 0
    assert len(record["starts"]) == 2
    assert record["first_token_s"] >= record["listening_s"] > 0

    memory = main(
        [
            *("bench", "serve", "--workload", "memory", "--num-prompts", "3"),
            *("--output-len", "2", "--json", str(out), *flags),
        ]
    )
    assert memory == 0
    assert json.loads(out.read_text())["peak_pss_mib"] > 1
    assert subprocess.run(["pgrep", "-f", str(script)], capture_output=True).returncode == 1


def test_sampler_counts_children_too():
    child_code = "x = b'x' * (80 << 20); print('up', flush=True); input()"
    parent_code = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', sys.argv[1]], "
        "stdin=subprocess.PIPE); input(); p.communicate(b'\\n')"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", parent_code, child_code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout.readline() == b"up\n"  # the child's: its memory is there
        sampler = MemorySampler(process.pid)
        sampler.start()
        peaks = sampler.finish()
    finally:
        process.communicate(b"\n", timeout=20)

    assert 80 < peaks["peak_pss_mib"] <= peaks["peak_rss_mib"]
