"""What the checks of all kinds of environments have in common: spaces, rewards, actions that are allowed, words."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from twostep.errors import EnvError
from twostep.tree import Tree
from twostep.vector.masks import choice_counts
from twostep.vector.spaces import parts_of, require_supported_space

NUM_CHECKED_STEPS = 5


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


def called_reset(place: str, reset: Callable[..., Any], seed: dict[str, int]) -> Any:
    """Call an environment's reset, which must take a seed by keyword."""
    try:
        return called(place, reset, **seed)
    except TypeError as error:
        if "seed" not in str(error):
            raise
        raise EnvError(
            f"{place} fails: {error}. reset must take a seed by keyword. "
            f"Write it as def reset(self, *, seed=None, options=None)."
        ) from error


def check_flag(flag: Any, name: str, place: str) -> None:
    """Refuse an ending that is neither true nor false."""
    if not isinstance(flag, (bool, np.bool_)):
        raise EnvError(f"{place}: {name} is {described(flag)}, but must be a bool. Return bool({name}).")


def check_reward(reward: Any, place: str) -> None:
    """Refuse a reward that is no finite number; `place` opens the message."""
    if isinstance(reward, (int, float, np.integer, np.floating, np.bool_)):
        if _is_finite(reward):
            return
        found = str(reward)[:20]
        raise EnvError(f"{place}: reward is {found}, but must be finite. Look for a division by zero or an overflow.")
    way_out = "Return float(reward)"
    if isinstance(reward, np.ndarray):
        way_out = "Return float(reward)" if reward.size == 1 else "Return their sum, or one of them, as a float"
    if reward is None:
        way_out = "Return 0.0 when there is none"
    raise EnvError(f"{place}: reward is {described(reward)}, but must be one number. {way_out}.")


def _is_finite(number: Any) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # a whole number that no float can hold
        return False


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
