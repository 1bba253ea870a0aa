"""Hooks without a first-party plugin, exercised by a fake one (a real entry point) in engines.

The fake plugin's components run in the engine core and worker of a real engine on a tiny model,
and behind a real server.
"""

import json
from pathlib import Path

import httpx
import pytest
from tests.support.plugins import FakePlugins, fake_plugins
from tests.support.serving import platform_serve
from tests.support.tiny_folder import make_tiny_folder

from pegboard import LLM, SamplingParams
from pegboard.api.errors import InvalidRequest

__all__ = ["fake_plugins"]

PARTS = '''
import json
from pathlib import Path

import torch

from pegboard.api.errors import InvalidRequest
from pegboard.api.observers import StatLogger
from pegboard.api.sampling import LogitsProcessor
from pegboard.api.scheduling import SchedulerPolicy


class OnlyToken(LogitsProcessor):
    """Allows one token, from extra_args; or what comes after the last one."""

    @classmethod
    def validate(cls, params):
        wanted = (params.extra_args or {}).get("only_token")
        if wanted is not None and not isinstance(wanted, int):
            message = f"only_token is {wanted!r}; a token id is needed"
            raise InvalidRequest(message, param="only_token")

    def __init__(self, context, config):
        super().__init__(context, config)
        self.wanted = {}

    def add_row(self, row, params, token_ids, num_prompt_tokens):
        wanted = (params.extra_args or {}).get("only_token")
        if wanted is None:
            return False
        self.wanted[row] = wanted
        return True

    def remove_row(self, row):
        self.wanted.pop(row, None)

    def apply(self, logits, rows, batch):
        for line, row in enumerate(rows.tolist()):
            if row in self.wanted:
                keep = self.wanted[row]
                value = logits[line, keep].clone()
                logits[line] = float("-inf")
                logits[line, keep] = value


class LongestFirst(SchedulerPolicy):
    def key(self, request):
        return (-request.num_prompt_tokens, request.arrival_time)


class FileStats(StatLogger):
    def record(self, scheduler, iteration):
        folder = Path(self.context.plugin_config.folder)
        with (folder / "stats").open("a") as file:
            file.write(f"{iteration.num_generation_tokens}\\n")


def hello(context, client):
    async def app(scope, receive, send):
        body = json.dumps({"path": scope["path"], "model": client.config.model.model}).encode()
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


def rms_norm(x, weight, eps):
    calls.append(1)
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


calls = []
'''

OPTIONS = """
class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    folder: str = "."
"""

PLUGIN = """
from pathlib import Path

from pegboard.api.sampling import LogitsProcessorSpec
from pegboard.api.scheduling import SchedulerPolicySpec


def _note(event):
    with Path(FOLDER, "events").open("a") as file:
        file.write(f"{event.name}\\n")


@hookimpl
def logits_processors():
    return [LogitsProcessorSpec(name="only_token", target="PARTS:OnlyToken")]


@hookimpl
def scheduler_policies():
    return [SchedulerPolicySpec(name="longest_first", target="PARTS:LongestFirst")]


@hookimpl
def stat_loggers():
    return [StatLoggerSpec(name="file_stats", target="PARTS:FileStats")]


@hookimpl
def op_implementations():
    return [OpImplementationSpec(name="hooked.rms_norm", op="rms_norm", target="PARTS:rms_norm")]


@hookimpl
def http_routes():
    return [
        HttpRouteSpec(name="open", path="/hooked-open", scope="public", target="PARTS:hello"),
        HttpRouteSpec(name="closed", path="/hooked", target="PARTS:hello"),
    ]


@hookimpl
def on_engine_start(event):
    _note(event)


@hookimpl
def on_engine_stop(event):
    _note(event)


@hookimpl
def on_request_added(event):
    _note(event)


@hookimpl
def on_request_finished(event):
    _note(event)


@hookimpl
def on_step_scheduled(event):
    _note(event)


@hookimpl
def on_step_finished():
    raise RuntimeError("an observer that always fails")
"""


@pytest.fixture
def hooked(fake_plugins: FakePlugins, tmp_path: Path) -> FakePlugins:
    parts = fake_plugins.module(PARTS, "parts")
    source = PLUGIN.replace("PARTS", parts).replace("FOLDER", repr(str(tmp_path)))
    options = fake_plugins.module(OPTIONS, "options")
    fake_plugins.install("hooked", source, info=f'config="{options}:Options"')
    return fake_plugins


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def settings(hooked: FakePlugins, tmp_path: Path) -> dict:
    return {
        "plugins": ["hooked"],
        "plugin_config": {"hooked": {"folder": str(tmp_path)}},
        "num_gpu_blocks_override": 32,
        "dtype": "float32",
    }


def greedy(**changes: object) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, **changes)


@pytest.mark.parametrize("in_process", [True, False])
def test_logits_processor_changes_only_the_request_that_asks(
    folder: Path, settings: dict, in_process: bool
) -> None:
    with LLM(
        str(folder), in_process=in_process, logits_processors=["only_token"], **settings
    ) as llm:
        forced, free = llm.generate(
            ["w3 w4", "w3 w4"], [greedy(extra_args={"only_token": 77}), greedy()]
        )
        with pytest.raises(InvalidRequest, match="a token id is needed"):
            llm.generate("w3", greedy(extra_args={"only_token": "x"}))
    assert forced.outputs[0].token_ids == [77] * 4
    assert free.outputs[0].token_ids != [77] * 4


def test_observers_see_the_life_of_requests_and_a_failing_one_is_unhooked(
    folder: Path, settings: dict, tmp_path: Path
) -> None:
    with LLM(str(folder), **settings) as llm:
        outputs = llm.generate(["w3 w4", "w5"], SamplingParams(max_tokens=12, ignore_eos=True))
        assert all(len(o.outputs[0].token_ids) == 12 for o in outputs)
        again = llm.generate("w7", greedy())
    assert len(again[0].outputs[0].token_ids) == 4
    events = (tmp_path / "events").read_text().split()
    assert events[0] == "engine_start"
    assert events[-1] == "engine_stop"
    assert events.count("request_added") == events.count("request_finished") == 3
    assert events.count("step_scheduled") >= 12


def test_observers_of_a_plugin_that_is_not_enabled_see_nothing(
    folder: Path, hooked: FakePlugins, tmp_path: Path
) -> None:
    with LLM(str(folder), in_process=True, num_gpu_blocks_override=32, dtype="float32") as llm:
        llm.generate("w3", greedy())
    assert not (tmp_path / "events").exists()


def test_stat_logger_counts_every_token(folder: Path, settings: dict, tmp_path: Path) -> None:
    with LLM(str(folder), in_process=True, **settings) as llm:
        llm.generate(["w3 w4", "w5"], greedy())
    assert sum(map(int, (tmp_path / "stats").read_text().split())) == 8


def test_scheduler_policy_decides_who_goes_first(folder: Path, settings: dict) -> None:
    with LLM(
        str(folder),
        in_process=True,
        scheduling_policy="longest_first",
        max_num_seqs=1,
        **settings,
    ) as llm:
        ids = llm.enqueue(["w3", "w3 w4", "w3 w4 w5 w6"], greedy())
        outputs = {o.request_id: o for o in llm.wait_for_completion()}
    first = [outputs[i].metrics.scheduled_ts for i in ids]
    # The first to arrive may start before the others are there; of those two the longer leads.
    assert first[2] < first[1]


def test_op_is_replaced_by_the_order_in_the_configuration(folder: Path, settings: dict) -> None:
    import sys

    with LLM(
        str(folder), in_process=True, ops={"rms_norm": ["hooked.rms_norm"]}, **settings
    ) as llm:
        got = llm.generate("w3 w4", greedy())
    parts = next(m for name, m in sys.modules.items() if name.startswith("parts_"))
    assert parts.calls
    with LLM(str(folder), in_process=True, **settings) as llm:
        assert (
            llm.generate("w3 w4", greedy())[0].outputs[0].token_ids == got[0].outputs[0].token_ids
        )


def test_routes_are_mounted_with_their_scope(
    folder: Path, hooked: FakePlugins, tmp_path: Path
) -> None:
    options = [f"--plugin-config=hooked.folder={tmp_path}", "--api-key=secret"]
    options += ["--num-gpu-blocks-override=32", "--dtype=float32"]
    key = {"authorization": "Bearer secret"}
    with platform_serve(folder, "--plugins=hooked", *options, env=hooked.environment) as url:
        opened = httpx.get(f"{url}/hooked-open/x", timeout=20)
        assert opened.status_code == 200
        assert json.loads(opened.text)["model"] == str(folder)
        assert httpx.get(f"{url}/hooked/x", timeout=20).status_code == 401
        assert httpx.get(f"{url}/hooked/x", headers=key, timeout=20).status_code == 200
    with platform_serve(folder, *options[1:], env=hooked.environment) as url:
        assert httpx.get(f"{url}/hooked-open/x", headers=key, timeout=20).status_code == 404
