"""The loss of PPO as pure functions: what to minimise, and what was measured on the way.

Every tensor is `[L, N]`: N sequences of L steps. `valid` tells which of them count, None means all. Means are sums over
what counts, divided by `count`: pieces of a minibatch given the count of the whole add up to the loss of the whole.
"""

from __future__ import annotations

import torch
from torch import Tensor

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
    count: int | None = None,
    value_scale: Tensor | None = None,
) -> tuple[Tensor, Metrics]:
    """Return the loss and its parts: clipped surrogate + vf_coef * value loss - ent_coef * entropy.

    `value_scale` is the unit of the value loss, for critics that learn normalised returns.
    """
    count = count or new_logprobs.numel()
    log_ratio = new_logprobs - old_logprobs
    ratio = log_ratio.exp()
    policy_losses = clipped_surrogate(ratio, advantages, config.clip_coef)
    clip = (config.vf_clip_coef or config.clip_coef) if config.clip_vloss else None
    value_losses = squared_value_error(new_values, old_values, returns, clip, value_scale) * config.value_loss_scale
    losses = policy_losses + config.vf_coef * value_losses - config.ent_coef * entropies
    loss = mean_of(losses, valid, count)
    with torch.no_grad():
        metrics = {
            "loss": loss.detach(),
            "policy_loss": mean_of(policy_losses, valid, count),
            "value_loss": mean_of(value_losses, valid, count),
            "entropy": mean_of(entropies, valid, count),
            **ratio_metrics(ratio, log_ratio, config.clip_coef, valid, count),
        }
    return loss, metrics


def clipped_surrogate(ratio: Tensor, advantages: Tensor, clip_coef: float) -> Tensor:
    """Make good actions likelier and bad ones rarer, without reward for moving the ratio beyond the clip range."""
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - clip_coef, 1 + clip_coef) * advantages)


def squared_value_error(
    new_values: Tensor, old_values: Tensor, returns: Tensor, clip: float | None = None, scale: Tensor | None = None
) -> Tensor:
    """Square how far values are from returns, in units of `scale`; with `clip`, values that moved further count worse."""
    if scale is not None:
        new_values, old_values, returns = new_values / scale, old_values / scale, returns / scale
    errors = (new_values - returns).square()
    if clip is None:
        return errors
    clipped = old_values + (new_values - old_values).clamp(-clip, clip)
    return torch.maximum(errors, (clipped - returns).square())


def ratio_metrics(ratio: Tensor, log_ratio: Tensor, clip_coef: float, valid: Tensor | None, count: int) -> Metrics:
    """Tell how far the policy moved from the one that acted: an estimate of the KL, and how much was clipped."""
    moved = ratio - 1
    return {
        "approx_kl": mean_of(moved - log_ratio, valid, count),
        "clipfrac": mean_of((moved.abs() > clip_coef).float(), valid, count),
    }


def mean_of(x: Tensor, valid: Tensor | None, count: int) -> Tensor:
    """Sum what counts and divide by `count`; what does not count may be anything, NaN included."""
    return (x if valid is None else torch.where(valid, x, 0.0)).sum() / count


def normalized(advantages: Tensor, valid: Tensor | None = None) -> Tensor:
    """Bring what counts to mean 0 and deviation 1; one sample alone becomes 0."""
    counted = advantages if valid is None else advantages[valid]
    if counted.numel() == 0:
        return advantages
    deviation = counted.std(correction=1) if counted.numel() > 1 else counted.new_zeros(())
    return (advantages - counted.mean()) / (deviation + 1e-8)
