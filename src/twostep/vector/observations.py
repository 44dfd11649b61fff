"""Whether an observation is what its space promises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from twostep.errors import EnvError

_ROUNDING = 1e-5


def check_observation(space: spaces.Space[Any], obs: Any, place: str, name: str = "obs") -> None:
    """Refuse an observation that does not fit its space; `place` opens the message.

    A dtype that numpy casts within its kind, such as float64 for a float32 space, is taken and cast when stored.
    """
    if isinstance(space, spaces.Dict):
        _check_keys(space, obs, place, name)
        for key, part in space.spaces.items():
            check_observation(part, obs[key], place, f"{name}[{key!r}]")
    elif isinstance(space, spaces.Tuple):
        if not isinstance(obs, tuple) or len(obs) != len(space.spaces):
            found = f"a tuple of {len(obs)}" if isinstance(obs, tuple) else f"of type {type(obs).__name__}"
            raise EnvError(f"{place}: {name} is {found}, but its space is a Tuple of {len(space.spaces)}. Return that.")
        for position, (part, branch) in enumerate(zip(space.spaces, obs, strict=True)):
            check_observation(part, branch, place, f"{name}[{position}]")
    else:
        _check_values(space, _as_array(space, obs, place, name), place, name)


def _check_keys(space: spaces.Dict, obs: Any, place: str, name: str) -> None:
    expected = set(space.spaces)
    if not isinstance(obs, Mapping):
        raise EnvError(
            f"{place}: {name} is of type {type(obs).__name__}, but its space is a Dict with keys {sorted(expected)}. "
            f"Return a dict with these keys."
        )
    missing, extra = expected - set(obs), set(obs) - expected
    if missing or extra:
        wrong = f"lacks {sorted(missing)}" if missing else f"has the extra keys {sorted(extra, key=str)}"
        raise EnvError(f"{place}: {name} {wrong}; its space has exactly {sorted(expected)}. Make the two agree.")


def _as_array(space: spaces.Space[Any], obs: Any, place: str, name: str) -> np.ndarray[Any, Any]:
    shape = list(space.shape or ())
    if obs is None:
        raise EnvError(f"{place}: {name} is None, but must be an array of shape {shape}. Return it from there.")
    if type(obs).__module__.split(".")[0] == "torch":
        raise EnvError(
            f"{place}: {name} is a torch tensor, but single environments hand out numpy arrays. "
            f"Return {name}.cpu().numpy(), or use TensorEnv for a simulator that batches tensors."
        )
    if isinstance(obs, (list, tuple, Mapping)) or not isinstance(obs, (np.ndarray, np.generic, int, float)):
        raise EnvError(
            f"{place}: {name} is of type {type(obs).__name__}, but must be a numpy array of shape {shape}. "
            f"Return np.asarray({name}, dtype=np.{space.dtype})."
        )
    array = np.asarray(obs)
    if array.dtype == object:
        raise EnvError(
            f"{place}: {name} is an array of objects (ragged rows or mixed types), but must hold {space.dtype}. "
            f"Pad its rows to one length and return np.asarray({name}, dtype=np.{space.dtype})."
        )
    if list(array.shape) != shape:
        raise EnvError(
            f"{place}: {name} has shape {list(array.shape)}, but its space {space} says {shape}. Make the two agree."
        )
    if not np.can_cast(array.dtype, space.dtype or array.dtype, casting="same_kind"):
        raise EnvError(
            f"{place}: {name} has dtype {array.dtype}, but its space {space} says {space.dtype}, and casting "
            f"would change the values. Return np.{space.dtype}, or change the dtype of the space."
        )
    return array


def _check_values(space: spaces.Space[Any], array: np.ndarray[Any, Any], place: str, name: str) -> None:
    if array.dtype.kind == "f" and np.isnan(array).any():
        index = np.argwhere(np.isnan(array))[0].tolist()
        raise EnvError(f"{place}: {name}{index or ''} is nan, but must be a number. Look for 0/0 or a faulty sensor.")
    low, high = _bounds(space)
    outside = (array < low) | (array > high)
    if array.dtype.kind == "f":
        close = np.isclose(array, low, _ROUNDING, 0.0) | np.isclose(array, high, _ROUNDING, 0.0)
        outside = (outside & ~close) | np.isinf(array)
    wrong = np.argwhere(outside)
    if len(wrong):
        index = tuple(wrong[0].tolist())
        raise EnvError(
            f"{place}: {name}{list(index) or ''} is {array[index]}, but its space allows "
            f"{np.broadcast_to(low, array.shape)[index]} to {np.broadcast_to(high, array.shape)[index]}, and only "
            f"finite numbers. Widen the bounds of the space, or clip the observation."
        )


def _bounds(space: Any) -> tuple[Any, Any]:
    """Return the lowest and the highest value as numpy broadcasts them, wide enough for unsigned dtypes."""
    if isinstance(space, spaces.Box):
        wide = np.float64 if space.dtype.kind == "f" else np.int64
        return space.low.astype(wide), space.high.astype(wide)
    if isinstance(space, spaces.MultiBinary):
        return np.int64(0), np.int64(1)
    if isinstance(space, spaces.MultiDiscrete):
        return np.asarray(space.start, dtype=np.int64), np.asarray(space.start + space.nvec - 1, dtype=np.int64)
    return np.int64(space.start), np.int64(space.start + space.n - 1)
