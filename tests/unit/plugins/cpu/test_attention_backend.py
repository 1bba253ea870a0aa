"""What the conformance kit does not drive: the fused write, kept keys, padding, refusals."""

import pytest
import torch

from pegboard.api.attention import (
    AttentionBackendConfig,
    AttentionLayer,
    CommonAttentionMetadata,
)
from pegboard.api.errors import ConfigError
from pegboard.api.plugin import ComponentContext
from pegboard_cpu import ops
from pegboard_cpu.attention import CpuAttentionBackend

HEADS, KV_HEADS, SIZE, BLOCK = 6, 2, 32, 32


@pytest.fixture(params=["float32", "bfloat16"])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def _backend(name: str) -> CpuAttentionBackend:
    config = AttentionBackendConfig(
        dtype=name,
        kv_dtype=name,
        device="cpu",
        block_size=BLOCK,
        max_num_reqs=8,
        max_num_tokens=64,
        max_model_len=256,
    )
    return CpuAttentionBackend(ComponentContext(plugin="cpu"), config)


def _layer(v_head_size: int = SIZE) -> AttentionLayer:
    return AttentionLayer(
        index=0,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_size=SIZE,
        v_head_size=v_head_size,
        scale=0.2,
    )


def _caches(backend: CpuAttentionBackend) -> tuple[torch.Tensor, ...]:
    layout = backend.kv_layout(_layer(), 4)
    return tuple(
        torch.zeros(shape, dtype=getattr(torch, dtype))
        for shape, dtype in zip(layout.shapes, layout.dtypes, strict=True)
    )


def _metadata(tokens: int, padding: int = 0) -> CommonAttentionMetadata:
    return CommonAttentionMetadata(
        num_reqs=1,
        num_tokens=tokens,
        num_decodes=0,
        max_query_len=tokens,
        max_seq_len=tokens,
        query_start_loc=torch.tensor([0, tokens], dtype=torch.int32),
        seq_lens=torch.tensor([tokens], dtype=torch.int32),
        block_table=torch.tensor([[3, 1]], dtype=torch.int32),
        slot_mapping=torch.tensor(
            [(3 if t < BLOCK else 1) * BLOCK + t % BLOCK for t in range(tokens)] + [-1] * padding
        ),
    )


def test_fused_write_gives_the_bits_of_rotation_then_attention(name: str) -> None:
    dtype = getattr(torch, name)
    backend, tokens = _backend(name), 40
    qkv = torch.randn(tokens, (HEADS + 2 * KV_HEADS) * SIZE).to(dtype)
    positions = torch.arange(tokens)
    cos_sin = torch.randn(64, SIZE)
    metadata = backend.metadata_builder(None).build(_metadata(tokens))  # type: ignore[arg-type]
    implementation = backend.implementation(_layer())

    apart = qkv.clone()
    query, key, value = (
        part.unflatten(-1, (-1, SIZE))
        for part in apart.split([HEADS * SIZE, KV_HEADS * SIZE, KV_HEADS * SIZE], 1)
    )
    ops.rotary_embedding(query, key, positions, cos_sin, False)
    expected, first = torch.empty(tokens, HEADS, SIZE, dtype=dtype), _caches(backend)
    implementation.forward(query, key, value, first, metadata, expected)

    fused, second = qkv.clone(), _caches(backend)
    ops.rope_and_write_kv(
        fused, positions, cos_sin, None, None, 0.0, metadata.slot_mapping, second, HEADS,
        KV_HEADS, SIZE, SIZE, False,
    )  # fmt: skip
    got = torch.empty_like(expected)
    turned = fused[:, : HEADS * SIZE].unflatten(-1, (HEADS, SIZE))
    implementation.forward(turned, None, None, second, metadata, got)
    assert torch.equal(got, expected)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_head_norms_come_before_the_rotation(name: str) -> None:
    dtype = getattr(torch, name)
    qkv = torch.randn(5, (HEADS + 2 * KV_HEADS) * SIZE).to(dtype)
    positions, cos_sin = torch.arange(5), torch.randn(8, SIZE)
    norms = torch.rand(2, SIZE) + 0.5
    normed = ops.rms_norm(
        qkv[:, : HEADS * SIZE].float().unflatten(-1, (HEADS, SIZE)), norms[0], 1e-6
    )
    half = SIZE // 2
    cos, sin = cos_sin[:5, None, :half], cos_sin[:5, None, half:]
    a, b = normed[..., :half], normed[..., half:]
    expected = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    backend = _backend(name)
    ops.rope_and_write_kv(
        qkv, positions, cos_sin, norms[0], norms[1], 1e-6, torch.full((5,), -1), _caches(backend),
        HEADS, KV_HEADS, SIZE, SIZE, False,
    )  # fmt: skip
    got = qkv[:, : HEADS * SIZE].unflatten(-1, (HEADS, SIZE)).float()
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


def test_padding_rows_become_zeros_and_are_not_cached(name: str) -> None:
    dtype = getattr(torch, name)
    backend, tokens, padding = _backend(name), 3, 2
    metadata, caches = _metadata(tokens, padding), _caches(backend)
    query = torch.randn(tokens + padding, HEADS, SIZE).to(dtype)
    key = torch.ones(tokens + padding, KV_HEADS, SIZE, dtype=dtype)
    output = torch.full_like(query, float("nan"))
    backend.implementation(_layer()).forward(query, key, key.clone(), caches, metadata, output)
    assert not output[tokens:].any()
    assert output[:tokens].isfinite().all()
    for cache in caches:
        assert int(cache.count_nonzero()) == tokens * KV_HEADS * SIZE


def test_values_of_another_width_are_refused_with_the_mend(name: str) -> None:
    with pytest.raises(ConfigError, match="--attention-backend REFERENCE"):
        _backend(name).kv_layout(_layer(v_head_size=16), 4)


def test_packing_keeps_no_reference_to_the_original(name: str) -> None:
    weight = torch.randn(48, 64).to(getattr(torch, name))
    bias = torch.randn(48).to(weight.dtype)
    x = torch.randn(2, 64).to(weight.dtype)
    op = ops.Linear()
    packed = op.prepare(weight, bias)
    before = op(x, packed)
    weight.fill_(float("nan"))
    bias.fill_(float("nan"))
    assert torch.equal(op(x, packed), before)
    assert packed.nbytes == sum(tensor.nbytes for tensor in packed.tensors.values())


def test_tied_embedding_reads_the_packed_copy(name: str) -> None:
    weight = torch.randn(100, 48).to(getattr(torch, name))
    op = ops.Logits()
    packed = op.prepare(weight)
    ids = torch.randint(0, 100, (13,))
    assert torch.equal(op.embed(ids, packed), weight[ids])
    assert op(weight[:2], packed).dtype is torch.float32
