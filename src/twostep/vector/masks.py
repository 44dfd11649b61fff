"""Action masks: where environments say them, and the memory they are read into."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from twostep.errors import EnvError
from twostep.tree import Tree
from twostep.vector.places import env_name
from twostep.vector.spaces import parts_of

MASK_KEY = "action_mask"
_MASKABLE = "Discrete, MultiDiscrete (its parts joined into one row), MultiBinary, and Dict or Tuple of these"


def mask_memory(space: spaces.Space[Any], num_rows: int) -> Tree:
    """Allocate the mask of every row, all allowed: `[B, n]` per maskable leaf, None where nothing can be masked."""
    if isinstance(space, spaces.Dict):
        return {key: mask_memory(space.spaces[key], num_rows) for key in sorted(space.spaces)}
    if isinstance(space, spaces.Tuple):
        return tuple(mask_memory(part, num_rows) for part in space.spaces)
    length = sum(choice_counts(space)) or _binary_length(space)
    return np.ones((num_rows, length), dtype=np.bool_) if length else None


def choice_counts(space: spaces.Space[Any]) -> list[int]:
    """List how many choices each categorical part of an action has; empty for other spaces."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return [int(count) for count in space.nvec.ravel()]
    return []


def _binary_length(space: spaces.Space[Any]) -> int:
    return int(np.prod(space.shape)) if isinstance(space, spaces.MultiBinary) else 0


class MaskMemory:
    """The masks of all rows, written anew for every next action; `names` says in messages whose they are."""

    def __init__(self, space: spaces.Space[Any], num_rows: int, names: Sequence[str] | None = None) -> None:
        self._space = space
        self._names = names or [env_name(row) for row in range(num_rows)]
        self.masks = mask_memory(space, num_rows)
        self._flat = self.masks.reshape(-1) if isinstance(self.masks, np.ndarray) else None
        self._part_starts = np.cumsum([0, *choice_counts(space)])[:-1]

    def write(self, row_masks: Sequence[Any], where: str) -> Tree:
        """Store one mask per row (None allows everything) and return them all; `where` is for messages."""
        if self._flat is None or not self._write_at_once(row_masks):
            for row, mask in enumerate(row_masks):
                write_mask(self._space, self.masks, row, mask, f"{self._names[row]}, {where}")
        return self.masks

    def _write_at_once(self, row_masks: Sequence[Any]) -> bool:
        """Write by a single call, which is fast; say whether it went well and each part has a choice left."""
        try:
            np.concatenate(row_masks, out=self._flat, casting="unsafe")
        except (TypeError, ValueError):
            return False
        if not len(self._part_starts):
            return True
        return bool(np.logical_or.reduceat(self.masks, self._part_starts, axis=1).all())


def write_mask(space: spaces.Space[Any], memory: Tree, row: int, mask: Any, where: str) -> None:
    """Copy one environment's mask into its row, and refuse masks of a wrong form or without any allowed action."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        for key, part in parts_of(space):
            if memory[key] is not None:
                write_mask(part, memory[key], row, None if mask is None else mask[key], f"{where}[{key!r}]")
        return
    if memory is None:
        raise EnvError(
            f"{where}: a mask came for {space}, where no action can be masked. "
            f"Masks are for {_MASKABLE}; leave the mask out."
        )
    if mask is None:
        memory[row] = True
        return
    array = np.concatenate([np.ravel(part) for part in mask]) if isinstance(mask, tuple) else np.asarray(mask)
    if array.size != memory.shape[1] or array.dtype.kind not in "biu":
        raise EnvError(
            f"{where}: the mask has shape {list(array.shape)} and dtype {array.dtype}, but {space} needs "
            f"{memory.shape[1]} booleans. Return np.ndarray of shape ({memory.shape[1]},), True for allowed actions."
        )
    memory[row] = array.ravel()
    _require_allowed(space, memory[row], where)


def _require_allowed(space: spaces.Space[Any], mask: np.ndarray[Any, Any], where: str) -> None:
    """Refuse a row's mask that leaves some part of the action without any choice."""
    start = 0
    for part, count in enumerate(choice_counts(space)):
        if not mask[start : start + count].any():
            which = f"part {part} of {space}" if isinstance(space, spaces.MultiDiscrete) else str(space)
            raise EnvError(
                f"{where}: the mask forbids all {count} actions of {which}. At least one must be allowed; "
                f"end the episode (terminated=True) when nothing can be done."
            )
        start += count


def mask_reader(
    envs: Sequence[Any], action_space: spaces.Space[Any], obs: Tree, infos: list[dict[str, Any]]
) -> Callable[[str], Tree] | None:
    """Find where the environments keep their masks: the first reset's info, a method, or the observation.

    Returns None when there are none, else a function that reads the masks of the next actions; its argument says when,
    for messages. `infos` is read anew on every call: the caller replaces its items in place.
    """
    row_masks = _mask_source(envs, obs, infos)
    if row_masks is None:
        return None
    memory = MaskMemory(action_space, len(envs))
    return lambda when: memory.write(row_masks(), when)


def _mask_source(envs: Sequence[Any], obs: Tree, infos: list[dict[str, Any]]) -> Callable[[], list[Any]] | None:
    if MASK_KEY in infos[0]:
        return lambda: [_mask_of(info, row) for row, info in enumerate(infos)]
    methods = [mask_method(env) for env in envs]
    if methods[0] is not None:
        return lambda: [method() for method in methods if method is not None]
    if isinstance(obs, dict) and MASK_KEY in obs:
        return lambda: list(obs[MASK_KEY])
    return None


def mask_method(env: Any) -> Callable[[], Any] | None:
    """Return the environment's own `action_masks` method, if it has one."""
    return getattr(getattr(env, "unwrapped", env), "action_masks", None)


def _mask_of(info: dict[str, Any], row: int) -> Any:
    if MASK_KEY not in info:
        raise EnvError(
            f"{env_name(row)}: info has no '{MASK_KEY}' now, but had one after the first reset (keys: {sorted(info)}). "
            f"An environment that masks actions must do so after every reset and step."
        )
    return info[MASK_KEY]
