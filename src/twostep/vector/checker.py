"""One look at an environment before anything is learned from it: the usual mistakes, each as one clear error."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from twostep.errors import EnvError
from twostep.tree import Tree
from twostep.vector.masks import MASK_KEY, choice_counts, mask_memory, mask_method, write_mask
from twostep.vector.observations import check_observation
from twostep.vector.spaces import parts_of, require_supported_space

NUM_CHECKED_STEPS = 5


def check_env(env_or_factory: Any) -> None:
    """Reset an environment, take a few random steps and refuse what breaks Gymnasium's contract.

    Costs about a millisecond on small environments, leaves the environment in the middle of an episode and its random
    generator moved on: reset it with a seed afterwards, as `SerialVectorEnv` does. Observations may be handed out in
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


def is_single_env(obj: Any) -> bool:
    """Whether `obj` is an environment rather than a class or function that makes one."""
    return hasattr(obj, "step") and not isinstance(obj, type)


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


def check_spaces(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], observation_name: str, action_name: str
) -> None:
    """Refuse spaces that cannot be stored, hold nothing, or leave an action nothing to choose."""
    for space, name in ((observation_space, observation_name), (action_space, action_name)):
        require_supported_space(space, name)
        _check_sizes(space, name)
    _check_action_bounds(action_space, action_name)


def _check_sizes(space: spaces.Space[Any], name: str) -> None:
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        if not parts_of(space):
            raise EnvError(f"{name} is {space}, which holds nothing: there must be at least one part. Give it one.")
        for key, part in parts_of(space):
            _check_sizes(part, f"{name}[{key!r}]")
    elif 0 in (space.shape or ()):
        raise EnvError(
            f"{name} is {space} of shape {list(space.shape or ())}, without a single number. Give it a size."
        )


def _check_action_bounds(space: spaces.Space[Any], name: str) -> None:
    for key, part in parts_of(space):
        _check_action_bounds(part, f"{name}[{key!r}]")
    if isinstance(space, spaces.Box):
        wrong = np.argwhere(~(space.low < space.high))
        if len(wrong):
            place = tuple(wrong[0].tolist())
            raise EnvError(
                f"{name}: low={space.low[place]} and high={space.high[place]} at {list(place)}, but low must be less "
                f"than high. Mend the bounds, or leave out actions that cannot vary."
            )


def called(place: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call an environment while it is checked; its own errors stay as they are and say where they happened."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        if sys.version_info >= (3, 11):
            error.add_note(f"This happened when the environment was first checked, in {place}.")
        raise


def _checked_reset(env: Any, place: str, seed: dict[str, int]) -> Tree:
    try:
        result = called(place, env.reset, **seed)
    except TypeError as error:
        if "seed" not in str(error):
            raise
        raise EnvError(
            f"{place} fails: {error}. reset must take a seed by keyword. "
            f"Write it as def reset(self, *, seed=None, options=None)."
        ) from error
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
        if not isinstance(flag, (bool, np.bool_)):
            raise EnvError(f"{place}: {name} is {described(flag)}, but must be a bool. Return bool({name}).")
    if not isinstance(info, dict):
        raise EnvError(f"{place}: info is {described(info)}, but must be a dict. Return {{}} when there is nothing.")
    ended = bool(terminated or truncated)
    return ended, None if ended else _checked_mask(env, obs, info, place)


def check_reward(reward: Any, place: str) -> None:
    """Refuse a reward that is no finite number; `place` opens the message."""
    if isinstance(reward, (int, float, np.integer, np.floating, np.bool_)):
        if math.isfinite(reward):
            return
        raise EnvError(f"{place}: reward is {reward}, but must be finite. Look for a division by zero or an overflow.")
    way_out = "Return float(reward)"
    if isinstance(reward, np.ndarray):
        way_out = "Return float(reward)" if reward.size == 1 else "Return their sum, or one of them, as a float"
    if reward is None:
        way_out = "Return 0.0 when there is none"
    raise EnvError(f"{place}: reward is {described(reward)}, but must be one number. {way_out}.")


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


def allowed_action(space: spaces.Space[Any], mask: Tree) -> Any:
    """Sample an action that one row's mask (`[1, n]` per leaf, or None) allows, as `SerialVectorEnv` gives it."""
    if isinstance(space, spaces.Dict):
        return {key: allowed_action(part, mask and mask[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(allowed_action(part, mask and mask[position]) for position, part in enumerate(space.spaces))
    if isinstance(space, spaces.Discrete):
        return int(space.sample(mask=None if mask is None else mask[0].astype(np.int8)))
    action = space.sample()
    if mask is None:
        return action
    if isinstance(space, spaces.MultiDiscrete):
        ends = np.cumsum(choice_counts(space))[:-1]
        chosen = [int(np.flatnonzero(part)[0]) for part in np.split(mask[0], ends)]
        return np.array(chosen, dtype=space.dtype).reshape(space.shape)
    return action & mask[0].reshape(space.shape)


def described(value: Any) -> str:
    """Say what a value is that should have been something else, in few words."""
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, np.ndarray):
        return f"an array of shape {list(value.shape)} and dtype {value.dtype}"
    text = repr(value)
    return f"{text if len(text) < 60 else text[:57] + '...'} ({type(value).__name__})"
