"""Gymnasium's spaces as plain JSON, and back to equal ones."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
from gymnasium import spaces

from twostep.errors import CheckpointError, PolicyError

MOST_NUMBERS, MOST_CATEGORIES = 2**25, 2**20
"""Larger spaces than any observation: a damaged or malicious description must not fill the memory."""

Plain = dict[str, Any]


def space_to_plain(space: spaces.Space[Any]) -> Plain:
    """Describe a space, bounds and order of parts included, so that `space_from_plain` gives an equal one."""
    if isinstance(space, spaces.Box):
        bounds = {"low": _bound(space.low), "high": _bound(space.high)}
        return {"space": "Box", "shape": list(space.shape), "dtype": str(space.dtype), **bounds}
    if isinstance(space, spaces.Discrete):
        return {"space": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        choices = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
        return {"space": "MultiDiscrete", **choices, "dtype": str(space.dtype)}
    if isinstance(space, spaces.MultiBinary):
        return {"space": "MultiBinary", "n": space.n if isinstance(space.n, int) else [int(side) for side in space.n]}
    if isinstance(space, spaces.Dict):
        return {"space": "Dict", "parts": [[name, space_to_plain(part)] for name, part in space.spaces.items()]}
    if isinstance(space, spaces.Tuple):
        return {"space": "Tuple", "parts": [space_to_plain(part) for part in space.spaces]}
    raise PolicyError(
        f"{space} cannot be written down: a saved policy's spaces are Box, Discrete, MultiDiscrete, MultiBinary, and "
        "Dict or Tuple of these."
    )


def space_from_plain(plain: Plain) -> spaces.Space[Any]:
    """Make the space that `space_to_plain` described."""
    kind = plain["space"]
    if kind == "Box":
        shape = _checked_shape(plain["shape"])
        low, high = (_limits(plain[end], shape, plain["dtype"]) for end in ("low", "high"))
        return spaces.Box(low, high, shape, _dtype(plain))
    if kind == "Discrete":
        return spaces.Discrete(_checked_categories(plain["n"]), start=plain["start"])
    if kind == "MultiDiscrete":
        nvec = np.asarray(plain["nvec"])
        _checked_categories(int(nvec.sum()))
        return spaces.MultiDiscrete(nvec, dtype=_dtype(plain), start=np.asarray(plain["start"]))
    if kind == "MultiBinary":
        sides = plain["n"]
        _checked_shape(sides if isinstance(sides, list) else [sides])
        return spaces.MultiBinary(sides)
    if kind == "Dict":
        return spaces.Dict([(name, space_from_plain(part)) for name, part in plain["parts"]])
    if kind == "Tuple":
        return spaces.Tuple([space_from_plain(part) for part in plain["parts"]])
    raise CheckpointError(f"{kind!r} is no kind of space that this version knows. Update twostep.")


def _bound(limits: np.ndarray[Any, Any]) -> Any:
    """Return one number where all limits are alike, as they mostly are, else a number for each."""
    same = limits.size > 0 and bool((limits == limits.flat[0]).all())
    return _words(limits.flat[0].item() if same else limits.tolist())


def _words(limit: Any) -> Any:
    """Say infinity in a word: JSON has no number for it."""
    if isinstance(limit, list):
        return [_words(inner) for inner in cast("list[Any]", limit)]
    return str(limit) if isinstance(limit, float) and math.isinf(limit) else limit


def _limits(bound: Any, shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    with np.errstate(all="raise"):
        numbers = np.asarray(_number(bound), dtype=dtype)
    return np.full(shape, numbers) if numbers.ndim == 0 else numbers.reshape(shape)


def _number(limit: Any) -> Any:
    if isinstance(limit, list):
        return [_number(inner) for inner in cast("list[Any]", limit)]
    return float(limit) if isinstance(limit, str) else limit


def _dtype(plain: Plain) -> Any:
    return np.dtype(plain["dtype"]).type


def _checked_shape(shape: list[int]) -> tuple[int, ...]:
    if math.prod(shape) > MOST_NUMBERS:
        raise CheckpointError(f"a space of shape {shape} has more than {MOST_NUMBERS:,} numbers: no policy sees that.")
    return tuple(shape)


def _checked_categories(count: int) -> int:
    if count > MOST_CATEGORIES:
        raise CheckpointError(f"a space of {count:,} categories has more than {MOST_CATEGORIES:,}: it is damaged.")
    return count
