"""What learning begins with: an optimizer, a policy that can do what is asked, data that fit it and are finite."""

from __future__ import annotations

import logging
import math
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from twostep.errors import GroupError, NumericsError, PolicyError, RatioError, RolloutError
from twostep.group import Group
from twostep.learn.adam import Adam, AdamW
from twostep.learn.settings import PPOConfig
from twostep.policies.actor_critic import ActorCritic
from twostep.policies.encoders import space_tree
from twostep.rollout import RolloutBuffer
from twostep.tree import Tree, tree_items, tree_leaves, tree_map, tree_structure

_LOG = logging.getLogger("twostep.learn")


def require_support(policy: nn.Module, config: PPOConfig) -> None:
    """Refuse settings that only the networks of this library carry out."""
    asked = config.precision != "fp32" or config.normalize_obs or config.normalize_returns
    if asked and not isinstance(policy, ActorCritic):
        raise PolicyError(
            f"precision, normalize_obs and normalize_returns need an ActorCritic, not {type(policy).__name__}. "
            "Do these inside your own network, or leave the settings at their defaults."
        )


def require_alike(group: Group, policy: nn.Module, config: PPOConfig) -> None:
    """Refuse to learn together with processes that have another network or other settings: they would wait forever."""
    own = {"settings": asdict(config), "network": [[name, list(one.shape)] for name, one in policy.named_parameters()]}
    told = group.tell(own)
    for rank, other in enumerate(told):
        for part in own:
            if other[part] != told[0][part]:
                raise GroupError(
                    f"Process {rank} learns with another {part.rstrip('s')} than process 0: {other[part]} instead of "
                    f"{told[0][part]}. Start all processes with the same command."
                )


def learnable(policy: nn.Module) -> tuple[list[nn.Parameter], tuple[int, ...]]:
    """Return the parameters that are learned, and the places of those that are frozen, which lose their gradients."""
    parameters = list(policy.parameters())
    frozen = tuple(place for place, parameter in enumerate(parameters) if not parameter.requires_grad)
    if len(frozen) == len(parameters):
        raise PolicyError("The policy has no parameters to learn. Pass a network whose parameters require gradients.")
    for place in frozen:
        parameters[place].grad = None  # an optimizer would go on with the last one
    return [parameter for parameter in parameters if parameter.requires_grad], frozen


def make_optimizer(parameters: list[nn.Parameter], config: PPOConfig) -> torch.optim.Optimizer:
    """Build Adam or AdamW, in its fused form; parameters that are frozen now may be set free later."""
    kinds = {"adam": Adam, "adamw": AdamW}
    return kinds[config.optimizer](
        parameters, lr=config.lr, eps=config.adam_eps, weight_decay=config.weight_decay, fused=True
    )


LEAST_LOGPROB = -100.0
"""Of one number of an action: rarer ones are never sampled, and the probability ratio would overflow."""


def require_finite(rollout: RolloutBuffer) -> None:
    """Refuse data that would ruin the weights, before anything is learned from them; only what counts is looked at."""
    acted, goes_on = rollout.valid, rollout.valid & ~rollout.terminated
    seen = {"obs": rollout.obs, **(rollout.context or {})}
    columns = [(path, leaf, acted) for path, leaf in tree_items(seen)]
    columns += [(name, getattr(rollout, name), acted) for name in ("rewards", "logprobs", "values")]
    columns += [("next_values", rollout.next_values, goes_on), *_entered(rollout)]
    columns += [(name, getattr(rollout, name), acted) for name in ("advantages", "returns")]
    for path, leaf, counts in columns:
        if leaf.is_floating_point() and not bool(leaf.sum().isfinite()):
            bad = ~leaf.isfinite()
            bad = bad.flatten(2).any(2) if bad.dim() > 2 else bad
            _refuse_number(path, leaf, bad & counts, "Every number must be finite")
    numbers = sum(leaf.shape[2:].numel() for leaf in tree_leaves(rollout.actions))
    rare = (rollout.logprobs < LEAST_LOGPROB * numbers) & acted
    _refuse_number(
        "log_probs", rollout.logprobs, rare, "No action is taken that is so unlikely to the policy that acts"
    )


def _entered(rollout: RolloutBuffer) -> list[tuple[str, Tensor, Tensor]]:
    """Return the memory that entered each sequence, and where a step was taken with it."""
    padded = nn.functional.pad(rollout.valid, (0, 0, 0, -rollout.num_steps % rollout.sequence_length))
    used = padded.unflatten(0, (-1, rollout.sequence_length)).any(1)
    return [(path, leaf, used) for path, leaf in tree_items(rollout.states, "states")]


def _refuse_number(name: str, leaf: Tensor, bad: Tensor, rule: str) -> None:
    if bool(bad.any()):
        at, row = bad.nonzero()[0].tolist()
        numbers = leaf[at, row].flatten().tolist()
        number = next((number for number in numbers if not math.isfinite(number)), numbers[0])
        unit = "sequence" if name.startswith("states") else "step"
        raise NumericsError(
            f"{name} is {number:g} at {unit} {at}, row {row} of the rollout. {rule}; nothing was learned."
        )


def only_finite(rollout: RolloutBuffer, *, stop: bool) -> RolloutBuffer:
    """Return a rollout that `require_finite` takes: the same one, or one without the rows that it does not.

    Raises:
        NumericsError: There are such rows, and `stop` is wanted.
    """
    try:
        require_finite(rollout)
    except NumericsError as error:
        rows = _spoilt(rollout)
        if stop or not bool(rows.any()):
            raise
        _LOG.warning("%s Left out: %d of %d rows.", error, int(rows.sum()), len(rows))
        return _without(rows, rollout)
    return rollout


_NUMBERS = ("obs", "context", "states", "rewards", "logprobs", "values", "next_values", "advantages", "returns")


def _spoilt(rollout: RolloutBuffer) -> Tensor:
    """Return the rows, `[B]`, in which any number is not finite."""
    leaves = [leaf for name in _NUMBERS for leaf in tree_leaves(getattr(rollout, name))]
    found = [(~leaf.isfinite()).transpose(0, 1).flatten(1).any(1) for leaf in leaves if leaf.is_floating_point()]
    return torch.stack(found).any(0)


def _without(rows: Tensor, rollout: RolloutBuffer) -> RolloutBuffer:
    def cleared(leaf: Tensor) -> Tensor:
        return torch.where(rows.reshape(1, -1, *[1] * (leaf.dim() - 2)), torch.zeros_like(leaf), leaf)

    return replace(rollout, **{name: tree_map(cleared, getattr(rollout, name)) for name in (*_NUMBERS, "valid")})


def require_fit(policy: Any, rollout: RolloutBuffer) -> None:
    """Refuse data from elsewhere that this policy cannot have acted on: of another form, or with other actions."""
    memory = policy.initial_state(1)
    if tree_leaves(memory):
        _require_shapes("states", rollout.states, tree_map(lambda leaf: leaf[0], memory), "memory")
    if not isinstance(policy, ActorCritic):
        return
    _require_shapes("obs", rollout.obs, space_tree(policy.observation_space), "observation_space")
    _require_shapes("actions", rollout.actions, policy.action_head.example(), "action head")
    _refuse(rollout, "actions", policy.action_head.misplaced(rollout.actions), f"is no action of {policy.action_space}")
    if rollout.action_masks is not None:
        policy.action_head.require_form(rollout.action_masks)
        stuck = policy.action_head.stuck(rollout.action_masks)
        _refuse(rollout, "action_masks", stuck, "forbids every action, but at least one must be allowed")


RATIO_TOLERANCE = {"fp32": 1e-3, "bf16": 0.2, "fp16": 0.05}
"""How far rounding may take the first ratio from 1; a fault takes it much further."""


def require_ratio(error: float, precision: str) -> None:
    """Refuse a first ratio that is further from 1 than rounding takes it."""
    tolerance = RATIO_TOLERANCE[precision]
    if not error <= tolerance:
        raise RatioError(
            f"max |ratio - 1| = {error:.3g} before the first step; it must be below {tolerance:g}. The policy "
            "gives other probabilities when learning than when acting: dropout or batch norm, memory inside the "
            "module, weights or inputs changed in between. For data from another policy set policy_version=None."
        )


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
        if name == "actions" and leaf.is_floating_point() != one.is_floating_point():
            raise RolloutError(f"{path} of the rollout is {leaf.dtype}, but the policy's {whose} takes {one.dtype}.")


def _refuse(rollout: RolloutBuffer, name: str, bad: Tensor | None, what: str) -> None:
    if bad is None or not bool((bad & rollout.valid).any()):
        return
    step, row = (bad & rollout.valid).nonzero()[0].tolist()
    raise RolloutError(f"{name} at step {step}, row {row} of the rollout {what}. Nothing was learned from it.")
