"""The platform `cuda`: a device, its memory and its graphs, through torch."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pegboard.api.errors import ConfigError
from pegboard.api.platforms import MemoryInfo, Platform

if TYPE_CHECKING:
    import torch

__all__ = ["CudaPlatform"]


class CudaPlatform(Platform):
    """One GPU a worker."""

    _pool: Any = None
    _stream: Any = None

    def validate(self, config: Any) -> list[str]:  # noqa: ANN401 -- an EngineConfigView
        """Any configuration that components accept runs here."""
        del config
        return []

    def supported_dtypes(self) -> tuple[str, ...]:
        """The tensor cores' dtypes, then float32."""
        return ("bfloat16", "float16", "float32")

    def open_device(self, local_rank: int, local_world_size: int) -> "torch.device":
        """Make GPU `local_rank` this process's.

        Raises:
            ConfigError: torch cannot use it.
        """
        import torch

        del local_world_size
        if not torch.cuda.is_available():
            raise ConfigError(
                f"torch {torch.__version__} cannot use the GPU; install a CUDA build of torch "
                "that fits the driver, or run on the host (--platform cpu)"
            )
        if local_rank >= torch.cuda.device_count():
            raise ConfigError(
                f"rank {local_rank} has no GPU: torch sees {torch.cuda.device_count()} "
                "(--tensor-parallel-size, CUDA_VISIBLE_DEVICES)"
            )
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank)

    def memory_info(self) -> MemoryInfo:
        """Return the opened GPU's memory; `used_bytes` is what torch's allocator holds."""
        import torch

        free, total = torch.cuda.mem_get_info()
        return MemoryInfo(
            total_bytes=total, free_bytes=free, used_bytes=torch.cuda.memory_reserved()
        )

    def num_threads(self) -> int:
        """Return 0: kernels use no host threads."""
        return 0

    def synchronize(self) -> None:
        """Wait until the GPU is idle."""
        import torch

        torch.cuda.synchronize()

    def is_asynchronous(self) -> bool:
        """Return True: the GPU works beside the host."""
        return True

    def supports_graphs(self) -> bool:
        """Return True."""
        return True

    def capture_graph(
        self,
        function: Callable[[], object],
        pool: Any = None,  # noqa: ANN401 -- torch's handle
    ) -> Callable[[], None]:
        """Record `function()` on a side stream; graphs share one pool of memory by default.

        Other threads may go on using the device meanwhile.
        """
        import torch

        if self._stream is None:
            self._stream = torch.cuda.Stream()
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool or self._pool, capture_error_mode="thread_local")
            try:
                function()
            finally:
                graph.capture_end()
        torch.cuda.synchronize()
        return graph.replay

    def pin_memory(self) -> bool:
        """Return True: copies from pinned memory do not wait."""
        return True
