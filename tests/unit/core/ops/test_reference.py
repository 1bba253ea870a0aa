"""The references against independent formulas: they are the truth, so they had better be true."""

import pytest
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from pegboard.ops import reference

DTYPES = {torch.float32: 1e-6, torch.bfloat16: 8e-3}


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def close(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(got.double(), want.double(), rtol=DTYPES[dtype], atol=DTYPES[dtype])


def test_rms_norm_divides_by_the_root_of_the_mean_square(dtype: torch.dtype) -> None:
    x = torch.randn(5, 3, 33, dtype=dtype) * 4
    weight = torch.rand(33) + 0.5

    got = reference.rms_norm(x, weight, 1e-3)

    wide = x.double()
    want = wide / (wide.pow(2).sum(-1, keepdim=True) / 33 + 1e-3).sqrt() * weight.double()
    assert got.dtype == dtype
    close(got, want, dtype)


def test_rms_norm_takes_heads_inside_a_product() -> None:
    product = torch.randn(4, 3 * 8 + 10)
    heads = product[:, 5:29].unflatten(-1, (3, 8))
    weight = torch.rand(8)

    got = reference.rms_norm(heads, weight, 1e-6)

    assert torch.equal(got, reference.rms_norm(heads.clone(), weight, 1e-6))


def test_fused_add_rms_norm_is_an_addition_and_a_norm(dtype: torch.dtype) -> None:
    x, residual = torch.randn(7, 24, dtype=dtype), torch.randn(7, 24, dtype=dtype) * 5
    weight = torch.rand(24)
    total = x + residual
    want = reference.rms_norm(total, weight, 1e-5)

    assert reference.fused_add_rms_norm(x, residual, weight, 1e-5) is None

    assert torch.equal(residual, total)
    assert torch.equal(x, want)


@pytest.mark.parametrize("name", ["silu", "gelu_tanh"])
def test_gated_activations_gate_the_second_half_by_the_first(name: str, dtype: torch.dtype) -> None:
    x = torch.randn(3, 2, 14, dtype=dtype) * 3
    gate, up = x.double()[..., :7], x.double()[..., 7:]
    if name == "silu":
        want = gate / (1 + torch.exp(-gate)) * up
    else:
        inner = (2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3)
        want = 0.5 * gate * (1 + torch.tanh(inner)) * up

    got = getattr(reference, f"{name}_and_mul")(x)

    assert got.dtype == dtype
    close(got, want, dtype)


def test_linear_packs_a_copy(dtype: torch.dtype) -> None:
    whole = torch.randn(6, 20, dtype=dtype)
    weight, bias = whole[:, 3:15], torch.randn(6, dtype=dtype)
    x = torch.randn(2, 5, 12, dtype=dtype)
    op = reference.Linear()
    want = (x.double() @ weight.double().T + bias.double()).to(dtype)

    packed = op.prepare(weight, bias)
    whole.zero_()
    bias.zero_()

    torch.testing.assert_close(op(x, packed), want, rtol=2e-2, atol=2e-2)
    assert packed.nbytes == (6 * 12 + 6) * dtype.itemsize
    assert sum(t.nbytes for t in packed.tensors.values()) == packed.nbytes


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gate_up_linear_is_a_product_and_a_gate(activation: reference.Activation) -> None:
    weight, bias, x = torch.randn(10, 6), torch.randn(10), torch.randn(4, 6)
    op = reference.GateUpLinear()

    got = op(x, op.prepare(weight, bias, activation))

    product = x @ weight.T + bias
    want = getattr(reference, f"{activation}_and_mul")(product)
    torch.testing.assert_close(got, want)


def test_logits_are_float32_and_rows_read_back_exactly(dtype: torch.dtype) -> None:
    weight, hidden = torch.randn(31, 8, dtype=dtype), torch.randn(3, 8, dtype=dtype)
    ids = torch.tensor([30, 0, 7, 7])
    op = reference.Logits()

    packed = op.prepare(weight)

    assert op(hidden, packed).dtype == torch.float32
    torch.testing.assert_close(op(hidden, packed), (hidden @ weight.T).float())
    assert torch.equal(op.embed(ids, packed), weight[ids])


def test_embedding_returns_new_rows() -> None:
    weight = torch.randn(9, 4)
    rows = reference.embedding(torch.tensor([8, 8, 0]), weight)
    kept = weight.clone()
    rows.zero_()
    assert torch.equal(weight, kept)


def table(length: int, size: int) -> torch.Tensor:
    angles = torch.outer(
        torch.arange(length, dtype=torch.float32),
        1.0 / 10_000 ** (torch.arange(0, size, 2, dtype=torch.float32) / size),
    )
    return torch.cat((angles.cos(), angles.sin()), -1)


def test_rotary_halves_equal_transformers() -> None:
    query, key = torch.randn(6, 4, 16), torch.randn(6, 2, 16)
    positions = torch.randint(0, 40, (6,))
    cos_sin = table(40, 16)
    cos, sin = (t.repeat(1, 2) for t in cos_sin[positions].chunk(2, -1))
    want_query, want_key = apply_rotary_pos_emb(query, key, cos, sin)

    reference.rotary_embedding(query, key, positions, cos_sin, False)

    torch.testing.assert_close(query, want_query)
    torch.testing.assert_close(key, want_key)


def test_rotary_pairs_are_complex_products() -> None:
    query, key = torch.randn(5, 3, 8), torch.randn(5, 1, 8)
    positions = torch.randint(0, 20, (5,))
    cos_sin = table(20, 8)
    cos, sin = cos_sin[positions].chunk(2, -1)
    turn = torch.complex(cos, sin).unsqueeze(1)
    want = torch.view_as_real(torch.view_as_complex(query.unflatten(-1, (4, 2))) * turn).flatten(-2)

    reference.rotary_embedding(query, key, positions, cos_sin, True)

    torch.testing.assert_close(query, want)


@pytest.mark.parametrize("interleaved", [False, True])
def test_partial_rotary_leaves_the_rest_of_a_head(interleaved: bool) -> None:
    query, key = torch.randn(5, 3, 12), torch.randn(5, 1, 12)
    before = query.clone()
    positions = torch.arange(1, 6)

    reference.rotary_embedding(query, key, positions, table(9, 4), interleaved)

    assert torch.equal(query[..., 4:], before[..., 4:])
    assert not torch.isclose(query[..., :4], before[..., :4]).all()


@pytest.mark.parametrize("norms", [False, True])
def test_rope_and_write_kv_is_norm_rotary_and_write(norms: bool) -> None:
    heads, kv_heads, size, v_size, tokens = 4, 2, 8, 6, 7
    qkv = torch.randn(tokens, heads * size + kv_heads * (size + v_size))
    q_norm, k_norm = (torch.rand(size), torch.rand(size)) if norms else (None, None)
    positions, cos_sin = torch.randint(0, 30, (tokens,)), table(30, size)
    slots = torch.tensor([3, 11, -1, 0, 7, -1, 5])
    caches = torch.full((3, 4, kv_heads, size), 9.0), torch.full((3, 4, kv_heads, v_size), 9.0)
    query, key, value = (
        part.unflatten(-1, (-1, width)).clone()
        for part, width in zip(
            qkv.split((heads * size, kv_heads * size, kv_heads * v_size), -1),
            (size, size, v_size),
            strict=True,
        )
    )
    if q_norm is not None and k_norm is not None:
        query = reference.rms_norm(query, q_norm, 1e-6)
        key = reference.rms_norm(key, k_norm, 1e-6)
    reference.rotary_embedding(query, key, positions, cos_sin, False)

    reference.rope_and_write_kv(
        qkv, positions, cos_sin, q_norm, k_norm, 1e-6, slots, caches, heads, kv_heads, size, v_size,
        False,
    )  # fmt: skip

    torch.testing.assert_close(qkv[:, : heads * size].unflatten(-1, (heads, size)), query)
    for cache, new in zip(caches, (key, value), strict=True):
        flat = cache.flatten(0, 1)
        for slot in range(12):
            if slot in slots:
                token = slots.tolist().index(slot)
                torch.testing.assert_close(flat[slot], new[token])
            else:
                assert (flat[slot] == 9).all(), "only mapped slots are written"
