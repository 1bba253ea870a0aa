"""Clients that leave, engines that fail, servers that stop: every request ends, clearly."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

import httpx
import openai
import pytest
from tests.support.served import serve

from pegboard.api.engine import EngineHealth
from pegboard.api.errors import EngineDead, Overloaded

TEXT = "/v1/completions"


def until(condition, limit_s=5.0):
    """Wait for another thread's doing."""
    end = time.monotonic() + limit_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        pause.wait(0.01)


def hold(client):
    client.gate.clear()


@contextmanager
def raw_request(served, body, path=TEXT):
    """An open connection with one request sent."""
    parts = urlsplit(served.url)
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as raw:
        raw.sendall(head.encode() + data)
        yield raw


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [TEXT, "/v1/chat/completions"])
def test_client_that_leaves_before_the_first_token_is_aborted(path, stream):
    body = {"prompt": "abc", "messages": [{"role": "user", "content": "x"}], "stream": stream}
    with serve(setup=hold) as served:
        with raw_request(served, body, path):
            until(lambda: served.client.started)
        until(lambda: served.client.aborted)

        assert served.client.aborted == served.client.started
        until(lambda: httpx.get(f"{served.url}/load").json() == {"server_load": 0})


def test_client_that_leaves_mid_stream_is_aborted():
    def slow(client):
        client.reply = lambda text: "x" * 400
        client.token_delay_s = 0.01

    with serve(setup=slow) as served:
        with raw_request(served, {"prompt": "a", "stream": True, "max_tokens": 400}) as raw:
            assert b"200 OK" in raw.recv(4096)
        until(lambda: served.client.aborted)

        assert served.client.finished == []


def test_every_prompt_of_a_request_is_aborted_when_its_client_leaves():
    with serve(setup=hold) as served:
        with raw_request(served, {"prompt": ["a", "b", "c"]}):
            until(lambda: len(served.client.started) == 3)
        until(lambda: len(served.client.aborted) == 3)


def test_pipelined_requests_are_all_dropped_when_the_client_leaves():
    with serve(setup=hold) as served:
        with raw_request(served, {"prompt": "a"}) as raw:
            data = json.dumps({"prompt": "b"}).encode()
            head = b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n"
            for _ in range(3):
                raw.sendall(head + b"Content-Length: %d\r\n\r\n" % len(data) + data)
            until(lambda: served.client.started)
        until(lambda: served.client.aborted)
        served.in_loop(served.client.gate.set)

        assert len(served.client.started) == 1
        until(lambda: httpx.get(f"{served.url}/load").json() == {"server_load": 0})


def test_pipelined_requests_are_answered_in_order_and_bounded():
    with serve() as served:
        parts = urlsplit(served.url)
        with socket.create_connection((parts.hostname, parts.port), timeout=10) as raw:
            raw.sendall(b"GET /version HTTP/1.1\r\n\r\n" * 3 + b"GET /x HTTP/1.1\r\n\r\n")
            got = b""
            while got.count(b"HTTP/1.1") < 4:
                got += raw.recv(65536)
        assert got.count(b"200 OK") == 3
        assert b"404" in got[got.rindex(b"HTTP/1.1") :]

        served.in_loop(served.client.gate.clear)
        with raw_request(served, {"prompt": "a"}) as raw:
            until(lambda: served.client.started)
            raw.sendall(b"GET /version HTTP/1.1\r\n\r\n" * 100)
            with contextlib.suppress(ConnectionResetError):
                assert raw.recv(10) == b""
        until(lambda: served.client.aborted)


def test_client_that_does_not_read_is_cut_off_and_aborted():
    def endless(client):
        client.reply = lambda text: "x" * 200_000

    config = {"write_timeout_s": 0.3}
    with serve(config, setup=endless, max_model_len=200_100) as served:
        body = {"prompt": "a", "stream": True, "max_tokens": 200_000}
        with raw_request(served, body):
            until(lambda: served.client.aborted, 20)


@pytest.mark.parametrize(
    "data",
    [b"", b"POST /v1/completions HT", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"],
    ids=["silent", "line", "headers"],
)
def test_client_that_is_slow_with_its_headers_is_cut_off(data):
    with serve({"header_timeout_s": 0.3}) as served:
        parts = urlsplit(served.url)
        with socket.create_connection((parts.hostname, parts.port), timeout=10) as raw:
            raw.sendall(data)
            assert b"408" in raw.recv(4096)
            assert raw.recv(4096) == b""


def test_client_that_is_slow_with_its_body_is_cut_off():
    with serve({"body_timeout_s": 0.3}) as served:
        parts = urlsplit(served.url)
        with socket.create_connection((parts.hostname, parts.port), timeout=10) as raw:
            raw.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b'Content-Length: 100\r\n\r\n{"prompt"'
            )
            assert b"408" in raw.recv(4096)


def test_failure_mid_stream_is_an_event_then_the_end():
    def failing(client):
        client.fail_after = 2
        client.failure = EngineDead("worker 0 was killed")

    with serve(setup=failing) as served:
        answer = httpx.post(f"{served.url}{TEXT}", json={"prompt": "abcd", "stream": True})

    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert answer.status_code == 200
    assert events[-1] == "[DONE]"
    error = json.loads(events[-2])["error"]
    assert error["code"] == 500
    assert "worker 0 was killed" in error["message"]
    assert [json.loads(e)["choices"][0]["text"] for e in events[:-2]] == ["A", "B"]


def test_failure_of_a_stream_is_raised_by_the_official_client():
    def failing(client):
        client.fail_after = 1
        client.failure = EngineDead("worker 0 was killed")

    with serve(setup=failing) as served:
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0)
        with client, pytest.raises(openai.APIError, match="worker 0 was killed"):
            list(client.completions.create(model="fake-model", prompt="abc", stream=True))


def test_unforeseen_failure_is_a_500_that_tells_nothing():
    def failing(client):
        client.fail_after = 0
        client.failure = KeyError("/secret/path")

    with serve(setup=failing) as served:
        answer = httpx.post(f"{served.url}{TEXT}", json={"prompt": "abcd"})

    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "request id" in answer.json()["error"]["message"]


def test_failure_of_the_engine_shows_no_paths_or_addresses():
    def failing(client):
        client.fail_after = 0
        client.failure = EngineDead(
            "worker 0: cannot read /srv/models/secret.bin at 0x7f0012345678: and/or broken"
        )

    with serve(setup=failing) as served:
        answer = httpx.post(f"{served.url}{TEXT}", json={"prompt": "abcd"})

    message = answer.json()["error"]["message"]
    assert "cannot read … at …: and/or broken" in message


def test_full_queue_is_429_with_a_time_to_come_back():
    def full(client):
        client.fail_after = 0
        client.failure = Overloaded("9 requests wait, the limit", retry_after_s=2.4)

    with serve(setup=full) as served:
        answer = httpx.post(f"{served.url}{TEXT}", json={"prompt": "abcd"})

    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "3"


def test_more_requests_than_allowed_are_429():
    with (
        serve({"max_concurrent_requests": 1}, setup=hold) as served,
        raw_request(served, {"prompt": "a"}),
    ):
        until(lambda: served.client.started)
        answer = httpx.post(f"{served.url}{TEXT}", json={"prompt": "b"})
        assert httpx.get(f"{served.url}/health").status_code == 200

    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "1"


def test_request_past_its_deadline_is_504_and_aborted():
    with serve({"request_timeout_s": 0.2}, setup=hold) as served:
        answer = httpx.post(f"{served.url}{TEXT}", json={"prompt": "b"})
        until(lambda: served.client.aborted)

    assert answer.status_code == 504


def test_silent_stream_gets_comments():
    def slow(client):
        client.token_delay_s = 0.25

    with serve({"sse_keep_alive_interval": 0.05}, setup=slow) as served:
        answer = httpx.post(f"{served.url}{TEXT}", json={"prompt": "ab", "stream": True})

    assert answer.text.count(": keep-alive\n\n") >= 2
    assert answer.text.endswith("data: [DONE]\n\n")


def test_unready_engine_is_unhealthy_and_refuses_work_but_lives():
    with serve() as served:
        served.client.state = EngineHealth(live=True, ready=False, reason="warming up")

        health = httpx.get(f"{served.url}/health")
        work = httpx.post(f"{served.url}{TEXT}", json={"prompt": "b"})

        assert health.status_code == 503
        assert "warming up" in health.text
        assert work.status_code == 503
        assert "warming up" in work.json()["error"]["message"]
        assert httpx.get(f"{served.url}/live").status_code == 200


def test_dead_engine_ends_the_server_with_its_cause():
    with serve() as served:
        served.client.state = EngineHealth(live=False, ready=False, reason="core was killed")
        assert httpx.get(f"{served.url}/health").status_code == 503
        served.thread.join(10)

        assert isinstance(served.error, EngineDead)
        assert "core was killed" in str(served.error)


def test_stop_finishes_open_requests_and_refuses_new_ones():
    with serve({"shutdown_timeout": 10.0}, setup=hold) as served:
        answers = []

        def ask():
            answers.append(httpx.post(f"{served.url}{TEXT}", json={"prompt": "ab"}, timeout=20))

        thread = threading.Thread(target=ask)
        thread.start()
        until(lambda: served.client.started)
        served.stop()

        until(lambda: httpx.get(f"{served.url}/health").status_code == 503)
        refused = httpx.post(f"{served.url}{TEXT}", json={"prompt": "b"})
        served.in_loop(served.client.gate.set)
        thread.join(10)
        served.thread.join(10)

    assert refused.status_code == 503
    assert "shutting down" in refused.json()["error"]["message"]
    assert refused.headers["retry-after"]
    assert answers[0].json()["choices"][0]["text"] == "AB"
    assert served.error is None


def test_open_requests_are_aborted_at_the_shutdown_timeout():
    with serve({"shutdown_timeout": 0.2}, setup=hold) as served:
        with raw_request(served, {"prompt": "abcdef", "stream": True}) as raw:
            until(lambda: served.client.started)
            served.stop()
            pieces = b""
            while piece := raw.recv(65536):
                pieces += piece
        served.thread.join(10)

    assert b'"finish_reason":"abort"' in pieces
    assert b"[DONE]" in pieces


def test_second_stop_does_not_wait():
    with (
        serve({"shutdown_timeout": 60.0}, setup=hold) as served,
        raw_request(served, {"prompt": "abcdef"}),
    ):
        until(lambda: served.client.started)
        served.stop()
        served.stop()
        served.thread.join(10)

        assert not served.thread.is_alive()


def test_second_stop_still_tells_clients_how_their_requests_ended(caplog):
    with (
        serve({"shutdown_timeout": 60.0}, setup=hold) as served,
        raw_request(served, {"prompt": "abcdef"}) as raw,
    ):
        until(lambda: served.client.started)
        served.stop()
        served.stop()
        answer = b""
        while piece := raw.recv(65536):
            answer += piece
        served.thread.join(10)

    assert b"application/json" in answer
    assert b"Internal Server Error" not in answer
    assert b'"finish_reason":"abort"' in answer or b" 503 " in answer
    assert "Traceback" not in caplog.text


def test_request_that_outlives_every_grace_is_told_that_the_server_stops(caplog):
    async def ignored(request_ids):
        del request_ids

    def deaf(client):
        hold(client)
        client.abort = ignored

    with (
        serve({"shutdown_timeout": 60.0}, setup=deaf) as served,
        raw_request(served, {"prompt": "abcdef"}) as raw,
    ):
        until(lambda: served.client.started)
        served.stop()
        served.stop()
        answer = b""
        while piece := raw.recv(65536):
            answer += piece
        served.thread.join(10)

    assert b" 503 " in answer
    assert b"the server is stopping" in answer
    assert "Traceback" not in caplog.text


SCRIPT = """
import asyncio, sys
from tests.support.fake_engine import FakeEngineClient
from pegboard.api.plugin import ComponentContext
from pegboard_server.config import ServerConfig
from pegboard_server.frontend import HttpFrontend

frontend = HttpFrontend(ComponentContext(plugin="server", plugin_config=ServerConfig(port=0)))
url = frontend.bind()

async def main():
    client = FakeEngineClient()
    client.token_delay_s = 0.2
    await frontend.run(client, [], lambda: print(url, flush=True))

with asyncio.Runner(loop_factory=frontend.loop_factory()) as runner:
    runner.run(main())
assert "torch" not in sys.modules
print("drained", flush=True)
"""


def test_sigterm_drains_a_real_process_without_torch():
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdout=subprocess.PIPE,
        text=True,
        cwd=os.getcwd(),
    )
    try:
        url = process.stdout.readline().strip()
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=20)
        body = json.dumps({"prompt": "abcd", "stream": True})
        with closing(connection):
            connection.request("POST", TEXT, body, {"content-type": "application/json"})
            with connection.getresponse() as response:
                first = response.readline()
                process.send_signal(signal.SIGTERM)
                rest = response.read()
        assert process.stdout.readline().strip() == "drained"
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()

    assert first.startswith(b"data: ")
    assert rest.endswith(b"data: [DONE]\n\n")
