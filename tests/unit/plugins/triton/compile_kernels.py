"""Compile kernels ahead for sm_90 and look at the assembly; run as a program, without a GPU."""

import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pegboard_triton import batch, decode, prefill, rope, sampling

TARGET = GPUTarget("cuda", 90, 32)
POINTERS = {"bf": "*bf16", "f": "*fp32", "i": "*i32", "l": "*i64"}


def compiled(kernel, kinds, constants, warps=4, stages=3):
    """Compile one kernel; `kinds` spells the arguments in order, constants by name."""
    names = [name for name in kernel.arg_names if name not in constants]
    signature = dict(zip(names, (POINTERS.get(k, k) for k in kinds), strict=True))
    signature |= dict.fromkeys(constants, "constexpr")
    signature = {name: signature[name] for name in kernel.arg_names}
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(kernel.arg_names)
        if signature[name].startswith("*") or name.endswith("_stride")
    }
    source = ASTSource(kernel, signature, constexprs=constants, attrs=aligned)
    return triton.compile(
        source, target=TARGET, options={"num_warps": warps, "num_stages": stages}
    ).asm["ptx"]


def attention(**more):
    return {
        "KV_HEADS": 8, "SIZE": 128, "PADDED": 128, "BLOCK_SIZE": 64, "WINDOW": 0, "SOFT_CAP": 0.0,
        "PRECISION": "tf32", **more,
    }  # fmt: skip


def main():
    split = attention(GROUP=4, LINES=16, TOKENS=64, IS_SPLIT=True)
    kinds = ["bf", "bf", "bf", "i", "i", "bf", "f", "f", "fp32", "i32", "i32", "i32", "i32"]
    for changes in ({}, {"WINDOW": 512, "SOFT_CAP": 30.0, "BLOCK_SIZE": 16, "IS_SPLIT": False}):
        ptx = compiled(decode._decode, kinds, split | changes)
        assert "mma.sync" in ptx, "decode uses no tensor cores"
    whole = attention(HEADS=32, ROWS=128, TOKENS=64)
    kinds = ["bf", "bf", "bf", "i", "i", "i", "bf", "i32", "i32", "fp32", "i32", "i32", "i32"]
    boxes = ["tensordesc<bf16[128, 128]>", *["tensordesc<bf16[64, 128]>"] * 2, *kinds[3:]]
    for use, spelled in ((False, kinds), (True, boxes)):
        ptx = compiled(prefill._prefill, spelled, whole | {"BY_DESCRIPTOR": use}, warps=8)
        assert "wgmma" in ptx, "prefill uses no wgmma"
        assert ("cp.async.bulk.tensor" in ptx) == use, "descriptors and bulk copies go together"
    windowed = whole | {"BY_DESCRIPTOR": True, "WINDOW": 512, "SOFT_CAP": 30.0}
    compiled(prefill._prefill, boxes, windowed, warps=8)
    compiled(
        rope._rope_and_write,
        ["bf", "l", "f", "f", "f", "fp32", "l", "bf", "bf", "i32"],
        {
            "HEADS": 32, "KV_HEADS": 8, "TILE": 8, "SIZE": 128, "PADDED": 128, "ROTARY": 128,
            "INTERLEAVED": False, "HAS_NORM": True, "BLOCK_SIZE": 64,
        },
    )  # fmt: skip
    compiled(batch._prepare, ["i", "i", "l", "i", "i", "l", "l", "l", "i", "i32"], {"BLOCK": 256})
    compiled(sampling._greatest_of_chunk, ["f", "f", "i", "i32", "i32", "i32"], {"CHUNK": 4096})
    compiled(
        decode._join, ["f", "f", "bf", "i32", "i32"],
        {"HEADS": 32, "SIZE": 128, "PADDED": 128, "PARTS": 64},
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
