"""The gradient of all parameters as one row: made, added up over processes, clipped."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from twostep.group import Group
from twostep.learn.losses import Metrics
from twostep.learn.metrics import LOSS_METRICS


def flat_gradient(loss: Tensor, policy: nn.Module, scale: Tensor | float | None = None) -> Tensor:
    """Return the gradient of all parameters in one row, on the way `scale` times as large; 0 where there is none."""
    parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    parts = torch.autograd.grad(loss if scale is None else loss * scale, parameters, materialize_grads=True)
    flat = torch.cat([part.reshape(-1) for part in parts])
    return flat if scale is None else flat / scale


def summed(group: Group, flat: Tensor, measured: Metrics) -> tuple[Tensor, Metrics]:
    """Add up the gradients of all processes, and what PPO's loss measured, in one message."""
    if group.size == 1:
        return flat, measured
    names = [name for name in LOSS_METRICS if name != "ratio_error"]
    row = group.sum(torch.cat((flat, torch.stack([measured[name].to(flat.dtype) for name in names]))))
    return row[: flat.numel()], measured | dict(zip(names, row[flat.numel() :].unbind(), strict=True))


def clipped(flat: Tensor, longest: float) -> tuple[Tensor, Tensor]:
    """Return the gradient, no longer than `longest`, and how long it was."""
    norm = flat.norm()
    if math.isfinite(longest):
        flat = flat * (longest / (norm + 1e-6)).clamp(max=1.0)
    return flat, norm
