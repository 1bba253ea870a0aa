"""Norm layers."""

import torch
from tests.support.models import SimpleModelContext
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from pegboard.layers import RMSNorm


def loaded(size: int, weight: torch.Tensor, dtype: torch.dtype, offset: float) -> RMSNorm:
    context = SimpleModelContext({"max_position_embeddings": 8}, dtype=dtype)
    norm = RMSNorm(context, size, 1e-5, weight_offset=offset)
    dict(norm.slots("norm"))["norm.weight"].store(weight)
    return norm


def test_plain_norm_equals_llamas() -> None:
    theirs = LlamaRMSNorm(24, eps=1e-5)
    theirs.weight.data = torch.randn(24)
    ours = loaded(24, theirs.weight.data, torch.float32, 0.0)
    x = torch.randn(5, 24) * 3
    torch.testing.assert_close(ours(x), theirs(x).detach())


def test_offset_norm_equals_gemmas_in_bfloat16_too() -> None:
    theirs = Gemma3RMSNorm(24, eps=1e-5)
    weight = torch.randn(24).bfloat16()
    theirs.weight.data = weight
    ours = loaded(24, weight, torch.bfloat16, 1.0)
    x = (torch.randn(5, 24) * 3).bfloat16()
    torch.testing.assert_close(ours(x), theirs(x).detach(), rtol=8e-3, atol=1e-6)
    assert ours.weight.dtype == torch.float32, "1 + w is not rounded to bfloat16"


def test_add_updates_the_residual_in_place() -> None:
    norm = loaded(8, torch.rand(8), torch.float32, 0.0)
    x, residual = torch.randn(3, 8), torch.randn(3, 8)
    total = x + residual
    result = norm.add(x, residual)
    assert result is x
    assert torch.equal(residual, total)
    torch.testing.assert_close(result, norm(total))
