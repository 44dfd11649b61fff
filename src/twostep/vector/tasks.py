"""What environments are to play in their next episodes, and how each is told."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from twostep.errors import EnvError
from twostep.vector.agents import own_attribute

Tell = Callable[[Any], dict[str, Any]]
"""Tells an environment its task just before its reset, and returns what that reset takes beside a seed."""


class NextTasks:
    """The task of each environment of a group, from its next reset on; empty where nobody assigns any.

    An environment, or a wrapper of it, with a method `set_task` is told by `set_task(task)`; one with `set_difficulty`
    by `set_difficulty(task["difficulty"])`; every other by `reset(options=task)`. Which it is, is found out once.
    """

    def __init__(self, envs: Sequence[Any]) -> None:
        self._envs = envs
        self._tasks: dict[int, Any] = {}
        self._tells: dict[int, Tell] = {}

    def assign(self, tasks: Mapping[int, Any]) -> None:
        """Note tasks by the environment's number; those of other environments stay as they are."""
        require_envs(tasks, len(self._envs))
        self._tasks.update(tasks)

    def arguments(self, env: int) -> dict[str, Any]:
        """Tell an environment what it plays from now on, and return what else its reset takes."""
        if env not in self._tasks:
            return {}
        if env not in self._tells:
            self._tells[env] = _tell(self._envs[env])
        return self._tells[env](copy.deepcopy(self._tasks[env]))  # its own copy, as if it lived in another process


def require_envs(tasks: Mapping[int, Any], num_envs: int) -> None:
    """Refuse tasks for environments that do not exist."""
    wrong = [env for env in tasks if not 0 <= env < num_envs]
    if wrong:
        raise EnvError(
            f"Tasks came for the environments {wrong}, but there are {num_envs}. Use numbers from 0 to {num_envs - 1}."
        )


def _tell(env: Any) -> Tell:
    set_task, set_difficulty = _method(env, "set_task"), _method(env, "set_difficulty")

    def by_task(task: Any) -> dict[str, Any]:
        set_task(task)
        return {}

    def by_difficulty(task: Any) -> dict[str, Any]:
        if not isinstance(task, Mapping) or "difficulty" not in task:
            raise EnvError(
                f"The task {task!r} has no 'difficulty', but this environment is told its task by set_difficulty. "
                f"Give every task one, such as {{'difficulty': 1}}, or add a method set_task(task)."
            )
        set_difficulty(task["difficulty"])
        return {}

    def by_options(task: Any) -> dict[str, Any]:
        return {"options": task}

    if set_task is not None:
        return by_task
    return by_options if set_difficulty is None else by_difficulty


def _method(env: Any, name: str) -> Any:
    """Return a method of an environment or of any of its wrappers, the outermost first; None where none has it."""
    if hasattr(env, "has_wrapper_attr"):
        return env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else None
    return own_attribute(env, name)
