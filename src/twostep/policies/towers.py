"""Networks as towers: K copies of one shape, evaluated as one batched product.

Actor and critic are mostly nets of the same shape; small nets cost calls, not arithmetic, so both go through each layer
in one call. K = 2 gives separate trunks, K = 1 a shared one. Shapes: `[K, N, features]`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812 - the name everybody knows

BackwardFunction = TypeVar("BackwardFunction", bound=Callable[..., Any])


def first_order(backward: BackwardFunction) -> BackwardFunction:
    """Say plainly that a gradient written by hand has no gradient of its own."""
    return cast("BackwardFunction", once_differentiable(backward))


def _tanh_layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute tanh(x @ weight + bias) through the sigmoid: several times faster than `torch.tanh` on a CPU."""
    doubled = torch.baddbmm(bias, x, weight, beta=2, alpha=2)
    return torch.rsub(doubled.sigmoid_(), -1.0, alpha=-2.0)


class _TanhLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        y = _tanh_layer(x, weight, bias)
        ctx.save_for_backward(x, weight, y)
        return y

    @staticmethod
    @first_order
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x, weight, y = ctx.saved_tensors
        inner = torch.ops.aten.tanh_backward(gradients[0], y)
        into_x = None
        if ctx.needs_input_grad[0]:
            into_x = (inner @ weight.to(inner.dtype).transpose(1, 2)).to(x.dtype)
        into_weight = x.to(inner.dtype).transpose(1, 2) @ inner
        return into_x, into_weight.to(weight.dtype), inner.sum(1, keepdim=True).to(weight.dtype)


def tanh_layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute tanh(x @ weight + bias) as one node of the graph."""
    if torch.is_grad_enabled():
        return cast("Tensor", _TanhLayer.apply(x, weight, bias))
    return _tanh_layer(x, weight, bias)


Layer = Callable[[Tensor, Tensor, Tensor], Tensor]


def _followed_by(activation: Callable[[Tensor], Tensor]) -> Layer:
    return lambda x, weight, bias: activation(torch.baddbmm(bias, x, weight))


LAYERS: dict[str, Layer] = {
    "tanh": tanh_layer,
    "relu": _followed_by(torch.relu),
    "elu": _followed_by(F.elu),
    "silu": _followed_by(F.silu),
    "gelu": _followed_by(F.gelu),
}
"""A linear layer and what bends it, `[K, N, in]` to `[K, N, out]`, by the name of the activation."""


def orthogonal(towers: int, in_features: int, out_features: int, gain: float = math.sqrt(2)) -> Tensor:
    """Return weights `[K, in, out]`, orthogonal in every tower."""
    weight = torch.empty(towers, out_features, in_features)
    for tower in weight:
        nn.init.orthogonal_(tower, gain)
    return weight.transpose(1, 2).contiguous()


class TowerMlp(nn.Module):
    """K stacks of linear layers side by side, each layer followed by the activation; no layers pass on what comes in.

    The parameters lie in this one module, weight and bias of each layer in turn: small nets cost calls, not arithmetic.
    """

    def __init__(self, towers: int, in_features: int, hidden: Sequence[int], activation: str = "tanh") -> None:
        super().__init__()
        self.layer = LAYERS[activation]
        sizes = [in_features, *hidden]
        for i, (size, next_size) in enumerate(pairwise(sizes)):
            self.register_parameter(f"weight_{i}", nn.Parameter(orthogonal(towers, size, next_size)))
            self.register_parameter(f"bias_{i}", nn.Parameter(torch.zeros(towers, 1, next_size)))
        self.out_features = sizes[-1]

    def forward(self, x: Tensor) -> Tensor:
        """Map `[K, N, in]` to `[K, N, out]`."""
        parameters = iter(self._parameters.values())
        for weight, bias in zip(parameters, parameters, strict=True):
            x = self.layer(x, cast("Tensor", weight), cast("Tensor", bias))
        return x
