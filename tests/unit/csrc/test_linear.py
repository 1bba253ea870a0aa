"""Products with packed weights, against plain torch in float32."""

import pytest
import torch
from torch import Tensor

from pegboard_kernels import Isa, KernelError, KernelLibrary
from pegboard_kernels.packed import PackedMatrix

# Relative to the norm of a row: sums are float32; only the output is rounded to bfloat16.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 4e-3}

SHAPES = [(32, 32), (576, 576), (96, 1536), (33, 31), (1, 1), (50, 64), (160, 200), (7, 130)]


def _weight(n: int, k: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return torch.randn(n, k, generator=generator).to(dtype)


def _packed(weight: Tensor, activation: str = "", bias: Tensor | None = None) -> PackedMatrix:
    packed = PackedMatrix(*weight.shape, weight.dtype, activation, bias)
    packed.pack_rows(weight)
    return packed


def _error(got: Tensor, expected: Tensor) -> float:
    scale = expected.abs().amax().clamp_min(1e-6)
    return float((got.float() - expected).abs().amax() / scale)


@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("m", [1, 3, 8, 9, 17, 65])
def test_linear_matches_torch(
    isa: Isa, dtype: torch.dtype, n: int, k: int, m: int, generator: torch.Generator
) -> None:
    weight = _weight(n, k, dtype, generator)
    x = torch.randn(m, k, generator=generator).to(dtype)
    bias = torch.randn(n, generator=generator)
    got = _packed(weight, bias=bias).linear(x)
    assert got.dtype is dtype
    assert _error(got, x.float() @ weight.float().T + bias) < TOLERANCE[dtype]


def test_linear_of_many_rows_matches_torch(
    isa: Isa, dtype: torch.dtype, generator: torch.Generator
) -> None:
    weight = _weight(200, 96, dtype, generator)
    x = torch.randn(421, 96, generator=generator).to(dtype)
    assert _error(_packed(weight).linear(x), x.float() @ weight.float().T) < TOLERANCE[dtype]


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(("half", "k"), [(16, 32), (48, 64), (40, 33), (1536, 576), (5, 8)])
def test_gated_activation_is_the_epilogue(
    isa: Isa,
    dtype: torch.dtype,
    activation: str,
    half: int,
    k: int,
    generator: torch.Generator,
) -> None:
    weight = _weight(2 * half, k, dtype, generator)
    x = torch.randn(9, k, generator=generator).to(dtype)
    bias = torch.randn(2 * half, generator=generator)
    gate, up = (x.float() @ weight.float().T + bias).split(half, dim=1)
    act = (
        torch.nn.functional.silu(gate)
        if activation == "silu"
        else torch.nn.functional.gelu(gate, approximate="tanh")
    )
    got = _packed(weight, activation, bias).linear(x)
    assert got.shape == (9, half)
    assert _error(got, act * up) < TOLERANCE[dtype]


def test_output_dtype_and_leading_dimensions_are_free(
    isa: Isa, dtype: torch.dtype, generator: torch.Generator
) -> None:
    weight = _weight(40, 64, dtype, generator)
    x = torch.randn(2, 3, 64, generator=generator).to(dtype)
    got = _packed(weight).linear(x, out_dtype=torch.float32)
    assert got.shape == (2, 3, 40)
    assert got.dtype is torch.float32
    assert _error(got, x.float() @ weight.float().T) < 1e-5


def test_float32_input_to_a_bfloat16_weight_is_rounded_first(
    isa: Isa, generator: torch.Generator
) -> None:
    weight = _weight(64, 96, torch.bfloat16, generator)
    x = torch.randn(3, 96, generator=generator)
    packed = _packed(weight)
    assert torch.equal(packed.linear(x), packed.linear(x.bfloat16(), out_dtype=torch.float32))


def test_strided_rows_are_read_in_place(
    isa: Isa, dtype: torch.dtype, generator: torch.Generator
) -> None:
    weight = _weight(48, 64, dtype, generator)
    wide = torch.randn(5, 200, generator=generator).to(dtype)
    packed = _packed(weight)
    assert torch.equal(packed.linear(wide[:, 8:72]), packed.linear(wide[:, 8:72].contiguous()))


def test_bits_do_not_depend_on_threads_or_on_other_rows(
    isa: Isa, dtype: torch.dtype, library: KernelLibrary, generator: torch.Generator
) -> None:
    packed = _packed(_weight(352, 160, dtype, generator))
    x = torch.randn(230, 160, generator=generator).to(dtype)
    whole = packed.linear(x)
    library.set_num_threads(1)
    assert torch.equal(packed.linear(x), whole)
    for rows in (1, 3, 6, 20, 50):
        assert torch.equal(packed.linear(x[:rows]), whole[:rows])
    assert torch.equal(packed.linear(x[100:107]), whole[100:107])


def test_nan_stays_in_its_row(isa: Isa, dtype: torch.dtype, generator: torch.Generator) -> None:
    packed = _packed(_weight(64, 64, dtype, generator))
    x = torch.randn(8, 64, generator=generator).to(dtype)
    clean = packed.linear(x)
    x[3, 5] = float("nan")
    got = packed.linear(x)
    assert got[3].isnan().all()
    others = [0, 1, 2, 4, 5, 6, 7]
    assert torch.equal(got[others], clean[others])


@pytest.mark.parametrize("pieces", [[70], [1, 69], [16, 32, 22], [33, 37]])
def test_pieces_pack_as_the_whole(
    isa: Isa, dtype: torch.dtype, pieces: list[int], generator: torch.Generator
) -> None:
    weight = _weight(70, 40, dtype, generator)
    packed = PackedMatrix(70, 40, dtype)
    begin = 0
    for count in pieces:
        packed.pack_rows(weight[begin : begin + count].clone(), begin)
        begin += count
    assert torch.equal(packed.data, _packed(weight).data)


def test_rows_are_read_back_exactly(
    isa: Isa, dtype: torch.dtype, generator: torch.Generator
) -> None:
    weight = _weight(90, 75, dtype, generator)
    ids = torch.randint(0, 90, (4, 5), generator=generator)
    assert torch.equal(_packed(weight).gather(ids), weight[ids])


def test_row_outside_the_table_is_refused(
    library: KernelLibrary, generator: torch.Generator
) -> None:
    packed = _packed(_weight(10, 8, torch.float32, generator))
    with pytest.raises(KernelError, match="row id 10 is outside"):
        packed.gather(torch.tensor([3, 10]))


def test_wrong_width_is_refused(library: KernelLibrary, generator: torch.Generator) -> None:
    packed = _packed(_weight(10, 8, torch.float32, generator))
    with pytest.raises(KernelError, match="9 columns"):
        packed.linear(torch.zeros(2, 9))


def test_torch_op_is_registered_with_a_fake(
    library: KernelLibrary, generator: torch.Generator
) -> None:
    packed = _packed(_weight(64, 32, torch.float32, generator), "silu")
    x = torch.randn(3, 32, generator=generator)
    arguments = (x, packed.data, 64, None, 1, torch.float32, torch.bfloat16)
    torch.library.opcheck(
        torch.ops.pegboard_kernels.linear.default,
        arguments,
        test_utils=("test_schema", "test_faketensor"),
    )
