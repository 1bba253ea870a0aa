"""What the tiny plugin's specs name."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from pegboard.api.errors import StepError
from pegboard.api.loaders import ModelLoader
from pegboard.api.messages import SchedulerOutput
from pegboard.api.models import ModelDescription
from pegboard.api.platforms import MemoryInfo, Platform
from pegboard.worker.model_runner import ModelRunner, RunningStep
from pegboard.worker.worker import Worker


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


class NamedWorker(Worker):
    """A platform's own worker, which answers by its name."""

    def call(self, method: str, args: Sequence[Any] = ()) -> Any:
        return "own worker" if method == "name" else super().call(method, args)


class OwnWorkerPlatform(TinyPlatform):
    """With a worker of its own."""

    worker = "tests.support.tiny_parts:NamedWorker"


class LopsidedRunner(ModelRunner):
    """Raises on rank 1 alone, in the step that brings the request "lopsided"."""

    def execute(self, step: SchedulerOutput) -> RunningStep:
        failing = any(request.request_id == "lopsided" for request in step.new_requests)
        if failing and self.tensor_parallel.rank == 1:
            raise StepError("rank 1 has had enough")
        return super().execute(step)


class LopsidedPlatform(TinyPlatform):
    """With a model runner of its own."""

    model_runner = "tests.support.tiny_parts:LopsidedRunner"
