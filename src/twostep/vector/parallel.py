"""Environments with many agents as rows: PettingZoo's parallel interface, stepped in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableSequence, Sequence
from typing import Any

import numpy as np

from twostep.errors import EnvError
from twostep.protocols import Step
from twostep.seeds import Seeds, resets
from twostep.tree import Tree, tree_map
from twostep.vector.agents import (
    AgentId,
    OpponentMaker,
    chosen_agents,
    made_opponents,
    own_attribute,
    shared_spaces,
)
from twostep.vector.checker import check_env
from twostep.vector.games import Game, GameRows
from twostep.vector.masks import MASK_KEY, MaskMemory
from twostep.vector.places import env_name
from twostep.vector.snapshots import require_begun, states_of
from twostep.vector.sources import close_all, is_single_env, require_distinct
from twostep.vector.spaces import action_splitter, require_supported_space
from twostep.vector.tasks import NextTasks


class AgentsVectorEnv:
    """Environments of many agents as one `RowEnv`: a row per controlled agent, those of one environment side by side.

    Args:
        envs: Environments, or functions that make them; each must be an object of its own.
        seed: What the first `reset` without a seed uses; None draws one from the operating system.
        agent_ids: Whom the rows stand for: ids or patterns such as `"blue_*"`. None asks the environment's
            `default_agent_ids` and, where it has none, takes all agents.
        opponent: A function that makes who plays the others, called once per environment; None asks the environment's
            `make_opponent`.
        check: Whether the first environment goes through `check_env`: a few steps in three episodes, once.

    While an agent is not there, its row is `valid=False` and its observation zeros: before it appears, and after it
    ended although the others go on. A row's episode ends with its agent; the environment starts anew, in the same step,
    when no controlled agent is left. What `reset` and `step` return is this object's memory, overwritten by the next
    call; only `final_obs` is fresh.
    """

    def __init__(
        self,
        envs: Sequence[Any],
        seed: int | None = None,
        *,
        agent_ids: AgentId | Sequence[AgentId] | None = None,
        opponent: OpponentMaker | None = None,
        check: bool = True,
    ) -> None:
        self.envs: list[Any] = []
        try:
            self.envs.extend(source if is_single_env(source) else source() for source in envs)
            require_distinct(self.envs)
            first = self.envs[0]
            if check:
                check_env(first)
            self.possible_agents = tuple(first.possible_agents)
            wished = own_attribute(first, "default_agent_ids") if agent_ids is None else agent_ids
            self.agent_ids = chosen_agents(self.possible_agents, wished)
            self.observation_space, self.action_space = shared_spaces(first, self.agent_ids)
            _require_equal(self.envs, self.agent_ids)
            others = [agent for agent in self.possible_agents if agent not in self.agent_ids]
            opponents = made_opponents(self.envs, others, opponent)
        except Exception:
            self.envs = [env for env, source in zip(self.envs, envs, strict=False) if env is not source]
            self.close()
            raise
        self.num_envs, self.rows_per_env = len(self.envs), len(self.agent_ids)
        self.num_rows = self.num_envs * self.rows_per_env
        self.spec_name = type(getattr(first, "unwrapped", first)).__name__
        self._seed = seed
        self._has_begun = False
        self.working_on: MutableSequence[int] = [0]
        """Which environment is being stepped, for whoever wants to know why it takes so long."""
        self._rows = GameRows(self.observation_space, self.num_rows)
        self._split_actions = action_splitter(self.action_space)
        self._tasks = NextTasks(self.envs)
        self._games = [
            Game(number, env, opponents[number], self.agent_ids, self._rows, self._tasks)
            for number, env in enumerate(self.envs)
        ]
        self._row_masks: Callable[[], list[Any]] | None = None
        names = [f"{env_name(number)}, {agent}" for number in range(self.num_envs) for agent in self.agent_ids]
        self._masks = MaskMemory(self.action_space, self.num_rows, names)

    def reset(self, seed: Seeds | None = None, indices: Sequence[int] | None = None) -> Step:
        """Start every environment anew, or those of `indices`; a seed, or one for each, decides all that follows."""
        first_time = not self._has_begun
        if first_time and indices is not None:
            raise EnvError("reset was called with indices before all environments have begun. Call reset() first.")
        if seed is None and first_time:
            seed = self._seed if self._seed is not None else int(np.random.SeedSequence().generate_state(1)[0])
        self._rows.clear()
        for number, own_seed in resets(seed, self.num_envs, indices):
            self.working_on[0] = number
            self._games[number].begin(own_seed)
        if first_time:
            self._row_masks = self._mask_source()
            self._has_begun = True
        masks = self._action_masks("at reset")
        return Step(self._rows.obs, self._rows.episode_starts, action_masks=masks, present=self._present())

    def step(self, actions: Tree) -> Step:
        """Take one action per row; the actions of rows that are not valid go nowhere."""
        if not self._has_begun:
            raise EnvError("step was called before reset: no episode has begun. Call reset first.")
        row_actions = self._split_actions(actions)
        if len(row_actions) != self.num_rows:
            raise EnvError(
                f"{len(row_actions)} actions came for {self.num_rows} rows ({self.num_envs} environments of "
                f"{self.rows_per_env} agents): there must be one per row. Return actions of shape "
                f"[{self.num_rows}, ...]."
            )
        rows = self._rows
        rows.clear()
        for game in self._games:
            self.working_on[0] = game.number
            game.step(row_actions)
        step = Step(rows.obs, rows.episode_starts, rows.rewards, rows.terminated, rows.truncated, rows.valid)
        ended = np.flatnonzero(rows.terminated | rows.truncated)
        if len(ended):
            step.final_rows = ended
            step.final_obs = tree_map(lambda leaf: leaf[ended], rows.obs)
            step.infos = rows.last_infos
            for row in ended.tolist():
                rows.blank(row)
        for game in self._games:
            if game.is_over():
                self.working_on[0] = game.number
                game.begin(None)
        step.action_masks = self._action_masks("after a step")
        step.present = self._present()
        return step

    def _present(self) -> np.ndarray[Any, Any]:
        """Say in which rows there is an agent."""
        present = np.zeros(self.num_rows, dtype=np.bool_)
        present[[row for game in self._games for row in game.live.values()]] = True
        return present

    def assign(self, tasks: Mapping[int, Any]) -> None:
        """Give environments, by number, what they play from their next episodes on (`NextTasks`)."""
        self._tasks.assign(tasks)

    def _mask_source(self) -> Callable[[], list[Any]] | None:
        """Find where the environments keep their masks: the infos of the first reset, or the observations."""
        if any(mask is not None for game in self._games for mask in game.masks.values()):
            return lambda: [mask for game in self._games for mask in game.row_masks()]
        obs = self._rows.obs
        if isinstance(obs, dict) and MASK_KEY in obs:
            return lambda: [
                obs[MASK_KEY][row] if row in game.live.values() else None
                for game in self._games
                for row in game.rows.values()
            ]
        return None

    def _action_masks(self, when: str) -> Tree:
        return None if self._row_masks is None else self._masks.write(self._row_masks(), when)

    def call(self, name: str, *args: Any, indices: Sequence[int] | None = None) -> list[Any]:
        """Call the method `name` of every environment, or of those of `indices`, or read the attribute `name`."""
        envs = self.envs if indices is None else [self.envs[index] for index in indices]
        found = [_attribute(env, name) for env in envs]
        return [value(*args) if callable(value) else value for value in found]

    def state_dict(self) -> dict[str, Any]:
        """Return where every environment stands in its episode; `twostep.vector.snapshots` says which ones can tell."""
        require_begun(self._has_begun)
        return {"envs": [game.state_dict() for game in self._games]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken, here or in worker processes."""
        kept = states_of(state, self.num_envs, "game")
        self.reset([one["seed"] or 0 for one in kept])
        for game, one in zip(self._games, kept, strict=True):
            game.load_state_dict(one)

    def close(self) -> None:
        """Close every environment, even where one of them raises."""
        envs, self.envs = self.envs, []
        close_all(envs)


def _attribute(env: Any, name: str) -> Any:
    return getattr(env if hasattr(env, name) else getattr(env, "unwrapped", env), name)


def _require_equal(envs: list[Any], agent_ids: Sequence[AgentId]) -> None:
    first = envs[0]
    require_supported_space(first.observation_space(agent_ids[0]), "observation_space")
    require_supported_space(first.action_space(agent_ids[0]), "action_space")
    for number, env in enumerate(envs):
        if list(env.possible_agents) != list(first.possible_agents):
            raise EnvError(
                f"{env_name(number)} has the agents {list(env.possible_agents)}, but {env_name(0)} has "
                f"{list(first.possible_agents)}: all must have the same. Make them with the same arguments."
            )
        for name, expected in (
            ("observation_space", first.observation_space(agent_ids[0])),
            ("action_space", first.action_space(agent_ids[0])),
        ):
            for agent in agent_ids:
                space = getattr(env, name)(agent)
                if space != expected:
                    raise EnvError(
                        f"{env_name(number)} has {name}({agent!r}) {space}, but {env_name(0)} has "
                        f"{expected}: all rows must have the same. Make them with the same arguments."
                    )
