"""The face of `VectorEnv` that speaks in lists of dicts by agent instead of rows.

    with VectorEnv(num_envs=4, env_cfg=config) as vec_env:
        obs_list, infos = vec_env.reset(seeds=[0, 1, 2, 3])
        actions_list = [{agent: policy(seen[agent]) for agent in seen} for seen in obs_list]
        obs_list, rewards, terms, truncs, infos = vec_env.step(actions_list)

Every list has one dict per environment, whose keys are agents; an environment of a single agent calls it `agent_0`. A
step answers for the agents that acted. Where all of an environment's agents have ended, its next episode has begun: the
observations are its first ones, and the last ones are in `infos[env][agent]["final_obs"]`. An agent that ends while
others go on keeps its last observation in that step and is gone from the next; one that comes later is there from its
first observation on. `reset(seeds=..., indices=...)` begins
chosen environments anew, and answers for these only. Where a worker failed and was replaced, its agents are truncated
and their infos say `"worker_failed": True`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from twostep.errors import EnvError
from twostep.protocols import Step
from twostep.tree import Tree, tree_map
from twostep.vector.agents import neutral_action

ByAgent = dict[Any, Any]
NamedReset = tuple[list[ByAgent], list[ByAgent]]
NamedStep = tuple[list[ByAgent], list[ByAgent], list[ByAgent], list[ByAgent], list[ByAgent]]
SINGLE_AGENT = "agent_0"


class Names:
    """Turns rows into dicts by agent and back, and knows which agents are there."""

    def __init__(self, num_envs: int, agent_ids: Sequence[Any], action_space: spaces.Space[Any]) -> None:
        self._agents = tuple(agent_ids) or (SINGLE_AGENT,)
        self._space = action_space
        self._idle = neutral_action(action_space)
        self._there = np.zeros((num_envs, len(self._agents)), dtype=np.bool_)

    def note(self, step: Step) -> None:
        """Take note of which agents are there after a reset or a step."""
        self._there = np.array(step.present).reshape(self._there.shape)

    def row_actions(self, actions_list: Sequence[Mapping[Any, Any]]) -> Tree:
        """Return one action per row, from one dict per environment."""
        if len(actions_list) != len(self._there):
            raise EnvError(
                f"{len(actions_list)} dicts of actions came for {len(self._there)} environments: there must be one for "
                f"each. Return [{{agent: action, ...}}, ...], in the order of the observations."
            )
        rows: list[Any] = []
        for env, given in enumerate(actions_list):
            self._require_agents(env, given)
            rows += [given.get(agent, self._idle) for agent in self._agents]
        return _stacked(self._space, rows)

    def _require_agents(self, env: int, given: Mapping[Any, Any]) -> None:
        missing = [
            agent for agent, there in zip(self._agents, self._there[env], strict=True) if there and agent not in given
        ]
        unknown = [agent for agent in given if agent not in self._agents]
        if missing or unknown:
            wrong = f"lack {missing}, who are there" if missing else f"name {unknown}, whom nobody here controls"
            raise EnvError(
                f"The actions for env {env} {wrong}. Give one action to each agent that the last observations show: "
                f"{[agent for agent, there in zip(self._agents, self._there[env], strict=True) if there]}."
            )

    def begun(self, step: Step, envs: Sequence[int]) -> NamedReset:
        """Return what a reset has led to in these environments."""
        self.note(step)
        seen = [self._seen(step, env) for env in envs]
        return seen, [{agent: {} for agent in by_agent} for by_agent in seen]

    def _seen(self, step: Step, env: int) -> ByAgent:
        first = env * len(self._agents)
        return {
            agent: tree_map(lambda leaf, row=first + at: np.array(leaf[row]), step.obs)
            for at, agent in enumerate(self._agents)
            if self._there[env, at]
        }

    def stepped(self, step: Step) -> NamedStep:
        """Return what a step has led to, for the agents that were there before it."""
        acted = self._there
        self.note(step)
        finals = {} if step.final_rows is None else {int(row): at for at, row in enumerate(step.final_rows)}
        lists: NamedStep = ([], [], [], [], [])
        for env in range(len(self._there)):
            seen = self._seen(step, env)
            rewards, terms, truncs, infos = {}, {}, {}, {}
            for at in np.flatnonzero(acted[env]).tolist():
                agent, row = self._agents[at], env * len(self._agents) + at
                rewards[agent] = float(step.rewards[row])
                terms[agent], truncs[agent] = bool(step.terminated[row]), bool(step.truncated[row])
                infos[agent] = dict(step.infos.get(row, {}))
                if row in finals:
                    last = tree_map(lambda leaf, at=finals[row]: leaf[at], step.final_obs)
                    infos[agent]["final_obs"] = last
                    seen.setdefault(agent, last)
                if step.valid is not None and truncs[agent] and not step.valid[row]:
                    infos[agent]["worker_failed"] = True
            for whole, part in zip(lists, (seen, rewards, terms, truncs, infos), strict=True):
                whole.append(part)
        return lists


def _stacked(space: spaces.Space[Any], actions: list[Any]) -> Tree:
    """Join one action per row to a tree of `[B, ...]`."""
    if isinstance(space, spaces.Dict):
        return {key: _stacked(part, [action[key] for action in actions]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_stacked(part, [action[at] for action in actions]) for at, part in enumerate(space.spaces))
    try:
        return np.stack([np.asarray(action) for action in actions])
    except ValueError as error:
        raise EnvError(f"These actions do not fit together ({error}): each must be one {space}.") from error
