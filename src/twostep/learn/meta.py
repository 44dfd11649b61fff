"""Weights from which every task is learned quickly: Reptile, which needs no gradient of a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from twostep.errors import ConfigError


def reptile(policy: Any, adapt: Callable[[], Any], rate: float = 0.5) -> float:
    """Let `adapt` learn a task in place, then leave the weights only a part of the way they went; return how far.

    Over many tasks the weights end where all of them are near (Nichol, Achiam and Schulman, 2018). What moves is the
    policy itself, by a difference of weights, so there is no graph that could be missing; but `adapt` must learn with
    this very policy, and with an optimizer of its own, whose momentum another task would mislead.
    """
    if not 0 < rate <= 1:
        raise ConfigError(f"rate={rate} must be above 0 and at most 1: 1 keeps all that was learned, 0.5 half of it.")
    before = [parameter.detach().clone() for parameter in policy.parameters()]
    adapt()
    with torch.no_grad():
        steps = [new - old for new, old in zip(policy.parameters(), before, strict=True)]
        for parameter, old, step in zip(policy.parameters(), before, steps, strict=True):
            parameter.copy_(old + rate * step)
        moved = float(torch.stack([step.norm() for step in steps]).norm()) * rate
    if not moved:
        raise ConfigError("adapt changed no weight of this policy. Let it train the policy itself, not a copy of it.")
    policy.version += 1
    return moved
