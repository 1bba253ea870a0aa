"""What a worker's memory goes to: a meter for torch's allocations, and a ledger for people."""

import weakref
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["AllocationMeter", "MemoryLedger"]


class AllocationMeter(TorchFunctionMode):
    """Counts the bytes of tensors made inside its `with` block, on any device.

    It watches torch's Python functions, not its dispatcher: a dispatch mode imports torch's
    compiler, which costs a start more time and memory than the model's weights.

    Attributes:
        live_bytes: of those that still exist.
        peak_bytes: the most that existed at once.
    """

    def __init__(self) -> None:
        """Start at nothing."""
        super().__init__()
        self.live_bytes = 0
        self.peak_bytes = 0
        self._known: dict[int, weakref.finalize] = {}

    def __torch_function__(
        self,
        func: Any,  # noqa: ANN401 -- torch's signature
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Call a function and count the storage of what it returns."""
        result = func(*args, **(kwargs or {}))
        for leaf in result if isinstance(result, tuple | list) else (result,):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = id(storage)
        if key in self._known:
            return
        size = storage.nbytes()
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        self._known[key] = weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._known.pop(key, None)
        self.live_bytes -= size

    def stop(self) -> None:
        """Let go of what is still alive; the numbers stay as they are."""
        for finalizer in self._known.values():
            finalizer.detach()
        self._known.clear()


class MemoryLedger:
    """Bytes by purpose, for the start report.

    Attributes:
        weights_bytes: held by the model once loaded.
        activations_bytes: most that a step holds besides, estimated from a small one.
        kv_bytes: taken for the cache, resident only as it is used.
        batch_bytes: of the persistent batch.
    """

    __slots__ = ("activations_bytes", "batch_bytes", "kv_bytes", "weights_bytes")

    def __init__(self) -> None:
        """Start at nothing."""
        self.weights_bytes = 0
        self.activations_bytes = 0
        self.kv_bytes = 0
        self.batch_bytes = 0

    def report(self) -> dict[str, int]:
        """Return the numbers by name."""
        return {name: getattr(self, name) for name in self.__slots__}
