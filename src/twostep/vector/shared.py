"""What worker processes and their parent both see: one piece of memory without a name.

Nothing of it lies in a file system, so nothing is left behind however the processes end, and the small `/dev/shm` of
containers does not limit it. Workers are started with its descriptor, before anybody knows how large it will be.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Any

import numpy as np

from twostep.errors import EnvError
from twostep.tree import Tree, tree_items, tree_leaves, tree_map, tree_structure
from twostep.vector.masks import mask_memory
from twostep.vector.spaces import observation_memory

_ALIGNMENT = 64
_FLAGS = ("terminated", "truncated", "valid", "episode_starts", "final", "present")


class SharedRows:
    """The numbers of one step for a number of rows, as numpy views: `obs`, `actions`, `rewards`, flags, masks.

    `final` says which rows of `final_obs` hold an episode's last observation. The first number of a worker's part of
    `working_on` says which of its environments it is stepping: known also when it never answers.
    """

    def __init__(self, columns: dict[str, Tree]) -> None:
        self.columns = columns
        self.obs: Tree = columns["obs"]
        self.final_obs: Tree = columns["final_obs"]
        self.actions: Tree = columns["actions"]
        self.masks: Tree = columns["masks"]
        self.rewards: np.ndarray[Any, Any] = columns["rewards"]
        self.working_on: np.ndarray[Any, Any] = columns["working_on"]
        flags: list[np.ndarray[Any, Any]] = [columns[name] for name in _FLAGS]
        self.terminated, self.truncated, self.valid, self.episode_starts, self.final, self.present = flags

    @classmethod
    def over(cls, memory: Any, observation_space: Any, action_space: Any, num_rows: int) -> SharedRows:
        """Lay the columns of `num_rows` rows over `memory`, each at its place and in the dtype of its space."""
        offset = 0

        def placed(leaf: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            nonlocal offset
            shape = (num_rows, *leaf.shape[1:])
            size = int(np.prod(shape, dtype=np.int64))
            view = np.frombuffer(memory, leaf.dtype, size, offset).reshape(shape)
            offset += _aligned(size * leaf.itemsize)
            return view

        return cls({name: tree_map(placed, tree) for name, tree in _one_row(observation_space, action_space).items()})

    def rows(self, first: int, last: int) -> SharedRows:
        """Return the rows from `first` up to, but not including, `last`."""
        return SharedRows({name: tree_map(lambda leaf: leaf[first:last], tree) for name, tree in self.columns.items()})


def bytes_needed(observation_space: Any, action_space: Any, num_rows: int) -> int:
    """Return the size of the memory that `SharedRows.over` covers."""
    leaves = [leaf for tree in _one_row(observation_space, action_space).values() for leaf in tree_leaves(tree)]
    return sum(_aligned(leaf.nbytes * num_rows) for leaf in leaves)


def _one_row(observation_space: Any, action_space: Any) -> dict[str, Tree]:
    obs = observation_memory(observation_space, 1)
    columns: dict[str, Tree] = {
        "obs": obs,
        "final_obs": obs,
        "actions": observation_memory(action_space, 1),
        "masks": mask_memory(action_space, 1),
        "rewards": np.zeros(1, dtype=np.float32),
        "working_on": np.zeros(1, dtype=np.int32),
    }
    return columns | {name: np.zeros(1, dtype=np.bool_) for name in _FLAGS}


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def nameless_file() -> int:
    """Return the descriptor of an empty file in memory that vanishes with its last user."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("twostep")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def mapped(descriptor: int) -> mmap.mmap:
    """Return the memory behind a descriptor; it lives as long as an array points into it."""
    return mmap.mmap(descriptor, os.fstat(descriptor).st_size)


class ActionWriter:
    """Copies a batch of actions into shared memory, and refuses one that does not fit it row for row."""

    def __init__(self, space: Any, memory: Tree) -> None:
        self._space = space
        self._memory = memory
        self._whole = memory if isinstance(memory, np.ndarray) else None
        self._structure = tree_structure(memory)

    def write(self, actions: Tree) -> None:
        """Store one action per row."""
        if self._whole is not None:
            _write_leaf(self._whole, actions, "actions")
            return
        if tree_structure(actions) != self._structure:
            raise EnvError(
                f"Actions came as {tree_structure(actions)}, but {self._space} needs {self._structure}. "
                f"Return them in that structure, each leaf [rows, ...]."
            )
        given = dict(tree_items(actions))
        for path, kept in tree_items(self._memory):
            _write_leaf(kept, given[path], f"actions[{path}]")


def _write_leaf(kept: np.ndarray[Any, Any], actions: Any, name: str) -> None:
    given = actions if isinstance(actions, np.ndarray) else np.asarray(actions)
    if given.shape == kept.shape and (given.dtype == kept.dtype or np.can_cast(given.dtype, kept.dtype, "same_kind")):
        kept[...] = given
        return
    if given.ndim and len(given) != len(kept) and given.shape[1:] == kept.shape[1:]:
        raise EnvError(
            f"{len(given)} {name} came for {len(kept)} rows: there must be one per row. "
            f"Return {name} of shape {list(kept.shape)}."
        )
    raise EnvError(
        f"{name} of shape {list(given.shape)} and dtype {given.dtype} cannot be taken: they must have shape "
        f"{list(kept.shape)} and a dtype that {kept.dtype} can hold. Return one action per row in that form."
    )
