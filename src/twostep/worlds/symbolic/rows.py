"""Many expressions written at once, without a process or a loop over them: `SymbolicEnv` for training at full speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from twostep.errors import EnvError
from twostep.protocols import Step
from twostep.seeds import Seeds, resets
from twostep.worlds.symbolic.config import SymbolicConfig
from twostep.worlds.symbolic.discoveries import Discovery
from twostep.worlds.symbolic.laws import Task
from twostep.worlds.symbolic.search import Search


class SymbolicRows:
    """`num_envs` expressions as a `RowEnv`: row for row the same as `SymbolicEnv` played one by one."""

    rows_per_env = 1
    agent_ids: tuple[()] = ()
    possible_agents: tuple[()] = ()

    def __init__(self, config: SymbolicConfig | None = None, num_envs: int = 128, seed: int | None = None) -> None:
        if num_envs < 1:
            raise EnvError(f"num_envs={num_envs}, but must be 1 or more. 128 is a good start for training.")
        self.config = config or SymbolicConfig()
        self.num_envs = self.num_rows = num_envs
        self.search = Search(self.config, num_envs)
        self.observation_space = self.search.observation_space
        self.action_space = self.search.action_space
        self._seed = self.config.seed if seed is None else seed
        self._begun = False
        self._never = np.zeros(num_envs, dtype=np.bool_)

    def set_task(self, task: Task | Sequence[Task]) -> None:
        """Let expressions begun from now on be for this task, or each for one drawn from several."""
        self.search.set_task(task)

    def assign(self, tasks: Mapping[int, Any]) -> None:
        """Give rows, by number, what they write from their next expressions on: what `SymbolicEnv.set_task` takes."""
        for row, task in tasks.items():
            if not 0 <= row < self.num_rows:
                raise EnvError(f"A task came for row {row}, but there are {self.num_rows}, from 0 on.")
            self.search.set_task(task, [row])

    def best(self) -> dict[str, Discovery]:
        """Return the best expression so far for each law, over all rows."""
        return dict(self.search.best)

    def reset(self, seed: Seeds | None = None, indices: Sequence[int] | None = None) -> Step:
        """Begin all expressions anew, or those of `indices`; a seed, or one for each, decides which tasks are drawn."""
        if not self._begun:
            if indices is not None:
                raise EnvError("reset was called with indices before all expressions have begun. Call reset() first.")
            if seed is None:
                seed = self._seed if self._seed is not None else int(np.random.SeedSequence().generate_state(1)[0])
        seeds = dict(resets(seed, self.num_envs, indices))
        chosen = list(seeds)
        if seed is not None:
            self.search.seed(chosen, [own for own in seeds.values() if own is not None])
        self._begun = True
        self.search.begin(chosen)
        starts = self._never.copy()
        starts[chosen] = True
        return Step(self.search.observe(), starts, action_masks=self.search.masks())

    def step(self, actions: Any) -> Step:
        """Write one token per row; rows whose expression is finished begin the next at once."""
        if not self._begun:
            raise EnvError("step was called before reset: no expression has begun. Call reset first.")
        search = self.search
        written = search.write(actions)
        rows = written.ended
        starts = self._never.copy()
        starts[rows] = True
        step = Step(search.observe(), starts, written.rewards, starts, self._never, infos=written.infos)
        if len(rows):
            step.final_rows, step.final_obs = rows, step.obs[rows]
            search.begin(rows)
            search.observe()
        step.action_masks = search.masks()
        return step

    def call(self, name: str, *args: Any, indices: Sequence[int] | None = None) -> list[Any]:
        """Call the method `name` once, or read the attribute: the answer, which is one for all, for each row."""
        value = getattr(self, name)
        answer: Any = value(*args) if callable(value) else value
        return [answer] * (self.num_envs if indices is None else len(indices))

    def close(self) -> None:
        """Free nothing: there is nothing to free."""
