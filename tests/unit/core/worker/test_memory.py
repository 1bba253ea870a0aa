"""The allocation meter and what it must not cost."""

import subprocess
import sys

import torch

from pegboard.worker.memory import AllocationMeter


def test_live_and_peak_bytes_count_each_storage_once():
    with torch.inference_mode(), AllocationMeter() as meter:
        kept = torch.zeros(1000)
        views = kept.view(10, 100).chunk(2)
        temporary = kept * 2
        del temporary
        small = torch.empty(10, dtype=torch.uint8)
    assert views
    assert meter.live_bytes == kept.nbytes + small.nbytes
    assert meter.peak_bytes == 2 * kept.nbytes
    meter.stop()
    del kept, views
    assert meter.live_bytes == 4010


SCRIPT = """
import sys, torch
from pegboard.worker.memory import AllocationMeter
import pegboard.worker.worker
with torch.inference_mode(), AllocationMeter():
    torch.zeros(3) + 1
print([name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules])
"""


def test_measuring_imports_no_compiler():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
