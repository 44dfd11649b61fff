"""Many matches stepped as one, without a process or a loop over them: `SkirmishEnv` for training at full speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Protocol

import numpy as np

from twostep.errors import EnvError
from twostep.protocols import Step
from twostep.worlds.skirmish.config import EnvConfig
from twostep.worlds.skirmish.control import Orders, encode
from twostep.worlds.skirmish.geometry import Array
from twostep.worlds.skirmish.heuristic import HeuristicPolicy
from twostep.worlds.skirmish.matches import Matches
from twostep.worlds.skirmish.seeds import MatchSeeds, env_seeds
from twostep.worlds.skirmish.simulation import Simulation


class Planner(Protocol):
    """Plays agents of many matches at once."""

    def plan(self, sim: Simulation) -> Orders:
        """Return orders `[M, 2, K]`; only those for the agents it plays are followed."""
        ...


class SkirmishRows:
    """`num_envs` matches as a `RowEnv`: one row per controlled agent, the agents of one match side by side.

    Args:
        config: What the matches are like; the default match without it.
        num_envs: Number of matches that run at the same time.
        seed: What the first `reset` without a seed uses.
        agent_ids: Whom the rows stand for: ids or patterns.
        opponent: A function that makes the player of the others, an object with `plan(simulation)`; None for
            `HeuristicPolicy`.

    Row for row the same as `SkirmishEnv` played match by match with a `HeuristicPolicy`. A destroyed agent's row goes on
    with `valid=False` and an observation of zeros until the match ends for all and the next begins in the same step.
    """

    def __init__(
        self,
        config: EnvConfig | None = None,
        num_envs: int = 16,
        seed: int | None = None,
        *,
        agent_ids: str | Sequence[str] = "blue_*",
        opponent: Callable[[], Planner] | None = None,
    ) -> None:
        if num_envs < 1:
            raise EnvError(f"num_envs={num_envs}, but must be 1 or more. 16 is a good start for training.")
        self.config, self.num_envs = config or EnvConfig(), num_envs
        self.possible_agents = self.config.agent_ids
        self.agent_ids = _named(self.possible_agents, agent_ids)
        self.num_agents = len(self.agent_ids)
        self.num_rows = num_envs * self.num_agents
        self._matches = Matches(self.config, num_envs)
        self.simulation = self._matches.simulation
        self.observation_space = self._matches.observation_space
        self.action_space = self._matches.action_space
        self.opponent: Planner | None = None
        self._units = np.array([self.possible_agents.index(agent) for agent in self.agent_ids], dtype=np.intp)
        if self.num_agents < len(self.possible_agents):
            self.opponent = (opponent or HeuristicPolicy)()
        elif opponent is not None:
            raise EnvError("opponent was given, but agent_ids covers all agents: it would play nobody. Leave one out.")
        self._seed = self.config.seed if seed is None else seed
        self._seeds: list[MatchSeeds] = []
        self._zeros = np.zeros(self.num_rows, dtype=np.bool_)

    def reset(self, seed: int | Sequence[int] | None = None) -> Step:
        """Begin all matches anew; a seed, or one per match, decides all that follows, none goes on drawing."""
        if seed is not None or not self._seeds:
            seeds = env_seeds(self._seed if seed is None else seed, self.num_envs)
            self._seeds = [MatchSeeds(one) for one in seeds]
        self._matches.begin((match, seeds.draw()) for match, seeds in enumerate(self._seeds))
        return Step(self._observe(), np.ones(self.num_rows, dtype=np.bool_))

    def step(self, actions: Any) -> Step:
        """Take one action per row; matches that are over begin anew at once."""
        if not self._seeds:
            raise EnvError("step was called before reset: no match has begun. Call reset first.")
        matches, sim = self._matches, self.simulation
        over = matches.step(self._everybody(matches.check_actions(actions, (self.num_rows,))))
        acted = self._rows(sim.acted)
        ended = sim.acted & ~sim.alive
        ended[over] = sim.acted[over]
        terminated = self._rows(ended)
        rewards = self._rows(matches.ledger.rewards)
        step = Step(self._observe(), self._zeros, rewards, terminated, self._zeros, valid=acted)
        for row in np.flatnonzero(terminated).tolist():
            match, at = divmod(row, self.num_agents)
            step.infos[row] = matches.info(match, *divmod(int(self._units[at]), sim.team_size))
        if over:
            self._restart(over, step)
        return step

    def _restart(self, over: list[int], step: Step) -> None:
        """Keep what the last actions of these matches led to, then begin their next ones."""
        restarted = np.zeros((self.num_envs, self.num_agents), dtype=np.bool_)
        restarted[over] = True
        step.episode_starts = restarted.ravel()
        step.final_rows = np.flatnonzero(step.episode_starts & step.valid)
        step.final_obs = step.obs[step.final_rows]
        self._matches.begin((match, self._seeds[match].draw()) for match in over)
        step.obs = self._observe()

    def _everybody(self, actions: Array) -> Array:
        """Return the actions of all agents, `[M, 2, K, n]`."""
        shape = self.simulation.shape
        if self.opponent is None:
            everybody = np.empty((self.num_envs, len(self.possible_agents), actions.shape[-1]), dtype=actions.dtype)
        else:
            everybody = encode(self.opponent.plan(self.simulation), self.config.control)
            everybody = everybody.reshape(self.num_envs, len(self.possible_agents), -1)
        everybody[:, self._units] = actions.reshape(self.num_envs, self.num_agents, -1)
        return everybody.reshape(*shape, -1)

    def _observe(self) -> Array:
        return self._rows(self._matches.observer.observe(self.simulation))

    def _rows(self, array: Array) -> Array:
        """Bring `[M, 2, K, ...]` to the controlled rows, `[B, ...]`."""
        rest = array.shape[3:]
        return array.reshape(self.num_envs, -1, *rest)[:, self._units].reshape(self.num_rows, *rest)

    def close(self) -> None:
        """Free nothing: there is nothing to free."""


def _named(possible: Sequence[str], wishes: str | Sequence[str]) -> tuple[str, ...]:
    """Return the agents that ids or patterns name, each once, in the order of the wishes."""
    chosen: dict[str, None] = {}
    for wish in (wishes,) if isinstance(wishes, str) else wishes:
        matching = [agent for agent in possible if fnmatchcase(agent, wish)]
        if not matching:
            raise EnvError(f"agent_ids names {wish!r}, which is no agent. There are {', '.join(possible)}.")
        chosen |= dict.fromkeys(matching)
    if not chosen:
        raise EnvError("agent_ids is empty, so there is nobody to act for. 'blue_*' is the default.")
    return tuple(chosen)
