"""Which NVIDIA GPUs are here, found through the driver's library: no torch, no context."""

import ctypes
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from pegboard.api.platforms import Detection

__all__ = ["detect"]

_LIBRARY = "libcuda.so.1"
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76
_NAME_BYTES = 256


class _DriverError(Exception):
    """A call of the driver's failed."""


def detect(load: Callable[[str], Any] = ctypes.CDLL) -> Detection:
    """Return the first GPU's name and capability, and how many there are.

    Args:
        load: opens a shared library.
    """
    build = _torch_build()
    if build.endswith("+cpu"):
        return _none(f"torch {build} is built without CUDA; install a CUDA build of torch")
    try:
        driver = load(_LIBRARY)
    except OSError:
        return _none(f"no NVIDIA driver: {_LIBRARY} is not found")
    try:
        count, name, capability = _ask(driver)
    except _DriverError as error:
        return _none(str(error))
    if not count:
        return _none("the NVIDIA driver shows no device (CUDA_VISIBLE_DEVICES may hide it)")
    major, minor = capability
    features = ["graphs", f"sm_{major}{minor}"]
    has_triton = find_spec("triton") is not None
    if has_triton:
        features.insert(0, "triton")
    kernels = "with Triton" if has_triton else "without Triton: plain references serve, slowly"
    return Detection(
        available=True,
        reason=f"{count} x {name}, compute capability {major}.{minor}, {kernels}",
        device_name=name,
        num_devices=count,
        capability=capability,
        features=tuple(features),
    )


def _none(reason: str) -> Detection:
    return Detection(available=False, reason=reason)


def _torch_build() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def _ask(driver: Any) -> tuple[int, str, tuple[int, int]]:  # noqa: ANN401 -- a loaded library
    """Return the number of devices, and the first one's name and capability."""
    _call(driver, "cuInit", 0)
    count = ctypes.c_int()
    _call(driver, "cuDeviceGetCount", ctypes.byref(count))
    if not count.value:
        return 0, "", (0, 0)
    device = ctypes.c_int()
    _call(driver, "cuDeviceGet", ctypes.byref(device), 0)
    name = ctypes.create_string_buffer(_NAME_BYTES)
    _call(driver, "cuDeviceGetName", name, _NAME_BYTES, device)
    numbers = []
    for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR):
        number = ctypes.c_int()
        _call(driver, "cuDeviceGetAttribute", ctypes.byref(number), attribute, device)
        numbers.append(number.value)
    return count.value, name.value.decode(errors="replace"), (numbers[0], numbers[1])


def _call(driver: Any, function: str, *args: Any) -> None:  # noqa: ANN401 -- ctypes values
    status = getattr(driver, function)(*args)
    if status:
        raise _DriverError(f"the NVIDIA driver's {function} failed with status {status}")
