"""The kernels in Triton's interpreter pass the conformance kit, in the dtypes it computes in."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

SCRIPT = Path(__file__).with_name("run_in_interpreter.py")


@pytest.mark.parametrize("dtype", ["float16", pytest.param("float32", marks=pytest.mark.slow)])
def test_kernels_conform_in_the_interpreter(dtype):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), dtype],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
