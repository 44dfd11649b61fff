"""What is known of every environment outside of its process: its seed, its episode, what it was told, where it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from twostep.tree import tree_map
from twostep.vector.shared import SharedRows


class Ledger:
    """Seeds, episodes and calls of all environments, for messages and for those that replace them."""

    def __init__(self, num_envs: int, rows: SharedRows) -> None:
        self.seeds = [0] * num_envs
        self.calls: dict[tuple[int, str], tuple[Any, ...]] = {}
        """The arguments with which a method that returns nothing was last called, by environment and name."""
        self.tasks: dict[int, Any] = {}
        """What each environment was last given to play from its next episode on."""
        self.untold: set[int] = set()
        """The environments whose workers do not know their task yet."""
        self._rows = rows
        self._num_steps = 0
        self._episodes, self._began = [0] * num_envs, [0] * num_envs

    def note_seeds(self, chosen: Mapping[int, int | None]) -> None:
        """Take note of the seeds of a reset; None goes on drawing from the one before."""
        for env, seed in chosen.items():
            if seed is not None:
                self.seeds[env] = seed

    def note_tasks(self, tasks: Mapping[int, Any]) -> None:
        """Take note of what environments play from their next episodes on, which their workers do not know yet."""
        self.tasks.update(tasks)
        self.untold.update(tasks)

    def tasks_of(self, first: int, last: int) -> dict[int, Any]:
        """Return the tasks of the environments from `first` up to `last`, counted from there."""
        return {env - first: self.tasks[env] for env in range(first, last) if env in self.tasks}

    def untold_tasks(self, first: int, last: int) -> dict[int, Any]:
        """Return of those the ones that have not been told yet; they count as told from now on."""
        untold = {env for env in self.untold if first <= env < last}
        self.untold -= untold
        return {env - first: self.tasks[env] for env in sorted(untold)}

    def note_step(self) -> None:
        """Take note that a step is taken."""
        self._num_steps += 1

    def note_episodes(self) -> None:
        """Take note of the episodes that the last reset or step began."""
        starts = self._rows.episode_starts
        begun = starts if len(starts) == len(self.seeds) else starts.reshape(len(self.seeds), -1).all(1)
        for env in np.flatnonzero(begun).tolist():
            self._episodes[env] += 1
            self._began[env] = self._num_steps

    def next_seeds(self, part: slice) -> list[int]:
        """Replace the seeds of some environments by others, each of which follows from the one before; return them."""
        states = (np.random.SeedSequence((seed, 1)).generate_state(1) for seed in self.seeds[part])
        self.seeds[part] = [int(state[0] >> 1) for state in states]
        return self.seeds[part]

    def state_dict(self) -> dict[str, Any]:
        """Return seeds, episodes and what environments were told, as far as that is plain data."""
        steps = [self._num_steps - began for began in self._began]
        calls = [(env, name, args) for (env, name), args in self.calls.items() if _is_plain(args)]
        return {"seeds": list(self.seeds), "episodes": list(self._episodes), "steps": steps, "calls": calls}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Know what `state_dict` told."""
        self.seeds, self._episodes = list(state["seeds"]), list(state["episodes"])
        self._began = [self._num_steps - steps for steps in state["steps"]]
        self.calls = {(env, name): tuple(args) for env, name, args in state["calls"]}

    def place(self, env: int, call: str) -> str:
        """Say where in the run an environment is, in `step` or in `reset`."""
        rows_per_env = len(self._rows.rewards) // len(self.seeds)
        part = slice(env * rows_per_env, (env + 1) * rows_per_env)
        actions = tree_map(lambda leaf: leaf[part].tolist(), self._rows.actions)
        if rows_per_env == 1:
            actions = tree_map(lambda values: values[0], actions)
        given = actions if call == "step" else ""
        steps = self._num_steps - self._began[env]
        return (
            f"env {env} (seed {self.seeds[env]}), episode {self._episodes[env]}, step {steps} of it, in {call}({given})"
        )


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, cast("list[Any]", value)))
    return value is None or isinstance(value, (bool, int, float, str))
