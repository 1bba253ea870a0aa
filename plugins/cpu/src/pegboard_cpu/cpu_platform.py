"""The platform `cpu`: threads, memory and dtypes of the processor."""

import logging
from typing import TYPE_CHECKING, Any

from pegboard.api.errors import ConfigError
from pegboard.api.platforms import MemoryInfo, Platform
from pegboard_cpu.config import CpuConfig
from pegboard_cpu.cores import memory_limits, resident_bytes, usable_cores
from pegboard_kernels import Isa, KernelError, KernelLibrary, KernelsUnavailableError, load

if TYPE_CHECKING:
    import torch

__all__ = ["CpuPlatform"]

logger = logging.getLogger(__name__)

_GIB = 1 << 30


class CpuPlatform(Platform):
    """The processor. Several ranks of one host share its cores evenly."""

    _num_threads = 1

    @property
    def options(self) -> CpuConfig:
        """The plugin's options."""
        return self.context.plugin_config or CpuConfig()

    def validate(self, config: Any) -> list[str]:  # noqa: ANN401 -- an EngineConfigView
        """Any configuration runs here."""
        del config
        return []

    def supported_dtypes(self) -> tuple[str, ...]:
        """The kernels' dtypes, then the one that only references compute in."""
        return ("bfloat16", "float32", "float16")

    def open_device(self, local_rank: int, local_world_size: int) -> "torch.device":
        """Start the kernels' threads; torch keeps one where they are used.

        Raises:
            ConfigError: the instruction set that was asked for cannot be used.
        """
        import torch

        del local_rank
        self._num_threads = self.options.threads or max(1, usable_cores() // local_world_size)
        try:
            library = load()
        except KernelsUnavailableError as error:
            logger.warning("native kernels are not used, references serve instead: %s", error)
            torch.set_num_threads(self._num_threads)
            return torch.device("cpu")
        self._set_up(library)
        torch.set_num_threads(1)
        return torch.device("cpu")

    def _set_up(self, library: KernelLibrary) -> None:
        try:
            if self.options.isa != "auto":
                library.set_isa(Isa[self.options.isa.upper()])
            library.set_num_threads(self._num_threads, self.options.spin_us)
        except KernelError as error:
            raise ConfigError(f"plugins.cpu: {error}") from error
        logger.info("cpu kernels isa=%s threads=%d", library.isa.name.lower(), library.num_threads)

    def memory_info(self) -> MemoryInfo:
        """Return the machine's memory, within this process's control group."""
        total, available = memory_limits()
        return MemoryInfo(total_bytes=total, free_bytes=available, used_bytes=resident_bytes())

    def num_threads(self) -> int:
        """Return threads of a kernel, the calling one included."""
        return self._num_threads

    def default_kv_bytes(self, free_bytes: int, utilization: float, used_bytes: int) -> int:
        """Return a share of what is free, at most `max_kv_gib`: the host has other work too."""
        share = super().default_kv_bytes(free_bytes, utilization, used_bytes)
        return min(share, int(self.options.max_kv_gib * _GIB))
