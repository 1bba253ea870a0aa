"""Checks of attention backends: numerics against dense attention, and what they may touch."""

import itertools
from collections.abc import Iterator

import torch

from pegboard.api.attention import AttentionLayer
from pegboard.conformance.attention_rig import TOLERANCE, AttentionRig, torch_dtype
from pegboard.conformance.kit import NotApplicable, Subject, check

__all__: list[str] = []

_KIND = "attention_backends"
_HEAD_SIZES = (64, 128, 96, 256, 32, 80)


def _head_sizes(subject: Subject) -> list[int]:
    spec = subject.spec
    if spec.head_sizes:
        return list(spec.head_sizes)
    limit = spec.max_head_size or max(_HEAD_SIZES)
    sizes = [s for s in _HEAD_SIZES if s <= limit and s % spec.head_size_multiple == 0]
    return sizes or [spec.head_size_multiple]


def _layer(
    head_size: int,
    heads: tuple[int, int] = (6, 2),
    *,
    window: int | None = None,
    soft_cap: float | None = None,
) -> AttentionLayer:
    return AttentionLayer(
        index=0,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_size=head_size,
        v_head_size=head_size,
        scale=head_size**-0.5,
        sliding_window=window,
        soft_cap=soft_cap,
    )


def _rigs(subject: Subject, **layer: float) -> Iterator[AttentionRig]:
    """One rig for each dtype and a choice of head sizes."""
    for dtype, size in itertools.product(subject.spec.dtypes, _head_sizes(subject)[:3]):
        yield AttentionRig(subject, dtype=dtype, layer=_layer(size, **layer))  # type: ignore[arg-type]


def _numel(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


def _compare(rig: AttentionRig, output: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    name = str(rig.dtype).removeprefix("torch.")
    error = ((output.float() - expected).abs() / (1 + expected.abs())).max().item()
    assert error <= TOLERANCE[name], (
        f"{what}: error {error:.2e} over {TOLERANCE[name]:.0e} "
        f"({name}, head size {rig.layer.head_size})"
    )


def _compare_step(rig: AttentionRig, work: list, what: str, **options: object) -> None:
    output, expected = rig.step(work, **options)  # type: ignore[arg-type]
    _compare(rig, output, expected, what)


@check(_KIND)
def layout_is_consistent(subject: Subject) -> None:
    """The layout counts blocks in `block_dim`, is the same when asked again, and has its dtypes."""
    for rig in _rigs(subject):
        one, two = (rig.backend.kv_layout(rig.layer, n) for n in (3, 7))
        assert two == rig.backend.kv_layout(rig.layer, 7), "the layout changed between two calls"
        assert one.block_size == rig.block_size, "the layout has another block size"
        assert len(one.shapes) == len(one.dtypes), "each tensor needs a shape and a dtype"
        for a, b in zip(one.shapes, two.shapes, strict=True):
            assert (a[one.block_dim], b[one.block_dim]) == (3, 7), "block_dim does not count blocks"
            assert _numel(a) * 7 == _numel(b) * 3, "bytes a block are not constant"
        for name in one.dtypes:
            torch_dtype(name)


@check(_KIND)
def prefill_matches_dense_attention(subject: Subject) -> None:
    """Whole prompts of several lengths, in one step."""
    for rig in _rigs(subject):
        work = [(rig.sequence(), n) for n in (rig.block_size, 3 * rig.block_size + 5, 2)]
        _compare_step(rig, work, "prefill")


@check(_KIND)
def decode_matches_dense_attention(subject: Subject) -> None:
    """One token a request, over block boundaries."""
    for rig in _rigs(subject):
        lengths = (rig.block_size - 1, 2 * rig.block_size, 5)
        sequences = [rig.sequence() for _ in lengths]
        rig.step([(s, n) for s, n in zip(sequences, lengths, strict=True)])
        for turn in range(3):
            _compare_step(rig, [(s, 1) for s in sequences], f"decode {turn}")


@check(_KIND)
def mixed_batch_matches_dense_attention(subject: Subject) -> None:
    """Decodes, a chunk and a prefill share a step; chunks of one prompt follow each other."""
    for rig in _rigs(subject):
        decoding, chunked, fresh = (rig.sequence() for _ in range(3))
        _compare_step(rig, [(decoding, 7), (chunked, rig.block_size + 3)], "first chunk")
        _compare_step(rig, [(decoding, 1), (chunked, 2 * rig.block_size), (fresh, 9)], "mixed")
        _compare_step(rig, [(decoding, 1), (fresh, 1), (chunked, 5)], "last chunk")


@check(_KIND)
def long_decode_matches_dense_attention(subject: Subject) -> None:
    """A long context beside short ones, where a kernel may split the work over its length."""
    for rig in _rigs(subject):
        long, short = rig.sequence(), rig.sequence()
        rig.step([(long, 40 * rig.block_size + 3), (short, 3)])
        _compare_step(rig, [(long, 1), (short, 1)], "long decode")


@check(_KIND)
def head_ratios_match_dense_attention(subject: Subject) -> None:
    """One query head a KV head, several, and one KV head for all."""
    for heads in ((4, 4), (8, 2), (5, 1), (9, 3)):
        for rig in _rigs(subject, heads=heads):  # type: ignore[arg-type]
            first, second = rig.sequence(), rig.sequence()
            _compare_step(rig, [(first, 2 * rig.block_size + 1), (second, 4)], f"heads {heads}")
            _compare_step(rig, [(first, 1), (second, 1)], f"decode, heads {heads}")


@check(_KIND)
def sliding_window_matches_dense_attention(subject: Subject) -> None:
    """Windows shorter and longer than a block, in prefill, chunks and decode."""
    if "sliding_window" not in subject.spec.features:
        raise NotApplicable("the spec does not claim sliding_window")
    for window in (1, 7, 40):
        for rig in _rigs(subject, window=window):
            first, second = rig.sequence(), rig.sequence()
            _compare_step(rig, [(first, 3 * rig.block_size + 2), (second, 3)], f"window {window}")
            _compare_step(rig, [(second, 1), (first, rig.block_size + 5)], f"chunk, {window}")
            _compare_step(rig, [(first, 1), (second, 1)], f"decode, window {window}")


@check(_KIND)
def soft_cap_matches_dense_attention(subject: Subject) -> None:
    """Scores are capped before the mask and the softmax."""
    if "soft_cap" not in subject.spec.features:
        raise NotApplicable("the spec does not claim soft_cap")
    for rig in _rigs(subject, soft_cap=1.5):
        sequence = rig.sequence()
        _compare_step(rig, [(sequence, rig.block_size + 9)], "soft cap")
        _compare_step(rig, [(sequence, 1)], "decode, soft cap")


@check(_KIND)
def padding_is_not_written(subject: Subject) -> None:
    """Tokens with slot -1 leave every block as it was, the null block too."""
    for rig in _rigs(subject):
        bystander, sequence = rig.sequence(), rig.sequence()
        rig.step([(bystander, 2 * rig.block_size)])
        before = [t.clone() for t in rig.cache]
        output, expected = rig.step([(sequence, 3)], padding=5)
        _compare(rig, output, expected, "padded step")
        dim = rig.layout.block_dim
        others = [b for b in range(before[0].shape[dim]) if b not in sequence.blocks]
        index = torch.tensor(others)
        for old, new in zip(before, rig.cache, strict=True):
            pair = (t.index_select(dim, index) for t in (old, new))
            same = torch.equal(*(t.contiguous().view(torch.uint8) for t in pair))
            assert same, "a block that no token of the step belongs to was written"


@check(_KIND)
def strided_queries_are_read_in_place(subject: Subject) -> None:
    """The query may be a view into a fused product."""
    for rig in _rigs(subject):
        sequence = rig.sequence()
        _compare_step(rig, [(sequence, rig.block_size + 1)], "strided prefill", strided=True)
        _compare_step(rig, [(sequence, 1)], "strided decode", strided=True)


@check(_KIND)
def block_sizes_match_dense_attention(subject: Subject) -> None:
    """Every block size that the multiple admits works, not only the preferred one."""
    multiple = subject.spec.block_size_multiple
    for size in (multiple, 2 * multiple, 128 // multiple * multiple or multiple):
        layer = _layer(_head_sizes(subject)[0])
        rig = AttentionRig(subject, dtype=subject.spec.dtypes[0], layer=layer, block_size=size)
        sequence = rig.sequence()
        _compare_step(rig, [(sequence, min(2 * size + 1, 200))], f"block size {size}")
        _compare_step(rig, [(sequence, 1)], f"decode, block size {size}")


@check(_KIND)
def extreme_scores_stay_finite(subject: Subject) -> None:
    """Large scores of one sign neither overflow nor lose the row."""
    for dtype in subject.spec.dtypes:
        layer = AttentionLayer(
            index=0,
            num_heads=2,
            num_kv_heads=1,
            head_size=(size := _head_sizes(subject)[0]),
            v_head_size=size,
            scale=30.0,
        )
        rig = AttentionRig(subject, dtype=dtype, layer=layer)
        output, _ = rig.step([(rig.sequence(), 2 * rig.block_size + 3)])
        assert torch.isfinite(output).all(), f"{dtype}: scores of hundreds gave a non-finite output"


@check(_KIND)
def same_step_gives_same_bits(subject: Subject) -> None:
    """Two equal steps give equal bits, with one thread and with two."""
    for dtype in subject.spec.dtypes:
        outputs = []
        for threads in (1, 2, 2):
            layer = _layer(_head_sizes(subject)[0])
            rig = AttentionRig(subject, dtype=dtype, layer=layer, num_threads=threads)
            sequence = rig.sequence()
            rig.step([(sequence, 20 * rig.block_size)])
            outputs.append(rig.step([(sequence, 1)])[0])
        assert torch.equal(outputs[0], outputs[1]), f"{dtype}: one and two threads differ"
        assert torch.equal(outputs[1], outputs[2]), f"{dtype}: two equal steps differ"
