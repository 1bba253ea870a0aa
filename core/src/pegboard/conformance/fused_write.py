"""Checks a fused rotary-and-cache-write op through the backend whose layout it writes."""

from collections.abc import Iterator
from typing import Any

import torch

from pegboard.api.attention import AttentionLayer
from pegboard.catalog import Entry
from pegboard.conformance.attention_rig import (
    TOLERANCE,
    AttentionRig,
    RigSequence,
    dense_attention,
)
from pegboard.conformance.kit import NotApplicable, Subject, check
from pegboard.ops.reference import rms_norm, rotary_embedding

__all__: list[str] = []

_EPS = 1e-6


def _layer(head_size: int) -> AttentionLayer:
    return AttentionLayer(
        index=0,
        num_heads=6,
        num_kv_heads=2,
        head_size=head_size,
        v_head_size=head_size,
        scale=head_size**-0.5,
    )


def _backend(subject: Subject) -> Entry:
    """Return the attention backend that publishes a layout the op writes."""
    for entry in subject.catalog.entries("attention_backends"):
        probe = Subject(subject.catalog, entry, subject.seed)
        for dtype in set(subject.spec.dtypes) & set(probe.spec.dtypes):
            if AttentionRig(probe, dtype=dtype, layer=_layer(64), num_blocks=2).layout.name in (
                subject.spec.kv_layouts
            ):
                return entry
    raise AssertionError(f"no attention backend publishes {', '.join(subject.spec.kv_layouts)}")


def _variants(subject: Subject) -> Iterator[tuple[AttentionRig, bool, bool, int]]:
    """Rigs with and without head norms, halves and pairs, whole and partial rotation."""
    backend = Subject(subject.catalog, _backend(subject), subject.seed)
    for dtype in subject.spec.dtypes:
        for size, normed, interleaved, rotary in (
            (64, False, False, 64),
            (32, True, False, 32),
            (64, False, True, 32),
        ):
            rig = AttentionRig(backend, dtype=dtype, layer=_layer(size))
            yield rig, normed, interleaved, rotary


@check("op_implementations")
def fused_write_matches_its_backend(subject: Subject) -> None:
    """Head norms, rotary and cache write equal the plain ops, seen through attention."""
    if subject.spec.op != "rope_and_write_kv":
        raise NotApplicable("only the fused rotary and cache write is driven through its backend")
    op = subject.catalog.load(subject.entry)
    for rig, normed, interleaved, rotary in _variants(subject):
        sequences = [rig.sequence() for _ in range(3)]
        for lengths in ((5, 2 * rig.block_size + 3, 1), (1, 1, 4), (1, 1, 1)):
            order = sorted(zip(sequences, lengths, strict=True), key=lambda w: w[1] > 1)
            got, expected = _step(rig, op, order, normed, interleaved, rotary)
            error = ((got.float() - expected).abs() / (1 + expected.abs())).max().item()
            name = str(rig.dtype).removeprefix("torch.")
            what = f"norms {normed}, interleaved {interleaved}, rotary {rotary}, {name}"
            assert error <= 2 * TOLERANCE[name], f"{what}: error {error:.2e}"


def _step(
    rig: AttentionRig,
    op: Any,  # noqa: ANN401 -- the op under test
    work: list[tuple[RigSequence, int]],
    normed: bool,
    interleaved: bool,
    rotary: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    layer, total, padding = rig.layer, sum(n for _, n in work), 2
    heads, kv_heads, size = layer.num_heads, layer.num_kv_heads, layer.head_size
    angles = torch.rand(256, rotary // 2, generator=rig.random) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), -1)
    q_norm, k_norm = (
        torch.rand(size, generator=rig.random) + 0.5 if normed else None for _ in range(2)
    )
    qkv = rig.normal(total + padding, (heads + 2 * kv_heads) * size)
    positions = [p for s, n in work for p in range(len(s), len(s) + n)] + [0] * padding
    position = torch.tensor(positions)
    sizes = (heads * size, kv_heads * size, kv_heads * size)
    query, key, value = (
        part.clone().unflatten(-1, (-1, size)) for part in qkv.float().split(sizes, -1)
    )
    if q_norm is not None and k_norm is not None:
        query, key = rms_norm(query, q_norm, _EPS), rms_norm(key, k_norm, _EPS)
    rotary_embedding(query, key, position, cos_sin, interleaved)
    slots, expected, start = [], [], 0
    for sequence, new in work:
        rows = slice(start, start + new)
        slots += rig.slots(sequence, new)
        sequence.keys = torch.cat([sequence.keys, key[rows].to(rig.dtype).float()])
        sequence.values = torch.cat([sequence.values, value[rows]])
        rounded = query[rows].to(rig.dtype)
        expected.append(dense_attention(rounded, sequence.keys, sequence.values, layer))
        start += new
    slots += [-1] * padding
    mapping = torch.tensor(slots)
    norms = (q_norm, k_norm, _EPS)
    shape = (heads, kv_heads, size, size, interleaved)
    op(qkv, position, cos_sin, *norms, mapping, rig.cache, *shape)
    output = torch.full((total + padding, heads, size), float("nan"), dtype=rig.dtype)
    turned = qkv[:, : heads * size].unflatten(-1, (heads, size))
    rig.impl.forward(turned, None, None, rig.cache, rig.metadata(work, slots), output)
    return output[:total], torch.cat(expected)
