"""Gymnasium spaces as memory: preallocated rows for observations, and batches of actions cut into rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from twostep.errors import EnvError
from twostep.tree import Tree, tree_map

SUPPORTED_SPACES = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of these"
_LEAF_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def require_supported_space(space: Any, name: str) -> None:
    """Refuse what is no Gymnasium space or cannot be stored as arrays of one shape."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        for key, part in parts_of(space):
            require_supported_space(part, f"{name}[{key!r}]")
    elif not isinstance(space, _LEAF_SPACES):
        kind = f"{type(space).__module__}.{type(space).__name__}"
        raise EnvError(
            f"{name} is {space!r} ({kind}), which is not supported. Supported are Gymnasium's {SUPPORTED_SPACES}. "
            f"Flatten or encode it as one of these."
        )


def parts_of(space: spaces.Space[Any]) -> list[tuple[Any, spaces.Space[Any]]]:
    """List the keys or positions of a Dict or Tuple with their spaces; empty for other spaces."""
    if isinstance(space, spaces.Dict):
        return list(space.spaces.items())
    return list(enumerate(space.spaces)) if isinstance(space, spaces.Tuple) else []


def observation_memory(space: spaces.Space[Any], num_rows: int) -> Tree:
    """Allocate zeros for one observation per row: each leaf `[B, ...]` in the dtype of its space."""
    if isinstance(space, spaces.Dict):
        return {key: observation_memory(space.spaces[key], num_rows) for key in sorted(space.spaces)}
    if isinstance(space, spaces.Tuple):
        return tuple(observation_memory(part, num_rows) for part in space.spaces)
    return np.zeros((num_rows, *(space.shape or ())), dtype=space.dtype)


def row_slots(memory: Tree, num_rows: int) -> list[Any]:
    """Return one object per row to which `slot[...] = observation` writes.

    A slot of an array is a view of it, which numpy fills without further calls; trees get a `TreeSlot`.
    """
    if isinstance(memory, np.ndarray):
        return [memory[row, ...] for row in range(num_rows)]
    keys: list[Any] = list(memory) if isinstance(memory, dict) else list(range(len(memory)))
    columns = [row_slots(memory[key], num_rows) for key in keys]
    return [TreeSlot(keys, parts) for parts in zip(*columns, strict=True)]


class TreeSlot:
    """One row of a tree of arrays, written as a whole."""

    __slots__ = ("_keys", "_parts")

    def __init__(self, keys: list[Any], parts: tuple[Any, ...]) -> None:
        self._keys = keys
        self._parts = parts

    def __setitem__(self, _: Any, observation: Any) -> None:
        """Copy every leaf of `observation` into its place."""
        for key, part in zip(self._keys, self._parts, strict=True):
            part[...] = observation[key]


def action_splitter(space: spaces.Space[Any]) -> Callable[[Tree], list[Any]]:
    """Return the function that cuts a batch of actions `[B, ...]` into what each environment takes.

    Discrete actions become Python ints; array actions are copied in the dtype of the space, so an environment may keep
    the one it was given although the caller reuses the memory.
    """
    if isinstance(space, spaces.Dict):
        splitters = {key: action_splitter(part) for key, part in space.spaces.items()}

        def split_dict(actions: Tree) -> list[Any]:
            columns = [split(actions[key]) for key, split in splitters.items()]
            return [dict(zip(splitters, parts, strict=True)) for parts in zip(*columns, strict=True)]

        return split_dict
    if isinstance(space, spaces.Tuple):
        splits = [action_splitter(part) for part in space.spaces]

        def split_tuple(actions: Tree) -> list[Any]:
            columns = [split(branch) for split, branch in zip(splits, actions, strict=True)]
            return list(zip(*columns, strict=True))

        return split_tuple
    if isinstance(space, spaces.Discrete):
        return _split_discrete
    dtype, shape = space.dtype, space.shape or ()

    def split_arrays(actions: Any) -> list[Any]:
        array = np.array(actions, dtype=dtype)
        if array.shape[1:] != shape:
            raise EnvError(
                f"Actions of shape {list(array.shape)} do not fit {space}: each row must have shape {list(shape)}. "
                f"Return actions as [rows, {', '.join(map(str, shape))}]."
            )
        return list(array) if shape else [array[row, ...] for row in range(len(array))]

    return split_arrays


def _split_discrete(actions: Any) -> list[Any]:
    array = actions if isinstance(actions, np.ndarray) else np.asarray(actions)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise EnvError(
            f"Discrete actions of shape {list(array.shape)} and dtype {array.dtype} cannot be taken: "
            f"they must be one integer per row. Pass an integer array of shape [rows]."
        )
    return list(array)  # numpy's own integers are what spaces sample, and what they check soonest


def shown(actions: Tree) -> Tree:
    """Return actions as a message shows them: numbers without their type."""
    return tree_map(lambda leaf: leaf.item() if isinstance(leaf, np.generic) else leaf, actions)


def cast_actions(space: spaces.Space[Any], actions: Tree) -> Tree:
    """Bring a batch of actions to the dtypes of `space`, in one piece, as Gymnasium's vector environments take it."""
    if isinstance(space, spaces.Dict):
        return {key: cast_actions(part, actions[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(cast_actions(part, branch) for part, branch in zip(space.spaces, actions, strict=True))
    # Copied: an environment may keep what it was given, while the caller reuses its memory.
    return np.array(actions, dtype=space.dtype)
