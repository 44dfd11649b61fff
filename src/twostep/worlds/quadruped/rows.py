"""Many robots stepped as one: `QuadrupedEnv` for training at full speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from twostep.errors import EnvError, StateError
from twostep.protocols import Step
from twostep.seeds import Seeds, resets
from twostep.worlds.quadruped.config import QuadrupedConfig
from twostep.worlds.quadruped.world import STATISTICS, World

Array = npt.NDArray[Any]


class QuadrupedRows:
    """`num_envs` robots as a `RowEnv`: row for row the same as `QuadrupedEnv` stepped one by one."""

    rows_per_env = 1
    agent_ids: tuple[()] = ()
    possible_agents: tuple[()] = ()

    def __init__(self, config: QuadrupedConfig | None = None, num_envs: int = 64, seed: int | None = None) -> None:
        if num_envs < 1:
            raise EnvError(f"num_envs={num_envs}, but must be 1 or more. 64 is a good start for training.")
        self.config = config or QuadrupedConfig()
        self.num_envs = self.num_rows = num_envs
        self.world = World(self.config, num_envs)
        self.observation_space = self.world.observation_space
        self.action_space = self.world.action_space
        self.episode_statistics = STATISTICS
        self._seed = self.config.seed if seed is None else seed
        self._begun = False
        self._never = np.zeros(num_envs, dtype=np.bool_)

    def assign(self, tasks: Mapping[int, Any]) -> None:
        """Give rows, by number, the ground of their next episodes: what `QuadrupedEnv.set_task` takes."""
        for row, task in tasks.items():
            if not 0 <= row < self.num_rows:
                raise EnvError(f"A task came for row {row}, but there are {self.num_rows}, from 0 on.")
            self.world.set_task([row], task)

    def reset(self, seed: Seeds | None = None, indices: Sequence[int] | None = None) -> Step:
        """Begin all episodes anew, or those of `indices`; a seed, or one for each, makes what follows repeatable."""
        first = not self._begun
        if first:
            if indices is not None:
                raise EnvError("reset was called with indices before all episodes have begun. Call reset() first.")
            if seed is None:
                seed = self._seed if self._seed is not None else int(np.random.SeedSequence().generate_state(1)[0])
        seeds = dict(resets(seed, self.num_envs, indices))
        chosen = np.array(list(seeds), dtype=np.int64)
        if seed is not None:
            self.world.random.seed(chosen.tolist(), [own for own in seeds.values() if own is not None])
        self._begun = True
        self.world.begin(chosen, first=indices is None)
        self.world.steer()
        starts = self._never.copy()
        starts[chosen] = True
        return Step(self.world.observe(chosen), starts)

    def step(self, actions: Any) -> Step:
        """Take one action per row; robots whose episode ended begin the next at once."""
        if not self._begun:
            raise EnvError("step was called before reset: no episode has begun. Call reset first.")
        world = self.world
        stepped = world.step(self._checked(actions))
        rows = stepped.ended
        starts = self._never.copy()
        starts[rows] = True
        obs = world.observe(slice(None))
        step = Step(obs, starts, stepped.rewards, stepped.terminated, stepped.truncated, infos=stepped.infos)
        if len(rows):
            step.final_rows, step.final_obs = rows, {name: values[rows] for name, values in obs.items()}
            world.begin(rows)
            world.steer()
            world.observe(rows)
        return step

    def _checked(self, actions: Any) -> Array:
        array = np.asarray(actions, dtype=np.float64)
        shape = (self.num_rows, *(self.action_space.shape or ()))
        if array.shape != shape or not np.isfinite(array).all():
            found = f"of shape {list(array.shape)}" if array.shape != shape else "not finite"
            raise EnvError(f"Actions are {found}, but must be finite numbers of shape {list(shape)}: one per joint.")
        return array

    def call(self, name: str, *args: Any, indices: Sequence[int] | None = None) -> list[Any]:
        """Call the method `name` once, or read the attribute: the answer, which is one for all, for each row."""
        value = getattr(self, name)
        answer: Any = value(*args) if callable(value) else value
        return [answer] * (self.num_envs if indices is None else len(indices))

    def state_dict(self) -> dict[str, Any]:
        """Return where every robot stands."""
        if not self._begun:
            raise StateError("No episode has begun, so there is no state to keep. Call reset first.")
        return {"envs": [{"robot": self.world.state_of(row)} for row in range(self.num_envs)]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken."""
        kept = state["envs"]
        if len(kept) != self.num_envs or any("robot" not in one for one in kept):
            raise StateError(f"The state is not of {self.num_envs} robots stepped as one. Make them as they were.")
        self.world.go_on([one["robot"] for one in kept])
        self._begun = True

    def close(self) -> None:
        """End the threads; harmless when called twice."""
        self.world.close()
