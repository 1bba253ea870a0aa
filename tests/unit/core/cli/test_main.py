import json
import subprocess
import sys

import pytest

from pegboard.cli.main import main

LISTED = """
@hookimpl
def executors():
    return [ExecutorSpec(name=PLUGIN.name + "_fleet", target="a:b", summary="A fleet.")]
@hookimpl
def cli_commands():
    return [CliCommandSpec(name=PLUGIN.name + "-hello", target="{module}:Hello", summary="Greets.")]
@hookimpl
def on_fault(fault):
    pass
class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    depth: int = 4
class Hello:
    def __init__(self, context):
        self.context = context
    def add_arguments(self, parser):
        parser.add_argument("--name", default="you")
    def run(self, args):
        if args.name == "nobody":
            from pegboard.api.errors import ConfigError
            raise ConfigError("nobody cannot be greeted")
        print(f"hello {args.name} from {self.context.plugin_config.depth}")
        return 3
"""
HEAVY = ["torch", "numpy", "zmq", "jinja2", "tokenizers", "transformers", "pydantic", "starlette"]


@pytest.fixture
def listed(fake_plugins, monkeypatch):
    for name in ("PEGBOARD_PLUGINS", "PEGBOARD_CONFIG", "PEGBOARD_LOG_LEVEL"):
        monkeypatch.delenv(name, raising=False)
    fake_plugins.install("myorg", LISTED, info="config=__name__ + ':Options'", version="1.4")
    return fake_plugins


def run(capsys, *argv: str) -> tuple[int, str, str]:
    status = main(argv)
    out, err = capsys.readouterr()
    return status, out, err


def in_json(capsys, *argv: str):
    status, out, err = run(capsys, *argv, "--json")
    assert status == 0, err
    return json.loads(out)


def test_version_and_help_need_no_plugin(capsys):
    assert run(capsys, "--version")[1].startswith("pegboard 0.")
    status, out, _ = run(capsys, "--help")
    assert status == 0
    for word in ("serve", "plugins", "collect-env", "PEGBOARD_PLUGINS", "examples:"):
        assert word in out


def test_help_names_a_plugins_command_and_survives_a_broken_plugin(capsys, listed):
    assert "myorg-hello" in run(capsys, "--help")[1]
    listed.install("broken", "raise OSError")
    status, out, _ = run(capsys)
    assert status == 0
    assert "serve" in out


def test_a_plugins_command_runs_with_its_options(capsys, listed):
    argv = ("myorg-hello", "--name", "Ada")
    assert run(capsys, *argv) == (3, "hello Ada from 4\n", "")


def test_an_error_raised_on_purpose_is_one_line(capsys, listed):
    status, out, err = run(capsys, "myorg-hello", "--name", "nobody")
    assert (status, out, err) == (1, "", "platform: error: nobody cannot be greeted\n")


def test_debug_adds_the_traceback(capsys, listed, monkeypatch):
    monkeypatch.setenv("PEGBOARD_LOG_LEVEL", "debug")
    _, _, err = run(capsys, "myorg-hello", "--name", "nobody")
    assert "Traceback" in err
    assert err.splitlines()[-1] == "platform: error: nobody cannot be greeted"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["plugin"], "there is no command 'plugin'; did you mean plugins?"),
        (["--plugins", "x"], "unknown flag --plugins; a command comes first"),
        (["plugins"], "required: ACTION"),
        (["plugins", "lst"], "invalid choice: 'lst'"),
        (["plugins", "list", "--jsn"], "unknown flag --jsn; did you mean --json?"),
        (["plugins", "inspect"], "required: NAME"),
    ],
)
def test_wrong_command_line_is_one_line_and_status_two(capsys, listed, argv, says):
    status, out, err = run(capsys, *argv)
    assert (status, out) == (2, "")
    assert says in err
    assert err.startswith("platform: error: ")
    assert err.count("\n") == 1


def test_list_shows_what_each_plugin_offers_and_whether_it_acts(capsys, listed):
    plugins = {p["name"]: p for p in in_json(capsys, "plugins", "list")["plugins"]}
    assert plugins["myorg"]["components"]["executors"] == ["myorg_fleet"]
    assert plugins["myorg"]["observes"] == ["on_fault"]
    assert not plugins["myorg"]["enabled"]
    assert plugins["builtin"]["enabled"]
    named = in_json(capsys, "plugins", "list", "--plugins", "myorg")["plugins"]
    assert next(p for p in named if p["name"] == "myorg")["enabled"]
    text = run(capsys, "plugins", "list")[1]
    assert "executors myorg_fleet" in text


def test_environment_and_config_file_name_plugins_too(capsys, listed, monkeypatch, tmp_path):
    monkeypatch.setenv("PEGBOARD_PLUGINS", "-myorg")
    assert "\nmyorg " not in run(capsys, "plugins", "list")[1]
    monkeypatch.setenv("PEGBOARD_PLUGINS", "absent")
    assert "'absent' was named" in run(capsys, "plugins", "list")[2]
    monkeypatch.delenv("PEGBOARD_PLUGINS")
    path = tmp_path / "pegboard.toml"
    path.write_text('[plugins]\nenabled = ["server", "myorg"]\n[plugins.myorg]\ndepth = 9\n')
    told = in_json(capsys, "plugins", "inspect", "myorg", "--config", str(path))
    assert told["resolved"]["enabled"]
    assert told["options"][0]["value"] == 9


def test_broken_plugin_stops_list_but_not_with_warn(capsys, listed):
    listed.install("broken", "raise OSError('on fire')")
    status, _, err = run(capsys, "plugins", "list")
    assert status == 1
    assert "'broken' (fake-broken 1.0)" in err
    status, out, _ = run(capsys, "plugins", "list", "--plugins-on-error", "warn")
    assert status == 0
    assert "left out: broken: " in out


def test_inspect_shows_components_options_and_where_they_load(capsys, listed):
    text = run(capsys, "plugins", "inspect", "myorg")[1]
    for words in ("myorg 1.4: fake myorg", "fake-myorg 1.4", "loads in engine_core", "depth  int"):
        assert words in text
    status, _, err = run(capsys, "plugins", "inspect", "myrog")
    assert status == 1
    assert "did you mean myorg?" in err


def test_explain_gives_a_verdict_for_each_candidate(capsys, listed):
    argv = ("plugins", "explain", "executors", "-tp", "2")
    (told,) = in_json(capsys, *argv)["explanations"]
    verdicts = {v["name"]: v for v in told["verdicts"]}
    assert verdicts["uni"]["reason"] == "runs at most 1 worker(s), not 2"
    assert [v["name"] for v in told["verdicts"] if v["chosen"]] == ["mp"]
    text = run(capsys, *argv)[1]
    assert "->  mp" in text
    assert "--distributed-executor-backend NAME forces one" in text


@pytest.mark.parametrize("word", ["attention", "ops", "http-route", "platforms", "loaders"])
def test_explain_knows_kinds_by_several_words(capsys, listed, word):
    status, out, err = run(capsys, "plugins", "explain", word)
    if word == "loaders":
        assert status == 1
        assert "there is no kind 'loaders'; did you mean model_loaders?" in err
    else:
        assert status == 0
        assert out


def test_explain_of_a_model_that_is_not_there_fails_with_the_reason(capsys, listed):
    status, out, _ = run(capsys, "plugins", "explain", "--model", "/no/such/model")
    assert status == 1
    assert "the start would fail: " in out
    assert "/no/such/model" in out


def test_doctor_fails_on_a_broken_plugin(capsys, listed):
    listed.install("broken", "raise OSError('on fire')")
    status, out, _ = run(capsys, "plugins", "doctor", "--only-plugins", "broken")
    assert status == 1
    assert "fail  broken" in out


def test_new_writes_a_package_that_loads_and_passes_its_test(capsys, listed, tmp_path):
    status, _, _ = run(capsys, "plugins", "new", "myorg_forbid", "--directory", str(tmp_path))
    assert status == 0
    root = tmp_path / "myorg-forbid"
    listed.declare("myorg_forbid", "myorg_forbid.plugin", version="0.1.0")
    environment = listed.environment
    environment["PYTHONPATH"] = f"{root / 'src'}:{environment['PYTHONPATH']}"
    for command in (
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", str(root)],
        ["-m", "pegboard.cli.main", "plugins", "inspect", "myorg_forbid"],
        ["-m", "pegboard.cli.main", "plugins", "doctor", "--only-plugins", "myorg_forbid"],
    ):
        done = subprocess.run(
            [sys.executable, *command],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    status, _, err = run(capsys, "plugins", "new", "myorg_forbid", "--directory", str(tmp_path))
    assert status == 1
    assert "is there already" in err


@pytest.mark.parametrize("name", ["My-Org", "1st", "a-b", ""])
def test_new_refuses_a_name_that_cannot_be_a_plugins(capsys, name, tmp_path):
    status, _, err = run(capsys, "plugins", "new", name, "--directory", str(tmp_path))
    assert status == 1
    assert "must match" in err
    assert list(tmp_path.iterdir()) == []


def test_collect_env_tells_versions_and_survives_a_broken_plugin(capsys, listed):
    report = in_json(capsys, "collect-env")
    assert report["packages"]["msgspec"][0].isdigit()
    assert {"builtin", "myorg"} <= {p["name"] for p in report["plugins"]}
    listed.install("broken", "raise OSError('on fire')")
    assert "on fire" in in_json(capsys, "collect-env")["problem"]


@pytest.mark.parametrize(
    "argv", [["plugins", "list"], ["plugins", "inspect", "myorg"], ["--help"], ["serve", "--help"]]
)
def test_looking_at_plugins_imports_nothing_heavy(listed, argv):
    code = (
        "import sys\nfrom pegboard.cli.main import main\n"
        "try: status = main(sys.argv[1:])\n"
        "except SystemExit as end: status = end.code or 0\n"
        f"print(status, [m for m in {HEAVY} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *argv],
        env=listed.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "0 []"
