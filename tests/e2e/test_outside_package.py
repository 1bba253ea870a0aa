"""The seam without the source tree: wheels in a clean environment, and an outside package in it.

Third-party packages come from the running environment (no index is needed); everything of
Pegboard's, and the example, is built as a wheel and installed with pip.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [
    "core",
    "csrc",
    "plugins/cpu",
    "plugins/loaders",
    "plugins/models",
    "plugins/server",
    ".",
    "examples/myorg-attn-backend",
]

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(600)]


def run(command: list[str | Path], cwd: Path, timeout: int = 300) -> str:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PEGBOARD_PLUGINS"))}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    done = subprocess.run(
        [str(c) for c in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def bin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment that holds wheels only."""
    folder = tmp_path_factory.mktemp("wheels")
    wheels = folder / "dist"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    for source in SOURCES:
        build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", wheels, ROOT / source]
        run(build, folder)
    run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], folder)
    site = next((folder / "env/lib").glob("python*/site-packages"))
    for path in map(Path, sys.path):
        if path.name != "site-packages" or not path.is_dir():
            continue
        for entry in path.iterdir():
            own = entry.name.lower().startswith(("pegboard", "_pegboard", "__editable__", "myorg"))
            if not own and not entry.name.endswith(".pth") and not (site / entry.name).exists():
                (site / entry.name).symlink_to(entry)
    python = folder / "env/bin/python"
    install = [python, "-m", "pip", "--disable-pip-version-check", "install", "--no-deps"]
    run([*install, "--no-index", *sorted(wheels.glob("*.whl"))], folder)
    return folder / "env/bin"


def test_everything_comes_from_wheels(bin_folder: Path) -> None:
    code = (
        "import json, importlib; names = ['pegboard', 'pegboard_cpu', 'pegboard_kernels',"
        "'pegboard_loaders', 'pegboard_models', 'pegboard_server', 'myorg_attn_backend'];"
        "print(json.dumps([importlib.import_module(n).__file__ for n in names]))"
    )
    for file in json.loads(run([bin_folder / "python", "-c", code], bin_folder)):
        assert Path(file).is_relative_to(bin_folder.parent), file


def test_plugin_is_listed(bin_folder: Path) -> None:
    listed = json.loads(run([bin_folder / "platform", "plugins", "list", "--json"], bin_folder))
    assert "myorg_attn" in {p["name"] for p in listed["plugins"]}


def test_kit_is_green(bin_folder: Path) -> None:
    out = run([bin_folder / "platform", "plugins", "test", "myorg_attn"], bin_folder)
    assert " 0 fail" in out, out


@pytest.fixture(scope="module")
def server(bin_folder: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [bin_folder / "platform", "serve", "--port", port, "--plugins", "myorg_attn"]
    command += ["--attention-backend", "MYORG_ATTN", "--max-model-len", 2048]
    log = (bin_folder.parent / "serve.log").open("w+")
    process = subprocess.Popen(
        [str(c) for c in command], cwd=bin_folder.parent, stdout=log, stderr=log
    )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(url, process, Path(log.name))
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        log.close()


def wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            pass
        try:
            process.wait(0.2)
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError(f"not ready: {log.read_text()}")


def test_it_serves(server: str) -> None:
    body = {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    request = urllib.request.Request(
        f"{server}/v1/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = json.load(answer)["choices"][0]["text"]
    assert "Paris" in text
    with urllib.request.urlopen(f"{server}/platform/plugins", timeout=10) as answer:
        assert "MYORG_ATTN" in answer.read().decode()
