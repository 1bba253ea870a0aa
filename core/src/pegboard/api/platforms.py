"""Hardware platforms: what a device is, and how the core talks to it without naming it."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from pegboard.api.plugin import ComponentContext, ComponentSpec, check_target

if TYPE_CHECKING:
    import torch

__all__ = ["Detection", "MemoryInfo", "Platform", "PlatformQuery", "PlatformSpec"]


class Detection(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe found, made without importing torch and without opening a device context.

    Attributes:
        available: the platform can run here.
        reason: one line why, or why not.
        device_name: such as a processor's model name.
        num_devices: devices a process may use.
        capability: (major, minor), where the platform has such a thing.
        features: what it declares to backends and ops, such as "triton" or "avx512_bf16".
    """

    available: bool
    reason: str
    device_name: str = ""
    num_devices: int = 0
    capability: tuple[int, int] | None = None
    features: tuple[str, ...] = ()


class PlatformQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which platform is asked for; None takes the best that is available."""

    name: str | None = None


class PlatformSpec(ComponentSpec, frozen=True, kw_only=True):
    """Describes a `Platform`; its `target` is the class.

    Attributes:
        detect: "module:function" taking nothing and returning a `Detection`.
        device_type: torch's device type, such as "cpu" or "cuda".
        distributed_backend: torch.distributed's backend for its collectives.
    """

    kind: ClassVar[str] = "platforms"

    detect: str
    device_type: str
    distributed_backend: str = "gloo"

    def __post_init__(self) -> None:
        """Check names and targets."""
        ComponentSpec.__post_init__(self)
        check_target(self.detect, f"detect of platform {self.name!r}")

    def reasons_against(self, query: PlatformQuery) -> list[str]:
        """Fits unless another is asked for; whether it is available, `detect` says."""
        if query.name in (None, self.name, *self.aliases):
            return []
        return [f"{query.name} was asked for"]


class MemoryInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Device memory in bytes: total, free for this process to take, and used by this process."""

    total_bytes: int
    free_bytes: int
    used_bytes: int


class Platform(ABC):
    """One hardware family. One instance a worker; `validate` also runs in the front end.

    Attributes:
        name: the spec's name.
        worker, model_runner: "module:class" of its own, or None for the core's; behind
            `pegboard.api.engine.Worker` and `ModelRunner`, and made with the same arguments.
    """

    worker: ClassVar[str | None] = None
    model_runner: ClassVar[str | None] = None

    def __init__(self, context: ComponentContext, spec: PlatformSpec) -> None:
        """Keep the context; opens no device."""
        self.context = context
        self.spec = spec
        self.name = spec.name

    @abstractmethod
    def validate(self, config: Any) -> list[str]:  # noqa: ANN401 -- an EngineConfigView
        """Return what in the resolved configuration this platform cannot do, one line each."""

    @abstractmethod
    def supported_dtypes(self) -> tuple[str, ...]:
        """Return dtypes models can run in, the preferred first."""

    @abstractmethod
    def open_device(self, local_rank: int, local_world_size: int) -> "torch.device":
        """Make device `local_rank` this process's; set threads and affinity. Call once."""

    @abstractmethod
    def memory_info(self) -> MemoryInfo:
        """Return the opened device's memory."""

    @abstractmethod
    def num_threads(self) -> int:
        """Return host threads the opened device's kernels may use; 0 where that means nothing."""

    def default_kv_bytes(self, free_bytes: int, utilization: float, used_bytes: int) -> int:
        """Return bytes for KV blocks after weights are loaded and a profiling pass has run.

        Args:
            free_bytes: free device memory at start.
            utilization: fraction of the device this engine may use.
            used_bytes: held by weights plus the peak of activations.
        """
        return max(0, int(free_bytes * utilization) - used_bytes)

    def synchronize(self) -> None:  # noqa: B027 -- nothing to wait for where work is synchronous
        """Wait until all queued device work is done."""

    def is_asynchronous(self) -> bool:
        """Return whether queued device work runs beside the host thread that queued it."""
        return False

    def supports_graphs(self) -> bool:
        """Return whether `capture_graph` works."""
        return False

    def capture_graph(self, function: Any, pool: Any = None) -> Any:  # noqa: ANN401 -- device's own
        """Record `function()` and return a callable that replays it.

        Raises:
            NotImplementedError: on platforms whose `supports_graphs` is False.
        """
        raise NotImplementedError(f"platform {self.name} captures no graphs")

    def pin_memory(self) -> bool:
        """Return whether host buffers should be pinned for copies to the device."""
        return False
