"""What learning begins with: an optimizer, a policy that can do what is asked, data that are finite."""

from __future__ import annotations

import torch
from torch import nn

from twostep.errors import NumericsError, PolicyError
from twostep.learn.settings import PPOConfig
from twostep.policies.actor_critic import ActorCritic
from twostep.rollout import RolloutBuffer


def require_support(policy: nn.Module, config: PPOConfig) -> None:
    """Refuse settings that only the networks of this library carry out."""
    asked = config.precision != "fp32" or config.normalize_obs or config.normalize_returns
    if asked and not isinstance(policy, ActorCritic):
        raise PolicyError(
            f"precision, normalize_obs and normalize_returns need an ActorCritic, not {type(policy).__name__}. "
            "Do these inside your own network, or leave the settings at their defaults."
        )


def make_optimizer(parameters: list[nn.Parameter], config: PPOConfig) -> torch.optim.Optimizer:
    """Build Adam or AdamW, in its fused form."""
    if not parameters:
        raise PolicyError("The policy has no parameters to learn. Pass a network whose parameters require gradients.")
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    return kinds[config.optimizer](
        parameters, lr=config.lr, eps=config.adam_eps, weight_decay=config.weight_decay, fused=True
    )


def require_finite(rollout: RolloutBuffer) -> None:
    """Refuse data that would ruin the weights, before anything is learned from them."""
    for name in ("advantages", "returns"):
        column = torch.where(rollout.valid, getattr(rollout, name), 0.0)
        if not bool(column.isfinite().all()):
            step, row = (~column.isfinite()).nonzero()[0].tolist()
            raise NumericsError(
                f"{name} is {float(column[step, row])} at step {step}, row {row} of the rollout. Its rewards or values "
                "are not finite; nothing was learned from it."
            )
