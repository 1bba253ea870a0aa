"""The plugin's options."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

__all__ = ["CpuConfig"]


class CpuConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the CPU plugin; `[plugins.cpu]`."""

    threads: Annotated[
        int, Meta(ge=0, le=1024, description="Threads of a kernel; 0: physical cores a rank.")
    ] = 0
    isa: Annotated[
        Literal["auto", "portable", "avx2", "avx512", "avx512_bf16", "amx_bf16"],
        Meta(description="Instruction set of the kernels; auto: the best that checks out."),
    ] = "auto"
    spin_us: Annotated[
        int,
        Meta(ge=0, le=100_000, description="Microseconds an idle kernel thread spins."),
    ] = 50
    max_kv_gib: Annotated[
        float,
        Meta(gt=0, description="Most GiB of KV cache where no size is given."),
    ] = 4.0
