"""Platforms and probes with one planted fault each; the kit must catch every one."""

import torch

from pegboard.api.platforms import Detection, MemoryInfo
from pegboard_cpu.cpu_platform import CpuPlatform


def honest() -> Detection:
    return Detection(available=True, reason="a fake", num_devices=1)


def without_reason() -> Detection:
    return Detection(available=True, reason=" ", num_devices=1)


def without_device() -> Detection:
    return Detection(available=True, reason="a fake")


class WrongDevice(CpuPlatform):
    def open_device(self, local_rank: int, local_world_size: int) -> torch.device:
        super().open_device(local_rank, local_world_size)
        return torch.device("meta")


class NegativeMemory(CpuPlatform):
    def memory_info(self) -> MemoryInfo:
        return MemoryInfo(total_bytes=1, free_bytes=2, used_bytes=0)


class NegativeKV(CpuPlatform):
    def default_kv_bytes(self, free_bytes: int, utilization: float, used_bytes: int) -> int:
        return int(free_bytes * utilization) - used_bytes


class InventsDtypes(CpuPlatform):
    def supported_dtypes(self) -> tuple[str, ...]:
        return ("bfloat17",)


class PretendsToCapture(CpuPlatform):
    def supports_graphs(self) -> bool:
        return True

    def capture_graph(self, function, pool=None):
        function()
        return lambda: None
