"""Which tensor-parallel sizes divide a model."""

import pytest

from pegboard.api.distributed import tensor_parallel_sizes


@pytest.mark.parametrize(
    ("heads", "kv_heads", "features", "sizes"),
    [
        (9, 3, 1536, [1, 3]),
        (32, 8, 14336, [1, 2, 4, 8, 16, 32]),
        (14, 2, 4864, [1, 2]),
        (12, 4, 120, [1, 2, 4, 12]),
        (4, None, 8, [1, 2, 4]),
    ],
)
def test_sizes_that_divide(heads, kv_heads, features, sizes) -> None:
    config = {
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": features,
    }
    assert tensor_parallel_sizes(config) == sizes
