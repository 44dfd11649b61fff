"""One environment of many agents and the rows it fills: who is there, who has ended, and when it starts anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from twostep.errors import EnvError
from twostep.tree import Tree, tree_map
from twostep.vector.agents import AgentId, Opponent, neutral_action
from twostep.vector.masks import MASK_KEY
from twostep.vector.places import env_name, raise_at, raised_by_us
from twostep.vector.snapshots import put, taken
from twostep.vector.spaces import observation_memory, row_slots, shown
from twostep.vector.tasks import NextTasks


class GameRows:
    """What all environments write into: one row per controlled agent."""

    def __init__(self, observation_space: Any, num_rows: int) -> None:
        self.obs: Tree = observation_memory(observation_space, num_rows)
        self.slots = row_slots(self.obs, num_rows)
        self.rewards = np.zeros(num_rows, dtype=np.float32)
        flags = (np.zeros(num_rows, dtype=np.bool_) for _ in range(4))
        self.terminated, self.truncated, self.valid, self.episode_starts = flags
        self.last_infos: dict[int, dict[str, Any]] = {}
        self._nothing: Tree = tree_map(lambda leaf: np.zeros(leaf.shape[1:], leaf.dtype), self.obs)

    def clear(self) -> None:
        """Forget the last step; observations stay."""
        self.rewards.fill(0.0)
        for flags in (self.terminated, self.truncated, self.valid, self.episode_starts):
            flags.fill(False)
        self.last_infos = {}

    def blank(self, row: int) -> None:
        """Show nothing in a row whose agent is not there."""
        self.slots[row][...] = self._nothing


class Game:
    """One environment, the player of the agents that no row stands for, and which rows are in play."""

    def __init__(
        self,
        number: int,
        env: Any,
        opponent: Opponent | None,
        agent_ids: Sequence[AgentId],
        rows: GameRows,
        tasks: NextTasks,
    ) -> None:
        self.env, self.opponent, self.number = env, opponent, number
        self._tasks = tasks
        self.rows = {agent: number * len(agent_ids) + at for at, agent in enumerate(agent_ids)}
        """The row of each controlled agent."""
        self.live: dict[AgentId, int] = {}
        """The row of each controlled agent that is there now."""
        self.masks: dict[AgentId, Any] = {}
        """What infos say of the next actions of those who are there, None where they say nothing."""
        self.seed: int | None = None
        self._memory = rows
        self._ended: set[AgentId] = set()
        self._num_agents = len(env.possible_agents)
        self._num_episodes = self._num_steps = 0
        self._anyone_came = self._anyone_there = False

    def begin(self, seed: int | None) -> None:
        """Start an episode; None goes on drawing from the seed before."""
        self.seed = self.seed if seed is None else seed
        self._num_episodes, self._num_steps = self._num_episodes + 1, 0
        arguments: dict[str, Any] = {} if seed is None else {"seed": seed}
        try:
            arguments |= self._tasks.arguments(self.number)
            obs, infos = self.env.reset(**arguments)
            self._require_agents()
            getattr(self.opponent, "reset", _nothing)(self.env)
            self._show(obs, infos)
            self.live, self._ended = {}, set()
            for agent, row in self.rows.items():
                self._memory.episode_starts[row] = True
                if agent in self.env.agents and agent in obs:
                    self.live[agent] = row
                    self._memory.slots[row][...] = obs[agent]
                else:
                    self._memory.blank(row)
            self.masks = self._masks_in(infos)
        except Exception as error:
            self._raise_with_place(error, f"reset({arguments or ''})")
        self._anyone_came = bool(self.live)

    def step(self, row_actions: Sequence[Any]) -> None:
        """Let everybody who is there act, and write down what became of the rows."""
        self._num_steps += 1
        actions: dict[AgentId, Any] = {}
        try:
            actions = {agent: self._action(agent, row_actions) for agent in self.env.agents}
            obs, rewards, terminations, truncations, infos = self.env.step(actions)
            there = set(self.env.agents)
            for agent, row in self.rows.items():
                ends = bool(terminations.get(agent, False)), bool(truncations.get(agent, False))
                if agent in self.live:
                    self._memory.rewards[row] = rewards[agent]
                    self._went_on(agent, row, obs, ends, agent in there)
                    if any(ends):
                        del self.live[agent]
                        self._memory.last_infos[row] = dict(infos.get(agent, {}))
                elif agent in there and agent in obs and not any(ends):
                    self._came(agent, row, obs[agent])
            self._ended = {agent for agent in there if terminations.get(agent) or truncations.get(agent)}
            self._anyone_there = bool(there)
            self.masks = self._masks_in(infos)
            self._show(obs, infos)
        except Exception as error:
            self._raise_with_place(error, f"step({shown(actions)!r})")

    def _show(self, obs: Mapping[AgentId, Any], infos: Mapping[AgentId, Any]) -> None:
        """Let an opponent that looks at it see what the agents that it plays are told."""
        see = getattr(self.opponent, "see", None)
        if see is not None:
            see(*({agent: told[agent] for agent in told if agent not in self.rows} for told in (obs, infos)))

    def _action(self, agent: AgentId, row_actions: Sequence[Any]) -> Any:
        if agent in self.live:
            return row_actions[self.live[agent]]
        if self.opponent is None or agent in self.rows or agent in self._ended:
            return neutral_action(self.env.action_space(agent))
        return self.opponent.act(self.env, agent)

    def _went_on(
        self, agent: AgentId, row: int, obs: Mapping[AgentId, Any], ends: tuple[bool, bool], there: bool
    ) -> None:
        memory = self._memory
        memory.valid[row] = True
        memory.terminated[row], memory.truncated[row] = ends
        if not any(ends) and not there:
            raise EnvError(
                f"{agent} is no longer in env.agents, but was neither terminated nor truncated: nobody knows how its "
                f"episode ended. Set one of the two in the step in which it leaves."
            )
        if agent in obs:
            memory.slots[row][...] = obs[agent]
        elif ends[0]:
            memory.blank(row)  # what terminates is worth nothing, whatever it looks like
        else:
            what = "was truncated" if ends[1] else "goes on"
            raise EnvError(
                f"{agent} {what}, but step returned no observation of it, which is needed to value where it is. "
                f"Return observations of all agents that acted."
            )

    def _masks_in(self, infos: Mapping[AgentId, Mapping[str, Any]]) -> dict[AgentId, Any]:
        return {agent: infos.get(agent, {}).get(MASK_KEY) for agent in self.live}

    def row_masks(self) -> list[Any]:
        """Return the mask of each row, None where nobody is there."""
        missing = [agent for agent, mask in self.masks.items() if mask is None]
        if missing:
            raise EnvError(
                f"{env_name(self.number)}, {missing[0]}: info has no '{MASK_KEY}' now, but infos had one after the "
                f"first reset. An environment that masks actions must do so after every reset and step."
            )
        return [self.masks.get(agent) for agent in self.rows]

    def _came(self, agent: AgentId, row: int, obs: Any) -> None:
        self.live[agent] = row
        self._anyone_came = True
        self._memory.slots[row][...] = obs
        self._memory.episode_starts[row] = True

    def is_over(self) -> bool:
        """Whether nobody is left to act for."""
        return not self._anyone_there or (self._anyone_came and not self.live)

    def state_dict(self) -> dict[str, Any]:
        """Return where the episode stands: the environment, who is there, and who plays the others."""
        return {
            "seed": self.seed,
            "episode": self._num_episodes,
            "steps": self._num_steps,
            "live": [agent in self.live for agent in self.rows],
            "ended": [at for at, agent in enumerate(self.env.possible_agents) if agent in self._ended],
            "anyone": (self._anyone_came, self._anyone_there),
            "game": taken(self.env),
            "opponent": None if self.opponent is None else taken(self.opponent),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken, after `begin`."""
        put(self.env, state["game"])
        if self.opponent is not None:
            put(self.opponent, state["opponent"])
        self.seed, self._num_episodes, self._num_steps = state["seed"], state["episode"], state["steps"]
        self._anyone_came, self._anyone_there = state["anyone"]
        self._ended = {self.env.possible_agents[at] for at in state["ended"]}
        there = dict(zip(self.rows, state["live"], strict=True))
        self.live = {agent: row for agent, row in self.rows.items() if there[agent]}
        for agent, row in self.rows.items():
            if agent not in self.live:
                self._memory.blank(row)

    def _require_agents(self) -> None:
        if len(self.env.possible_agents) != self._num_agents:
            raise EnvError(
                f"env.possible_agents had {self._num_agents} agents and now has {len(self.env.possible_agents)}, but "
                f"it must stay as it is. Begin episodes with self.agents = list(self.possible_agents), a copy."
            )
        if not self.env.agents:
            raise EnvError("env.agents is empty after a reset: nobody is there to act. Fill it in reset.")

    def _raise_with_place(self, error: Exception, call: str) -> NoReturn:
        place = (
            f"{env_name(self.number)} (seed {self.seed}), episode {self._num_episodes}, "
            f"step {self._num_steps} of it, in {call}"
        )
        if isinstance(error, EnvError):
            raise EnvError(f"{place}: {error}") from error
        if raised_by_us(error, (__file__,)):
            raise EnvError(
                f"{place}: what came back cannot be stored: {type(error).__name__}: {error}. Observations must fit "
                f"their space, rewards must be numbers for every agent that acted, and step returns "
                f"five dicts by agent: (observations, rewards, terminations, truncations, infos)."
            ) from error
        raise_at(place, error)


def _nothing(_: Any) -> None:
    """Stand in for the `reset` of opponents without memory."""
