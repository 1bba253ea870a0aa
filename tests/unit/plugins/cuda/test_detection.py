"""Detection asks the driver's library alone, and says in one line what it found."""

import ctypes

import pytest

from pegboard_cuda import detection


class Driver:
    """A driver library with some devices; `fails` names a function that returns an error."""

    def __init__(self, devices=1, fails=None):
        self.devices, self.fails = devices, fails

    def __getattr__(self, name):
        def call(*args):
            if name == self.fails:
                return 999
            if name == "cuDeviceGetCount":
                args[0]._obj.value = self.devices
            elif name == "cuDeviceGetName":
                ctypes.memmove(args[0], b"A Test GPU\0", 11)
            elif name == "cuDeviceGetAttribute":
                args[0]._obj.value = {75: 9, 76: 0}[args[1]]
            return 0

        return call


@pytest.fixture(autouse=True)
def cuda_build(monkeypatch):
    monkeypatch.setattr(detection, "version", lambda name: "2.11.0+cu130")


def test_the_first_device_and_its_capability_are_found():
    found = detection.detect(lambda name: Driver(devices=2))
    assert found.available
    assert (found.device_name, found.num_devices, found.capability) == ("A Test GPU", 2, (9, 0))
    assert {"graphs", "sm_90"} <= set(found.features)


def test_triton_is_declared_only_where_it_is_installed(monkeypatch):
    assert "triton" in detection.detect(lambda name: Driver()).features
    monkeypatch.setattr(detection, "find_spec", lambda name: None)
    found = detection.detect(lambda name: Driver())
    assert "triton" not in found.features
    assert "without Triton" in found.reason


def test_no_driver_no_device_and_a_failing_driver_are_told_apart():
    def missing(name):
        raise OSError(name)

    reasons = [
        detection.detect(load).reason
        for load in (missing, lambda n: Driver(devices=0), lambda n: Driver(fails="cuInit"))
    ]
    assert "libcuda.so.1 is not found" in reasons[0]
    assert "shows no device" in reasons[1]
    assert "cuInit failed with status 999" in reasons[2]


def test_a_torch_without_cuda_is_refused_with_the_mend(monkeypatch):
    monkeypatch.setattr(detection, "version", lambda name: "2.13.0+cpu")
    found = detection.detect(lambda name: Driver())
    assert not found.available
    assert "install a CUDA build of torch" in found.reason
