"""Tasks of a curriculum on their way: down to the environments, and up with the episodes that played them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from heapq import merge
from typing import Any

import numpy as np

from twostep.errors import EnvError
from twostep.group import ALONE, Group
from twostep.protocols import Curriculum, Step, Task
from twostep.rollout import TASK_KEY, Episode
from twostep.tree import Tree

Score = Callable[[Episode], float]
"""From an episode that ended to how well it went."""


def episode_return(episode: Episode) -> float:
    """Take an episode's return as its score."""
    return episode.ret


def score_of(named: str | Score) -> Score:
    """Return what scores episodes: their return, a number of the environment's last info by name, or a function."""
    if not isinstance(named, str):
        return named
    if named == "return":
        return episode_return

    def from_info(episode: Episode) -> float:
        if named not in episode.info:
            raise EnvError(
                f"The last info of an episode has no {named!r} to score it by, only {sorted(episode.info)}. "
                f"Add it, a number or a truth value, or score by 'return'."
            )
        return float(episode.info[named])

    return from_info


class TaskRows:
    """Steps environments whose every episode plays a task of a curriculum.

    An environment must know its next task before it starts anew within a step, in whatever process that is. So tasks
    are drawn one episode ahead: those of the next episodes when the present ones begin. Which are drawn depends on
    what the environments return, and on nothing else. The info of an episode's end holds the task's id as `task`.
    """

    def __init__(self, env: Any, curriculum: Curriculum, score: str | Score = "return", group: Group = ALONE) -> None:
        if not hasattr(env, "assign"):
            raise EnvError(
                f"{type(env).__name__} has no method assign(tasks), so a curriculum cannot reach its environments. "
                f"Use make_env with vectorization='serial' or num_workers=, or tell the tasks yourself."
            )
        self.env, self.curriculum, self._score, self._group = env, curriculum, score_of(score), group
        self.rows_per_env: int = getattr(env, "rows_per_env", 1)
        self.num_envs: int = env.num_rows // self.rows_per_env
        self.playing: list[Task] = []
        """The task of each environment's present episode."""
        self.coming: list[Task] = []
        """The task of each environment's next episode."""

    def reset(self, seed: int | None = None) -> Step:
        """Draw the tasks of all environments, and begin them."""
        self.coming = [self.curriculum.get_task() for _ in range(self.num_envs)]
        self.playing = list(self.coming)
        self._assign(range(self.num_envs))
        step = self.env.reset(seed)
        self._begin(range(self.num_envs))
        return step

    def step(self, actions: Tree) -> Step:
        """Take one action per row."""
        step = self.env.step(actions)
        for row, info in step.infos.items():
            step.infos[row] = {**info, TASK_KEY: self.playing[row // self.rows_per_env].id()}
        starts = np.asarray(step.episode_starts)
        if starts.any():
            self._begin(np.flatnonzero(starts.reshape(self.num_envs, -1).all(1)).tolist())
        return step

    def begin_again(self, envs: Sequence[int]) -> Step:
        """Begin the next episodes of some environments before the present ones have ended."""
        step = self.env.reset(indices=envs)
        self._begin(envs)
        return step

    def _begin(self, envs: Sequence[int]) -> None:
        """Note that environments have begun what was to come, and draw what comes after it."""
        for env in envs:
            self.playing[env], self.coming[env] = self.coming[env], self.curriculum.get_task()
        self._assign(envs)

    def _assign(self, envs: Sequence[int]) -> None:
        self.env.assign({env: self.coming[env].env_cfg() for env in envs})

    def state_dict(self) -> dict[str, Any]:
        """Return the tasks of all present and next episodes."""
        return {name: [(task.id(), task.env_cfg()) for task in getattr(self, name)] for name in ("playing", "coming")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Know the tasks that `state_dict` told, and tell the environments what comes; call it after theirs."""
        for name in ("playing", "coming"):
            setattr(self, name, [Task(task, told, self.curriculum) for task, told in state[name]])
        self._assign(range(self.num_envs))

    def complete(self, episodes: Iterable[Episode]) -> None:
        """Tell the curriculum how episodes went, also those of other processes; of many agents each one's counts."""
        own = [(one.step, one.task, self._score(one)) for one in episodes if one.task is not None]
        drawn = Counter(task.id() for task in (*self.playing, *self.coming))
        running = Counter[str]()
        ended: list[list[tuple[int, str, float]]] = []
        for theirs, waiting in self._group.tell((own, {task: self.rows_per_env * n for task, n in drawn.items()})):
            ended.append(theirs)
            running.update(waiting)
            running.update(task for _, task, _ in theirs)  # until it is told of them, below
        self.curriculum.set_running(running)
        for _, task, score in merge(*ended, key=lambda told: told[0]):
            self.curriculum.complete_task(task, score)
