"""Op implementations with one planted fault each; the kit must catch every one."""

import torch
from torch import Tensor

from pegboard.ops import reference


def rms_norm_without_weight(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return reference.rms_norm(x, torch.ones_like(weight), eps)


def rms_norm_in_place(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x.copy_(reference.rms_norm(x, weight, eps))


def rms_norm_in_low_precision(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    low = x.to(torch.bfloat16)
    scale = torch.rsqrt(low.square().mean(-1, keepdim=True) + eps)
    return (low * scale * weight.to(low.dtype)).to(x.dtype)


def rms_norm_of_other_shape(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return reference.rms_norm(x, weight, eps).flatten(0, -2)


def rms_norm_with_noise(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return reference.rms_norm(x, weight, eps) * (1 + torch.rand(()).to(x.dtype) * 1e-5)


def residual_not_written(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    reference.fused_add_rms_norm(x, residual.clone(), weight, eps)


class LinearWithoutBias(reference.Linear):
    def prepare(self, weight: Tensor, bias: Tensor | None = None) -> reference.PlainWeights:
        return super().prepare(weight)


class LinearThatKeepsViews(reference.Linear):
    def prepare(self, weight: Tensor, bias: Tensor | None = None) -> reference.PlainWeights:
        packed = super().prepare(weight, bias)
        packed.weight = weight
        return packed


class HeavyWeights(reference.PlainWeights):
    @property
    def tensors(self) -> dict[str, Tensor]:
        return {**super().tensors, "copy": self.weight.clone()}


class LinearWithSecondCopy(reference.Linear):
    def prepare(self, weight: Tensor, bias: Tensor | None = None) -> HeavyWeights:
        return HeavyWeights(weight, bias)


class HeadWithRoundedRows(reference.Logits):
    def embed(self, ids: Tensor, packed: reference.PlainWeights) -> Tensor:
        rows = super().embed(ids, packed)
        return rows.to(torch.float8_e4m3fn).to(rows.dtype)
