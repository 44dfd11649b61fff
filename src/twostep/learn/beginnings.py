"""What learning begins with: an optimizer, a policy that can do what is asked, data that fit it and are finite."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from twostep.errors import NumericsError, PolicyError, RolloutError
from twostep.learn.settings import PPOConfig
from twostep.policies.actor_critic import ActorCritic
from twostep.policies.encoders import space_tree
from twostep.rollout import RolloutBuffer
from twostep.tree import Tree, tree_items, tree_structure


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


def require_fit(policy: ActorCritic, rollout: RolloutBuffer) -> None:
    """Refuse data from elsewhere that this policy cannot have acted on: other observations, actions or masks."""
    _require_shapes("obs", rollout.obs, space_tree(policy.observation_space), "observation_space")
    _require_shapes("actions", rollout.actions, policy.action_head.example(), "action head")
    _refuse(rollout, "actions", policy.action_head.misplaced(rollout.actions), f"is no action of {policy.action_space}")
    if rollout.action_masks is not None:
        policy.action_head.require_form(rollout.action_masks)
        stuck = policy.action_head.stuck(rollout.action_masks)
        _refuse(rollout, "action_masks", stuck, "forbids every action, but at least one must be allowed")


def _require_shapes(name: str, given: Tree, wanted: Tree, whose: str) -> None:
    way_out = "Learn from it with the policy that collected it, or one built for the same spaces."
    if tree_structure(given) != tree_structure(wanted):
        raise RolloutError(
            f"{name} of the rollout is {tree_structure(given)}, but the policy's {whose} has {tree_structure(wanted)}. "
            f"{way_out}"
        )
    for (path, leaf), (_, one) in zip(tree_items(given, name), tree_items(wanted, name), strict=True):
        if tuple(leaf.shape[2:]) != tuple(one.shape):
            raise RolloutError(
                f"{path} of the rollout has shape {list(leaf.shape[2:])} per step, but the policy's {whose} wants "
                f"{list(one.shape)}. {way_out}"
            )


def _refuse(rollout: RolloutBuffer, name: str, bad: Tensor | None, what: str) -> None:
    if bad is None or not bool((bad & rollout.valid).any()):
        return
    step, row = (bad & rollout.valid).nonzero()[0].tolist()
    raise RolloutError(f"{name} at step {step}, row {row} of the rollout {what}. Nothing was learned from it.")
