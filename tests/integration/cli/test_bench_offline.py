"""`platform bench throughput` and `latency` with a tiny model in a real engine."""

import json

import pytest
from tests.support.tiny_folder import make_tiny_folder

from pegboard.cli.main import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_folder(tmp_path_factory.mktemp("tiny"))


def bench(folder, tmp_path, action, *flags):
    out = tmp_path / "out.json"
    common = ("--dtype", "float32", "--kv-cache-memory-bytes", "8M", "--json", str(out))
    status = main(["bench", action, str(folder), *common, *flags])
    return status, json.loads(out.read_text()) if out.exists() else None


def test_throughput_counts_every_token(folder, tmp_path, capsys):
    status, record = bench(
        folder,
        tmp_path,
        "throughput",
        "--num-prompts",
        "5",
        "--input-len",
        "20",
        *("--output-len", "6"),
    )

    assert status == 0
    assert record["completed"] == 5
    assert record["total_output_tokens"] == 30
    assert record["total_num_tokens"] == 130
    assert record["output_throughput"] == pytest.approx(30 / record["elapsed_time"])
    assert "output tokens/s" in capsys.readouterr().out


def test_latency_measures_each_batch_after_the_warm_up(folder, tmp_path):
    status, record = bench(
        folder,
        tmp_path,
        "latency",
        *("--batch-size", "3", "--input-len", "8", "--output-len", "5"),
        *("--num-iters", "4", "--num-iters-warmup", "1"),
    )

    assert status == 0
    assert len(record["latencies"]) == 4
    assert set(record["percentiles"]) == {"10", "25", "50", "75", "90", "99"}
    assert record["batch_decode_throughput"] > 0


def test_run_ends_at_its_time_limit_with_one_line(folder, tmp_path, capfd):
    status, record = bench(
        folder,
        tmp_path,
        "latency",
        *("--batch-size", "64", "--input-len", "100", "--output-len", "100"),
        *("--num-iters", "100", "--time-limit", "1"),
    )

    assert (status, record) == (1, None)
    assert "time limit" in capfd.readouterr().err.splitlines()[-1]


def test_lengths_past_the_context_are_refused(folder, tmp_path, capfd):
    status, _ = bench(folder, tmp_path, "throughput", "--input-len", "300")

    assert status == 1
    assert "256" in capfd.readouterr().err.splitlines()[-1]
