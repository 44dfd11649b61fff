"""Experience of the past as the present policy sees it: what it is worth by now, and how far the policy has moved.

Everything here is `[T, B]`, and without gradients.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from twostep.learn.losses import ratio_metrics
from twostep.rollout import RolloutBuffer
from twostep.tree import tree_map


class Judged(NamedTuple):
    """What a policy says of steps that it may not have taken itself."""

    values: Tensor
    logprobs: Tensor


@torch.no_grad()
def judged(policy: Any, rollout: RolloutBuffer) -> Judged:
    """Go through a rollout once, from the memory that entered it, and judge its states and its actions."""
    conditions = dict(rollout.context or {})
    if rollout.action_masks is not None:
        conditions["action_masks"] = rollout.action_masks
    memory = tree_map(lambda leaf: leaf[0], rollout.states)
    output = policy(rollout.obs, memory, rollout.episode_starts, **conditions)
    return Judged(output.values, output.distribution.log_prob(rollout.actions))


def revalued(rollout: RolloutBuffer, values: Tensor) -> RolloutBuffer:
    """Return the rollout with other values; its advantages are to be computed anew.

    The observations behind an episode's end and behind the last step are not stored. Their values move as much as
    those of the states just before them did, which are their neighbours.
    """
    goes_on = ~(rollout.terminated | rollout.truncated)
    goes_on[-1:] = False
    moved = rollout.next_values + (values - rollout.values)
    after = torch.cat((values[1:], values[-1:]))
    next_values = torch.where(goes_on, after, moved)
    return replace(rollout, values=values, next_values=next_values, advantages=None, returns=None)


def staleness(rollout: RolloutBuffer, logprobs: Tensor, clip_coef: float) -> dict[str, float]:
    """Say how far the policy that gives `logprobs` is from the one that acted: `approx_kl` and `clipfrac`."""
    log_ratio = (logprobs - rollout.logprobs)[rollout.valid]
    measured = ratio_metrics(log_ratio.exp(), log_ratio, clip_coef, max(1, log_ratio.numel()))
    return {name: float(value) for name, value in measured.items()}


def ratio_error(rollout: RolloutBuffer, logprobs: Tensor) -> Tensor:
    """Return how far the probability ratio is from 1 where it is furthest."""
    errors = (logprobs - rollout.logprobs).expm1().abs()
    return torch.where(rollout.valid, errors, 0.0).max()
