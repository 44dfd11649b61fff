"""One look at an environment before anything is learned from it: the usual mistakes, each as one clear error."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from gymnasium import spaces

from twostep.errors import EnvError
from twostep.tree import Tree
from twostep.vector.agents import is_parallel_env, refuse_turns
from twostep.vector.agents_checker import check_parallel_env
from twostep.vector.checks import (
    NUM_CHECKED_STEPS,
    allowed_action,
    called,
    called_reset,
    check_flag,
    check_reward,
    check_spaces,
    described,
)
from twostep.vector.masks import MASK_KEY, mask_memory, mask_method, write_mask
from twostep.vector.observations import check_observation
from twostep.vector.sources import is_single_env


def check_env(env_or_factory: Any) -> None:
    """Reset an environment, take a few random steps and refuse what breaks Gymnasium's contract, or PettingZoo's.

    Costs about a millisecond on small environments, leaves the environment in the middle of an episode and its random
    generator moved on: reset it with a seed afterwards, as every vector here does. Observations may be handed out in
    memory that the environment uses again, since twostep copies them; a factory is called and its environment closed.

    Raises:
        EnvError: Naming the first value that breaks a rule, the rule, and the way out.
    """
    if not is_single_env(env_or_factory) and callable(env_or_factory):
        made = env_or_factory()
        try:
            check_env(made)
        finally:
            getattr(made, "close", lambda: None)()
        return
    env: Any = env_or_factory
    name = type(getattr(env, "unwrapped", env)).__name__
    refuse_turns(env)
    if is_parallel_env(env):
        check_parallel_env(env, name)
        return
    _check_interface(env, name)
    action_space = copy.deepcopy(env.action_space)
    action_space.seed(0)
    mask = _checked_reset(env, f"{name}.reset(seed=0)", {"seed": 0})
    for number in range(1, NUM_CHECKED_STEPS + 1):
        action = allowed_action(action_space, mask)
        place = f"{name}.step({action!r}), step {number} after a reset"
        ended, mask = _checked_step(env, place, action)
        if ended:
            mask = _checked_reset(env, f"{name}.reset() after an episode ended", {})
    _checked_reset(env, f"{name}.reset() in the middle of an episode", {})


def _check_interface(env: Any, name: str) -> None:
    if hasattr(env, "num_envs"):
        raise EnvError(
            f"{name} is a vector of {env.num_envs} environments, not a single one. Pass it to as_env instead."
        )
    for method in ("reset", "step"):
        if not callable(getattr(env, method, None)):
            raise EnvError(f"{name} has no method {method}(). An environment needs reset, step and two spaces; add it.")
    for attribute in ("observation_space", "action_space"):
        space = getattr(env, attribute, None)
        if space is None:
            raise EnvError(f"{name} has no {attribute}: it is needed to build the policy. Set it in __init__.")
        if callable(space) and not isinstance(space, spaces.Space):
            raise EnvError(f"{name}.{attribute} is a function, but must be a Gymnasium space. Call it where it is set.")
    check_spaces(env.observation_space, env.action_space, f"{name}.observation_space", f"{name}.action_space")


def _checked_reset(env: Any, place: str, seed: dict[str, int]) -> Tree:
    result = called_reset(place, env.reset, seed)
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
        raise EnvError(
            f"{place} returned {described(result)}, but must return (obs, info) with a dict as info. "
            f"End it with return obs, {{}}; for environments of the old gym API use a wrapper such as shimmy."
        )
    obs, info = result
    check_observation(env.observation_space, obs, place)
    return _checked_mask(env, obs, info, place)


def _checked_step(env: Any, place: str, action: Any) -> tuple[bool, Tree]:
    result = called(place, env.step, action)
    if not isinstance(result, tuple) or len(result) != 5:
        old = " Four values are the old gym API: split done into terminated and truncated." * (
            isinstance(result, tuple) and len(result) == 4
        )
        raise EnvError(
            f"{place} returned {described(result)}, but must return a tuple of five: "
            f"(obs, reward, terminated, truncated, info).{old or ' Return all five.'}"
        )
    obs, reward, terminated, truncated, info = result
    check_observation(env.observation_space, obs, place)
    check_reward(reward, place)
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        check_flag(flag, name, place)
    if not isinstance(info, dict):
        raise EnvError(f"{place}: info is {described(info)}, but must be a dict. Return {{}} when there is nothing.")
    ended = bool(terminated or truncated)
    return ended, None if ended else _checked_mask(env, obs, info, place)


def _checked_mask(env: Any, obs: Any, info: dict[str, Any], place: str) -> Tree:
    """Return the mask of the next action in the form of `mask_memory`, or None."""
    method = mask_method(env)
    if MASK_KEY in info:
        mask = info[MASK_KEY]
    elif method is not None:
        mask = method()
    elif isinstance(obs, Mapping) and MASK_KEY in obs:
        mask = obs[MASK_KEY]
    else:
        return None
    memory = mask_memory(env.action_space, 1)
    write_mask(env.action_space, memory, 0, mask, place)
    return memory
