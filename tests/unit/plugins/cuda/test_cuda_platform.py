"""The platform without a GPU: what it says of itself, and what opening answers."""

import pytest
import torch

from pegboard.api.errors import ConfigError
from pegboard.api.plugin import ComponentContext
from pegboard_cuda.cuda_platform import CudaPlatform
from pegboard_cuda.plugin import platforms
from pegboard_cuda.products import Linear, Logits


@pytest.fixture
def platform():
    return CudaPlatform(ComponentContext(plugin="cuda"), platforms()[0])


def test_it_is_asynchronous_and_captures(platform):
    assert platform.is_asynchronous()
    assert platform.supports_graphs()
    assert platform.supported_dtypes()[0] == "bfloat16"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_opening_without_a_gpu_says_what_to_do(platform):
    with pytest.raises(ConfigError, match="--platform cpu"):
        platform.open_device(0, 1)


def test_ranks_past_the_devices_are_refused(platform, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match="rank 2 has no GPU: torch sees 2"):
        platform.open_device(2, 4)


def test_products_equal_torch_and_embed_what_they_were_given():
    weight, x, bias = torch.randn(12, 8), torch.randn(3, 8), torch.randn(12)
    linear, head = Linear(), Logits()
    packed = linear.prepare(weight, bias)
    assert packed.nbytes == weight.nbytes + bias.nbytes
    assert torch.allclose(linear(x, packed), x @ weight.T + bias, atol=1e-5)
    packed = head.prepare(weight)
    assert torch.allclose(head(x, packed), x @ weight.T, atol=1e-5)
    assert torch.equal(head.embed(torch.tensor([3, 0]), packed), weight[[3, 0]])
