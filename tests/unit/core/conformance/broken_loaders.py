"""Loaders with one planted fault each; the kit must catch every one."""

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from pegboard.api.errors import ModelError
from pegboard_loaders.safetensors_loader import SafetensorsLoader


class YieldsTwice(SafetensorsLoader):
    def weights(self, description, dtype):
        for name, tensor in super().weights(description, dtype):
            yield name, tensor
            yield name, tensor


class ForgetsTheLast(SafetensorsLoader):
    def weights(self, description, dtype):
        yield from list(super().weights(description, dtype))[:-1]


class RoundsValues(SafetensorsLoader):
    def weights(self, description, dtype):
        for name, tensor in super().weights(description, dtype):
            yield name, tensor.to(torch.bfloat16)


class Shuffles(SafetensorsLoader):
    turn = 0

    def weights(self, description, dtype):
        items = list(super().weights(description, dtype))
        self.turn += 1
        yield from items if self.turn % 2 else reversed(items)


class SwallowsDamage(SafetensorsLoader):
    def weights(self, description, dtype):
        try:
            yield from super().weights(description, dtype)
        except ModelError:
            return


class LeaksForeignErrors(SafetensorsLoader):
    def weights(self, description, dtype):
        for path in sorted(Path(description.path).glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 -- it is no mapping
                    yield name, file.get_tensor(name)


class WritesManyLines(SafetensorsLoader):
    def weights(self, description, dtype):
        try:
            yield from super().weights(description, dtype)
        except (ModelError, SafetensorError) as error:
            raise ModelError(f"could not load\n{error}") from error
