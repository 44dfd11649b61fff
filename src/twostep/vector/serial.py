"""Environments stepped one after the other in this process."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from twostep.errors import EnvError
from twostep.protocols import Step
from twostep.seeds import Seeds, resets
from twostep.tree import Tree, tree_map
from twostep.vector.checker import check_env
from twostep.vector.checks import described
from twostep.vector.masks import mask_reader
from twostep.vector.places import env_name, raise_at, raised_by_us
from twostep.vector.snapshots import put, require_begun, states_of, taken
from twostep.vector.sources import close_all, is_single_env, require_distinct
from twostep.vector.spaces import (
    action_splitter,
    observation_memory,
    parts_of,
    require_supported_space,
    row_slots,
    shown,
)
from twostep.vector.tasks import NextTasks

_CHECKED_EVERY = 64
"""Steps of the vector between two looks at what every environment returns; ends of episodes are looked at always."""


class SerialVectorEnv:
    """Single environments as one `RowEnv`: ended rows start anew in the same step.

    Args:
        envs: Environments, or functions that make them; each must be an object of its own.
        seed: What the first `reset` without a seed uses; None draws one from the operating system.
        check: Whether the first environment goes through `check_env`: a few steps in three episodes, once.

    What `reset` and `step` return is this object's memory, overwritten by the next call; only `final_obs` is fresh.
    """

    rows_per_env = 1
    agent_ids: tuple[()] = ()
    possible_agents: tuple[()] = ()

    def __init__(self, envs: Sequence[Any], seed: int | None = None, *, check: bool = True) -> None:
        self.envs: list[Any] = []
        try:
            self.envs.extend(source if is_single_env(source) else source() for source in envs)
            require_distinct(self.envs)
            first = self.envs[0]
            if check:
                check_env(first)
            _require_equal_spaces(self.envs)
        except Exception:
            self.envs = [env for env, source in zip(self.envs, envs, strict=False) if env is not source]
            self.close()
            raise
        self.num_envs = self.num_rows = len(self.envs)
        self.observation_space = first.observation_space
        self.action_space = first.action_space
        self._seed = seed
        self.spec_name = type(getattr(first, "unwrapped", first)).__name__
        self._seeds: list[int | None] = []
        self.working_on: MutableSequence[int] = [0]
        """Which environment is being stepped, for whoever wants to know why it takes so long."""
        self._allocate()
        self._split_actions = action_splitter(self.action_space)
        self._bind()

    def _allocate(self) -> None:
        rows = self.num_rows
        self._obs: Tree = observation_memory(self.observation_space, rows)
        self._slots = row_slots(self._obs, rows)
        self._rewards = np.zeros(rows, dtype=np.float32)
        self._terminated = np.zeros(rows, dtype=np.bool_)
        self._truncated = np.zeros(rows, dtype=np.bool_)
        self._episode_starts = np.zeros(rows, dtype=np.bool_)
        self._flags_set = True
        self._infos: list[dict[str, Any]] = [{} for _ in range(rows)]
        self._read_masks: Callable[[str], Tree] | None = None
        self._masks_sought = False

    def _bind(self) -> None:
        """Look up once what the loop in `step` calls, and take over the time limits."""
        steps, self._limits = zip(*(bare_step(env) for env in self.envs), strict=True)
        rows = range(self.num_rows)
        self._lanes = list(zip(rows, steps, self._slots, strict=True))
        checked = [partial(_checked_step, step, self.observation_space) for step in steps]
        self._checked_lanes = list(zip(rows, checked, self._slots, strict=True))
        self._resets: list[Callable[..., Any]] = [env.reset for env in self.envs]
        self._tasks = NextTasks(self.envs)
        self._num_steps = 0
        self._episodes = [0] * self.num_rows
        self._episode_began = [0] * self.num_rows
        self._deadlines = [math.inf] * self.num_rows
        self._next_deadline = math.inf

    def reset(self, seed: Seeds | None = None, indices: Sequence[int] | None = None) -> Step:
        """Start every row anew, or those of `indices`; a seed, or one for each, decides all that follows."""
        if not self._seeds:
            if indices is not None:
                raise EnvError("reset was called with indices before all environments have begun. Call reset() first.")
            if seed is None:
                seed = self._seed if self._seed is not None else int(np.random.SeedSequence().generate_state(1)[0])
            self._seeds = [None] * self.num_rows
        chosen = resets(seed, self.num_envs, indices)
        self._clear_flags()
        self._flags_set = True
        for row, own_seed in chosen:
            self._seeds[row] = self._seeds[row] if own_seed is None else own_seed
            self._begin_episode(row, {} if own_seed is None else {"seed": own_seed})
            self._episode_starts[row] = True
        self._next_deadline = min(self._deadlines)
        if not self._masks_sought:
            self._read_masks = mask_reader(self.envs, self.action_space, self._obs, self._infos)
            self._masks_sought = True
        masks = None if self._read_masks is None else self._read_masks("at reset")
        return Step(self._obs, self._episode_starts, action_masks=masks)

    def step(self, actions: Tree) -> Step:
        """Take one action per row; rows that end start anew at once and are listed in `final_rows`."""
        if not self._seeds:
            raise EnvError("step was called before reset: no episode has begun. Call reset first.")
        row_actions = self._split_actions(actions)
        if len(row_actions) != self.num_rows:
            raise EnvError(
                f"{len(row_actions)} actions came for {self.num_rows} environments: there must be one per row. "
                f"Return actions of shape [{self.num_rows}, ...]."
            )
        self._clear_flags()
        self._num_steps += 1
        rewards, infos, ended = self._rewards, self._infos, []
        row, action, working_on, np_false = 0, None, self.working_on, np.False_
        lanes = self._lanes if self._num_steps % _CHECKED_EVERY != 1 else self._checked_lanes
        try:
            for (row, step, slot), action in zip(lanes, row_actions, strict=True):
                working_on[0] = row
                obs, rewards[row], terminated, truncated, infos[row] = step(action)
                slot[...] = obs
                if (terminated is False or terminated is np_false) and (truncated is False or truncated is np_false):
                    continue
                _require_form(self.observation_space, obs, terminated, truncated, infos[row])
                self._terminated[row] = terminated
                self._truncated[row] = truncated
                ended.append(row)
        except Exception as error:
            self._raise_with_place(error, row, f"step({shown(action)!r})")
        if self._num_steps >= self._next_deadline:
            ended = self._cut_overdue(ended)
        result = Step(self._obs, self._episode_starts, rewards, self._terminated, self._truncated)
        if ended:
            self._restart(ended, result)
        if self._read_masks is not None:
            result.action_masks = self._read_masks(f"after step {self._num_steps}")
        return result

    def _cut_overdue(self, ended: list[int]) -> list[int]:
        """Truncate the rows whose time is up; return all rows that end in this step."""
        overdue = [row for row in range(self.num_rows) if self._deadlines[row] <= self._num_steps]
        self._truncated[overdue] = True
        self._next_deadline = min(deadline for deadline in [*self._deadlines, math.inf] if deadline > self._num_steps)
        return sorted({*ended, *overdue})

    def _restart(self, ended: list[int], step: Step) -> None:
        """Keep what the last actions led to, then begin the next episodes."""
        rows = np.array(ended, dtype=np.int64)
        step.final_rows = rows
        step.final_obs = tree_map(lambda leaf: leaf[rows], self._obs)
        self._episode_starts[rows] = True
        self._flags_set = True
        for row in ended:
            step.infos[row] = dict(self._infos[row])
            self._begin_episode(row, {})

    def assign(self, tasks: Mapping[int, Any]) -> None:
        """Give environments, by number, what they play from their next episodes on (`NextTasks`)."""
        self._tasks.assign(tasks)

    def _begin_episode(self, row: int, arguments: dict[str, Any]) -> None:
        self._episodes[row] += 1
        self._episode_began[row] = self._num_steps
        self._deadlines[row] = self._num_steps + self._limits[row]
        self._next_deadline = min(self._next_deadline, self._deadlines[row])
        self.working_on[0] = row
        try:
            arguments |= self._tasks.arguments(row)
            obs, self._infos[row] = self._resets[row](**arguments)
            _require_obs(self.observation_space, obs)
            _require_info(self._infos[row])
            self._slots[row][...] = obs
        except Exception as error:
            self._raise_with_place(error, row, f"reset({arguments or ''})")

    def _clear_flags(self) -> None:
        if self._flags_set:
            self._terminated.fill(False)
            self._truncated.fill(False)
            self._episode_starts.fill(False)
            self._flags_set = False

    def _raise_with_place(self, error: Exception, row: int, call: str) -> NoReturn:
        """Raise an environment's error as it is, with a note that says where in the run it happened."""
        seed = self._seeds[row] if self._seeds else None
        place = (
            f"{env_name(row)} (seed {seed}), episode {self._episodes[row]}, "
            f"step {self._num_steps - self._episode_began[row]} of it, in {call}"
        )
        if isinstance(error, _FormError):
            raise EnvError(f"{place}: {error}") from None
        if raised_by_us(error, (__file__,)):
            raise EnvError(
                f"{place}: what came back cannot be stored: {error}. Observations must fit {self.observation_space}, "
                f"rewards must be numbers, and step returns (obs, reward, terminated, truncated, info)."
            ) from error
        raise_at(place, error)

    def whereabouts(self, env: int) -> tuple[int | None, int]:
        """Return the seed with which an environment's episodes began, and the number of the present one."""
        return self._seeds[env], self._episodes[env]

    def call(self, name: str, *args: Any, indices: Sequence[int] | None = None) -> list[Any]:
        """Call the method `name` of every environment, or of those of `indices`, or read the attribute `name`.

        It may be hidden behind wrappers.
        """
        envs = self.envs if indices is None else [self.envs[index] for index in indices]
        found = [_attribute(env, name) for env in envs]
        return [value(*args) if callable(value) else value for value in found]

    def state_dict(self) -> dict[str, Any]:
        """Return where every environment stands in its episode; `twostep.vector.snapshots` says which ones can tell."""
        require_begun(bool(self._seeds))
        return {"envs": [self._state_of(row, env) for row, env in enumerate(self.envs)]}

    def _state_of(self, row: int, env: Any) -> dict[str, Any]:
        steps = self._num_steps - self._episode_began[row]
        return {"seed": self._seeds[row], "episode": self._episodes[row], "steps": steps, "single": taken(env)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken, here or in worker processes."""
        kept = states_of(state, self.num_envs, "single")
        self.reset([one["seed"] or 0 for one in kept])
        for row, (env, one) in enumerate(zip(self.envs, kept, strict=True)):
            put(env, one["single"])
            self._seeds[row], self._episodes[row] = one["seed"], one["episode"]
            self._episode_began[row] = self._num_steps - one["steps"]
            self._deadlines[row] = self._episode_began[row] + self._limits[row]
        self._next_deadline = min(self._deadlines)

    def close(self) -> None:
        """Close every environment, even where one of them raises."""
        envs, self.envs = self.envs, []
        close_all(envs)


class _FormError(EnvError):
    """What an environment returned has a form that cannot be meant."""


def _checked_step(step: Callable[[Any], Any], space: spaces.Space[Any], action: Any) -> Any:
    """Take a step and look at what comes back; what is no tuple of five is complained about where it is taken apart."""
    result = step(action)
    if isinstance(result, tuple) and len(result) == 5:
        obs, _, terminated, truncated, info = result
        _require_form(space, obs, terminated, truncated, info)
    return result


def _require_form(space: spaces.Space[Any], obs: Any, terminated: Any, truncated: Any, info: Any) -> None:
    _require_obs(space, obs)
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, (bool, np.bool_)):
            raise _FormError(f"{name} is {described(flag)}, but must be a bool. Return bool({name}).")
    _require_info(info)


def _require_info(info: Any) -> None:
    if not isinstance(info, dict):
        raise _FormError(f"info is {described(info)}, but must be a dict. Return {{}} when there is nothing.")


def _require_obs(space: spaces.Space[Any], obs: Any, name: str = "obs") -> None:
    """Refuse an observation that would be stored, but spread over more numbers than it has."""
    parts = parts_of(space)
    for key, part in parts:
        _require_obs(part, obs[key], f"{name}[{key!r}]")
    if not parts and np.shape(obs) != space.shape:
        raise _FormError(
            f"{name} is {described(obs)}, but {space} wants the shape {list(space.shape or ())}. Return that."
        )


def _require_equal_spaces(envs: list[Any]) -> None:
    require_supported_space(envs[0].observation_space, "observation_space")
    require_supported_space(envs[0].action_space, "action_space")
    for row, env in enumerate(envs):
        for name in ("observation_space", "action_space"):
            space, expected = getattr(env, name), getattr(envs[0], name)
            if space != expected:
                raise EnvError(
                    f"{env_name(row)} has {name} {space}, but {env_name(0)} has {expected}: all must have the same. "
                    f"Make them with the same arguments, or pad them to one space by a wrapper."
                )


def _attribute(env: Any, name: str) -> Any:
    if hasattr(env, "get_wrapper_attr"):
        return env.get_wrapper_attr(name)
    return getattr(env, name)


def bare_step(env: Any) -> tuple[Callable[[Any], Any], float]:
    """Return the step below Gymnasium's outermost order check and time limit, and that limit (infinite without).

    `SerialVectorEnv` keeps the order of calls and counts the steps of all rows at once, which saves two Python calls
    per step; every other call still goes through all wrappers.
    """
    limit = math.inf
    if type(env) is TimeLimit:
        limit, env = env.get_wrapper_attr("_max_episode_steps"), env.env
    while type(env) in (OrderEnforcing, PassiveEnvChecker):
        env = env.env
    return env.step, limit
