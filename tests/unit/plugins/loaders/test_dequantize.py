import gguf
import numpy as np
import pytest

from pegboard_loaders.gguf.dequantize import dequantize
from pegboard_loaders.gguf.reader import TENSOR_TYPES


@pytest.mark.parametrize("number", TENSOR_TYPES)
@pytest.mark.parametrize("num_blocks", [1, 3, 5000])
def test_values_equal_the_formats_own_library(number: int, num_blocks: int) -> None:
    kind = TENSOR_TYPES[number]
    data = np.random.default_rng().integers(0, 256, (num_blocks, kind.block_bytes), np.uint8)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(data, gguf.GGMLQuantizationType(number))
    values = dequantize(data.reshape(-1), kind.name, kind.block_size, kind.block_bytes)
    np.testing.assert_array_equal(values, expected.reshape(-1))
    assert values.dtype == np.float32


def test_known_block_expands_to_its_formula() -> None:
    scale, offset = np.float16(0.5), np.float16(-3)
    nibbles = np.arange(16, dtype=np.uint8)
    block = np.concatenate(
        [np.array([scale, offset]).view(np.uint8), nibbles | (15 - nibbles) << 4]
    )
    values = dequantize(block, "Q4_1", 32, 20)
    expected = [0.5 * q - 3 for q in [*range(16), *range(15, -1, -1)]]
    assert values.tolist() == expected


def test_nan_scale_raises_no_warning() -> None:
    block = np.zeros(18, np.uint8)
    block[:2] = np.array([np.nan], np.float16).view(np.uint8)
    assert np.isnan(dequantize(block, "Q4_0", 32, 18)).all()
