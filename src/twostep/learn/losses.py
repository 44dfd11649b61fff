"""The loss of PPO as pure functions: what to minimise, and what was measured on the way.

Every tensor is `[L, N]`: N sequences of L steps. `valid` tells which of them count, None means all; what does not
count may be anything, NaN included. Means are sums over what counts, divided by `count`: pieces of a minibatch given
the count of the whole add up to the loss of the whole.
"""

from __future__ import annotations

import torch
from torch import Tensor

from twostep.group import ALONE, Group
from twostep.learn.settings import PPOConfig

Metrics = dict[str, Tensor]


def ppo_loss(
    new_logprobs: Tensor,
    new_values: Tensor,
    entropies: Tensor,
    *,
    old_logprobs: Tensor,
    old_values: Tensor,
    advantages: Tensor,
    returns: Tensor,
    config: PPOConfig,
    valid: Tensor | None = None,
    count: Tensor | float | None = None,
    value_scale: Tensor | None = None,
) -> tuple[Tensor, Metrics]:
    """Return the loss and its parts: clipped surrogate + vf_coef * value loss - ent_coef * entropy.

    `value_scale` is the unit of the value loss, for critics that learn normalised returns.
    """
    if count is None:
        count = new_logprobs.numel() if valid is None else valid.sum().clamp(min=1)
    if valid is not None:  # first of all: a NaN that is only left out of the sum still gets into the gradient
        new_logprobs, new_values, entropies = (
            torch.where(valid, x, 0.0) for x in (new_logprobs, new_values, entropies)
        )
        old_logprobs, old_values = (torch.where(valid, x, 0.0) for x in (old_logprobs, old_values))
        advantages, returns = (torch.where(valid, x, 0.0) for x in (advantages, returns))
    log_ratio = new_logprobs - old_logprobs
    ratio = log_ratio.exp()
    policy_losses = clipped_surrogate(ratio, advantages, config.clip_coef)
    clip = (config.vf_clip_coef or config.clip_coef) if config.clip_vloss else None
    value_losses = squared_value_error(new_values, old_values, returns, clip, value_scale) * config.value_loss_scale
    losses = policy_losses + config.vf_coef * value_losses - config.ent_coef * entropies
    loss = losses.sum() / count
    with torch.no_grad():
        metrics = {
            "loss": loss.detach(),
            "policy_loss": policy_losses.sum() / count,
            "value_loss": value_losses.sum() / count,
            "entropy": entropies.sum() / count,
            **ratio_metrics(ratio, log_ratio, config.clip_coef, count),
        }
    return loss, metrics


def clipped_surrogate(ratio: Tensor, advantages: Tensor, clip_coef: float) -> Tensor:
    """Make good actions likelier and bad ones rarer, without reward for moving the ratio beyond the clip range."""
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - clip_coef, 1 + clip_coef) * advantages)


def squared_value_error(
    new_values: Tensor, old_values: Tensor, returns: Tensor, clip: float | None = None, scale: Tensor | None = None
) -> Tensor:
    """Square how far values are from returns, in units of `scale`; `clip` stops rewarding values that move further."""
    if scale is not None:
        new_values, old_values, returns = new_values / scale, old_values / scale, returns / scale
    errors = (new_values - returns).square()
    if clip is None:
        return errors
    clipped = old_values + (new_values - old_values).clamp(-clip, clip)
    return torch.maximum(errors, (clipped - returns).square())


def ratio_metrics(ratio: Tensor, log_ratio: Tensor, clip_coef: float, count: Tensor | float) -> Metrics:
    """Tell how far the policy moved from the one that acted: an estimate of the KL, and how much was clipped."""
    moved = ratio - 1
    return {
        "approx_kl": (moved - log_ratio).sum() / count,
        "clipfrac": (moved.abs() > clip_coef).float().sum() / count,
    }


def normalized(advantages: Tensor, valid: Tensor | None = None, group: Group = ALONE) -> Tensor:
    """Bring what counts, over all of `group`, to mean 0 and deviation 1; one sample alone becomes 0."""
    counted = advantages if valid is None else advantages[valid]
    count = int(group.sum(torch.tensor(counted.numel())))
    if count == 0:
        return advantages
    if count == 1:
        return advantages - counted if counted.numel() else advantages
    deviation, mean = group.std_mean(counted)  # together: equal numbers become exactly 0
    return (advantages - mean) / (deviation + 1e-8)
