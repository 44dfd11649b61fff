"""One look at an environment of many agents: the usual mistakes with PettingZoo's parallel interface."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from gymnasium import spaces

from twostep.errors import EnvError
from twostep.tree import Tree
from twostep.vector.checks import (
    NUM_CHECKED_STEPS,
    allowed_action,
    called,
    called_reset,
    check_flag,
    check_reward,
    check_spaces,
    described,
)
from twostep.vector.masks import MASK_KEY, mask_memory, write_mask
from twostep.vector.observations import check_observation

Masks = dict[Any, Tree]
"""The mask of each agent that is there, None where it has none."""
_STEP_NAMES = ("observations", "rewards", "terminations", "truncations", "infos")


def check_parallel_env(env: Any, name: str) -> None:
    """Reset an environment, let its agents take a few random steps and refuse what breaks PettingZoo's contract."""
    possible = _checked_agents(env, name)
    action_spaces = {agent: copy.deepcopy(env.action_space(agent)) for agent in possible}
    for space in action_spaces.values():
        space.seed(0)
    masks = _checked_reset(env, possible, f"{name}.reset(seed=0)", {"seed": 0})
    for number in range(1, NUM_CHECKED_STEPS + 1):
        actions = {agent: allowed_action(action_spaces[agent], mask) for agent, mask in masks.items()}
        masks = _checked_step(env, possible, f"{name}.step({actions!r}), step {number} after a reset", actions)
        if not masks:
            masks = _checked_reset(env, possible, f"{name}.reset() after an episode ended", {})
    _checked_reset(env, possible, f"{name}.reset() in the middle of an episode", {})
    left: Any = env.possible_agents
    found = list(left) if isinstance(left, Sequence) else described(left)
    if found != possible:
        raise EnvError(
            f"{name}.possible_agents was {possible} and became {found} while agents acted, but must "
            f"stay as it is. Begin episodes with self.agents = list(self.possible_agents), a copy."
        )


def _checked_agents(env: Any, name: str) -> list[Any]:
    for method in ("reset", "step"):
        if not callable(getattr(env, method, None)):
            raise EnvError(f"{name} has no method {method}(). An environment needs it; add it.")
    possible: Any = getattr(env, "possible_agents", None)
    if not isinstance(possible, Sequence) or isinstance(possible, str) or not possible:
        raise EnvError(
            f"{name}.possible_agents is {described(possible)}, but must list all agents that there can ever be, since "
            f"each has a row. Set it in __init__."
        )
    _check_distinct(possible, f"{name}.possible_agents")
    for attribute in ("observation_space", "action_space"):
        method = getattr(env, attribute, None)
        if not callable(method) or isinstance(method, spaces.Space):
            raise EnvError(
                f"{name}.{attribute} is {described(method)}, but must be a method that returns the space of one agent. "
                f"Write def {attribute}(self, agent): return ..."
            )
    for agent in possible:
        parts = [f"{name}.{attribute}({agent!r})" for attribute in ("observation_space", "action_space")]
        check_spaces(called(parts[0], env.observation_space, agent), called(parts[1], env.action_space, agent), *parts)
    return list(possible)


def _check_distinct(agents: Sequence[Any], place: str) -> None:
    twice = [agent for at, agent in enumerate(agents) if agent in agents[:at]]
    if twice:
        raise EnvError(f"{place} names {twice[0]!r} twice, but each agent has one row. Give each a name of its own.")


def _checked_reset(env: Any, possible: Sequence[Any], place: str, seed: dict[str, int]) -> Masks:
    result = called_reset(place, env.reset, seed)
    if not _are_dicts(result, 2):
        raise EnvError(
            f"{place} returned {_described_parts(result)}, but must return two dicts by agent: (observations, infos). "
            f"End it with return observations, {{agent: {{}} for agent in self.agents}}."
        )
    obs, infos = result
    agents = _present(env, possible, place)
    if not agents:
        raise EnvError(f"{place} left env.agents empty, so nobody is there to act. Fill it in reset.")
    return {agent: _checked_mask(env, agent, obs, infos, place) for agent in agents}


def _checked_step(env: Any, possible: Sequence[Any], place: str, actions: Mapping[Any, Any]) -> Masks:
    result = called(place, env.step, actions)
    if not _are_dicts(result, 5):
        old = " Four dicts are the old API: split dones into terminations and truncations." * _are_dicts(result, 4)
        raise EnvError(
            f"{place} returned {_described_parts(result)}, but must return five dicts by agent: "
            f"({', '.join(_STEP_NAMES)}).{old or ' Return all five.'}"
        )
    obs, rewards, terminations, truncations, infos = result
    agents = _present(env, possible, place)
    for agent in actions:
        for name, values in zip(_STEP_NAMES[1:4], result[1:4], strict=True):
            if agent not in values:
                raise EnvError(
                    f"{place}: {name} has no entry for {agent!r}, which acted. Return one for every agent that was in "
                    f"env.agents before the step."
                )
        check_reward(rewards[agent], f"{place}, {agent}")
        ends = {"terminated": terminations[agent], "truncated": truncations[agent]}
        for name, flag in ends.items():
            check_flag(flag, name, f"{place}, {agent}")
        if not any(ends.values()) and agent not in agents:
            raise EnvError(
                f"{place}: {agent!r} left env.agents, but was neither terminated nor truncated. "
                f"Set one of the two in the step in which an agent leaves."
            )
        if not ends["terminated"] or agent in obs:
            _check_seen(env, agent, obs, place)
    return {agent: _checked_mask(env, agent, obs, infos, place) for agent in agents}


def _present(env: Any, possible: Sequence[Any], place: str) -> list[Any]:
    """Return the agents that are there now."""
    agents: Any = getattr(env, "agents", None)
    if not isinstance(agents, Sequence):
        raise EnvError(
            f"{place} left env.agents as {described(agents)}, but it must list who is there. Set it in reset."
        )
    _check_distinct(agents, f"{place}: env.agents")
    for agent in agents:
        if agent not in possible:
            raise EnvError(
                f"{place}: env.agents holds {agent!r}, which is not in possible_agents "
                f"({', '.join(map(str, possible))}). List there all agents that there can ever be."
            )
    return list(agents)


def _check_seen(env: Any, agent: Any, obs: Mapping[Any, Any], place: str) -> None:
    if agent not in obs:
        raise EnvError(f"{place}: {agent!r} has no observation. Return one for every agent that is there or acted.")
    check_observation(env.observation_space(agent), obs[agent], f"{place}, {agent}")


def _checked_mask(env: Any, agent: Any, obs: Mapping[Any, Any], infos: Mapping[Any, Any], place: str) -> Tree:
    """Check what an agent that is there is told, and return the mask of its next action, or None (`mask_memory`)."""
    _check_seen(env, agent, obs, place)
    place = f"{place}, {agent}"
    info = infos.get(agent, {})
    if not isinstance(info, dict):
        raise EnvError(f"{place}: info is {described(info)}, but must be a dict. Return {{}} when there is nothing.")
    mask = info.get(MASK_KEY)
    if mask is None and isinstance(obs[agent], Mapping):
        mask = obs[agent].get(MASK_KEY)
    if mask is None:
        return None
    memory = mask_memory(env.action_space(agent), 1)
    write_mask(env.action_space(agent), memory, 0, mask, place)
    return memory


def _are_dicts(result: Any, number: int) -> bool:
    return isinstance(result, tuple) and len(result) == number and all(isinstance(part, Mapping) for part in result)


def _described_parts(result: Any) -> str:
    if isinstance(result, tuple):
        return f"({', '.join(type(part).__name__ for part in result)})"
    return described(result)
