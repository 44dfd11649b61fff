"""Whether a policy and what it is given belong together, asked before anything is computed."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from gymnasium import spaces

from twostep.errors import PolicyError
from twostep.policies.actor_critic import ActorCritic
from twostep.policies.adapter_base import parameters_of


def require_spaces(policy: Any, observation_space: Any, action_space: Any) -> None:
    """Refuse an environment of other observations or actions than a policy was built for."""
    if not isinstance(policy, ActorCritic):
        return
    pairs = (
        ("observations", policy.observation_space, observation_space),
        ("actions", policy.action_space, action_space),
    )
    for what, built_for, given in pairs:
        if not _alike(built_for, given):
            raise PolicyError(
                f"The policy was built for {what} in {built_for}, but those of the environment are in {given}. Build "
                "it for this environment: make_policy(env)."
            )


def _alike(one: Any, other: Any) -> bool:
    """Tell whether members of two spaces have the same form; bounds and types of numbers do not matter."""
    if isinstance(one, spaces.Dict) and isinstance(other, spaces.Dict):
        return one.spaces.keys() == other.spaces.keys() and all(_alike(one[key], other[key]) for key in one.spaces)
    if isinstance(one, spaces.Tuple) and isinstance(other, spaces.Tuple):
        return len(one) == len(other) and all(map(_alike, one.spaces, other.spaces))
    if isinstance(one, spaces.Box) and isinstance(other, spaces.Box):
        return one.shape == other.shape
    if isinstance(one, spaces.MultiDiscrete) and isinstance(other, spaces.MultiDiscrete):
        return np.array_equal(one.nvec, other.nvec)
    return one == other


def require_keyword(policy: Any, name: str) -> None:
    """Refuse context under a name for which a policy has no argument."""
    parameters = parameters_of(policy.forward)
    open_ended = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    if name not in parameters and not open_ended:
        taken = [key for key, one in parameters.items() if one.kind is inspect.Parameter.KEYWORD_ONLY]
        taken = ", ".join(key for key in taken if key != "action_masks") or "none"
        raise PolicyError(f"{type(policy).__name__} has no argument for context named {name!r}. It takes: {taken}.")
