"""What this machine's CPU is, found without torch."""

import platform as host
from pathlib import Path

from pegboard.api.platforms import Detection
from pegboard_cpu.cores import usable_cores
from pegboard_kernels import KernelsUnavailableError, load

__all__ = ["detect"]


def detect() -> Detection:
    """Return the processor's name, its cores, and the kernels' instruction set as a feature."""
    name = _model_name()
    features: tuple[str, ...] = ()
    try:
        library = load()
    except KernelsUnavailableError as error:
        kernels = f"no native kernels: {error}"
    else:
        isa = library.isa.name.lower()
        features = ("kernels", isa)
        kernels = f"{isa} kernels"
        for rejected, reason in library.rejected.items():
            kernels += f" ({rejected.name.lower()} rejected: {reason})"
    return Detection(
        available=True,
        reason=f"{name}, {usable_cores()} cores, {kernels}",
        device_name=name,
        num_devices=1,
        features=features,
    )


def _model_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return host.processor() or host.machine() or "CPU"
