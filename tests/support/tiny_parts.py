"""What the tiny plugin's specs name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from pegboard.api.loaders import ModelLoader
from pegboard.api.models import ModelDescription
from pegboard.api.platforms import MemoryInfo, Platform


class TinyPlatform(Platform):
    """A processor, one thread, a made-up gigabyte."""

    def validate(self, config: Any) -> list[str]:
        del config
        return []

    def supported_dtypes(self) -> tuple[str, ...]:
        return ("float32", "bfloat16")

    def open_device(self, local_rank: int, local_world_size: int) -> torch.device:
        del local_rank, local_world_size
        torch.set_num_threads(1)
        return torch.device("cpu")

    def memory_info(self) -> MemoryInfo:
        return MemoryInfo(total_bytes=1 << 30, free_bytes=1 << 30, used_bytes=0)

    def num_threads(self) -> int:
        return 1


class TinyLoader(ModelLoader):
    """Every tensor of a folder's safetensors files."""

    def weights(
        self, description: ModelDescription, dtype: torch.dtype
    ) -> Iterator[tuple[str, torch.Tensor]]:
        for file in sorted(Path(description.path).glob("*.safetensors")):
            for name, tensor in load_file(file).items():
                yield name, tensor.to(dtype)
