"""Advantages, returns, and how much of the returns the critic explains: pure functions over `[T, B]`."""

from __future__ import annotations

import math

import torch

from twostep.errors import RolloutError
from twostep.group import ALONE, Group


@torch.no_grad()
def gae(
    rewards: torch.Tensor,
    values: torch.Tensor,
    next_values: torch.Tensor,
    terminated: torch.Tensor,
    truncated: torch.Tensor,
    *,
    gamma: float,
    gae_lambda: float,
    valid: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return generalised advantages and the returns `advantages + values`, in raw reward units.

    One formula for every step: `delta_t = r_t + gamma * next_values_t - values_t`, with 0 for the next value where the
    episode terminated, and `A_t = delta_t + gamma * gae_lambda * A_{t+1}` as long as the episode goes on. A truncated
    step keeps its next value and only ends the chain.

    `next_values` are those of the states that the actions truly led to, also where the environment then reset. Where
    `valid` is False nobody acted: the advantage is 0, the return is the value, and whatever numbers stand there reach
    no other step.
    """
    _require_one_shape(
        rewards=rewards, values=values, next_values=next_values, terminated=terminated, truncated=truncated, valid=valid
    )
    goes_on = ~(terminated | truncated)
    # Nearly equal values cancel exactly before the small part that the discount takes is subtracted.
    reached = torch.where(terminated, 0.0, next_values)
    deltas = (reached - values).add_(reached, alpha=gamma - 1.0).add_(rewards)
    if valid is not None:
        goes_on &= valid
        deltas = torch.where(valid, deltas, 0.0)
    _sum_backwards(deltas, goes_on.to(deltas.dtype), gamma * gae_lambda)
    return deltas, deltas + values


def _sum_backwards(sums: torch.Tensor, goes_on: torch.Tensor, factor: float) -> None:
    """Replace `sums` by `A_t = sums_t + factor * goes_on_t * A_{t+1}`, in place and in log-many operations.

    Folding each odd step into the even one before it leaves the same problem over the even steps, with the factor
    squared; once those are known, every odd step needs only its right neighbour. Spoils `goes_on`, which is 0 or 1.
    """
    if len(sums) < 2:
        return
    even, odd = sums[::2], sums[1::2]
    even_goes_on, odd_goes_on = goes_on[::2], goes_on[1::2]
    pairs, followed = len(odd), len(even) - 1
    even[:pairs].addcmul_(even_goes_on[:pairs], odd, value=factor)
    even_goes_on[:pairs].mul_(odd_goes_on)
    _sum_backwards(even, even_goes_on, factor * factor)
    odd[:followed].addcmul_(odd_goes_on[:followed], even[1:], value=factor)


@torch.no_grad()
def explained_variance(
    values: torch.Tensor, returns: torch.Tensor, valid: torch.Tensor | None = None, group: Group = ALONE
) -> torch.Tensor:
    """Return `1 - Var(returns - values) / Var(returns)` as a scalar tensor: 1 is perfect, 0 no better than a constant.

    NaN where it means nothing: all returns alike, or no valid step. Variances are over the steps of all of `group`.
    """
    _require_one_shape(values=values, returns=returns, valid=valid)
    if values.numel() == 0:
        return values.new_full((), math.nan)
    valid = torch.ones_like(values, dtype=torch.bool) if valid is None else valid
    variance = _variance(returns, valid, group)
    explained = 1 - _variance(returns - values, valid, group) / variance
    return torch.where(variance > 0, explained, math.nan)


def _variance(numbers: torch.Tensor, valid: torch.Tensor, group: Group) -> torch.Tensor:
    largest = group.max(torch.where(valid, numbers, -math.inf).amax())
    shifted = torch.where(valid, numbers - largest, 0.0)  # exact zeros where all numbers are alike
    count = group.sum(valid.sum())
    mean = group.sum(shifted.sum()) / count
    return group.sum(torch.where(valid, shifted - mean, 0.0).square().sum()) / count


def _require_one_shape(**tensors: torch.Tensor | None) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items() if tensor is not None}
    if len(set(shapes.values())) > 1:
        listed = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise RolloutError(
            f"Shapes differ: {listed}. All must be the same [T, B], one number per step and row; "
            "squeeze a last dimension of 1, which would broadcast to [T, B, B]."
        )
