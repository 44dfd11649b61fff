"""Many matches stepped as one, without a process or a loop over them: `SkirmishEnv` for training at full speed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Protocol

import numpy as np

from twostep.errors import EnvError, StateError
from twostep.protocols import Step
from twostep.seeds import Seeds, resets
from twostep.worlds.skirmish.config import EnvConfig
from twostep.worlds.skirmish.control import Orders, encode
from twostep.worlds.skirmish.geometry import Array
from twostep.worlds.skirmish.heuristic import HeuristicPolicy
from twostep.worlds.skirmish.matches import Matches
from twostep.worlds.skirmish.seeds import MatchSeeds
from twostep.worlds.skirmish.simulation import Simulation

PER_MATCH = ("get_last_outcome", "get_replay", "get_team_alive", "set_heuristic")
"""Methods of `SkirmishRows` that are asked match by match; `scripted_actions` answers for all at once."""


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

    Row for row the same as `SkirmishEnv` played match by match with a `HeuristicPolicy`. A destroyed agent's row goes
    on with `valid=False` and an observation of zeros until the match ends for all and the next begins in the same step.
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
        self.num_agents = self.rows_per_env = len(self.agent_ids)
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
        self._replays: dict[int, dict[str, Any]] = {}
        self._zeros = np.zeros(self.num_rows, dtype=np.bool_)

    def reset(self, seed: Seeds | None = None, indices: Sequence[int] | None = None) -> Step:
        """Begin all matches anew, or those of `indices`; a seed, or one per match, decides all that follows."""
        if not self._seeds:
            if indices is not None:
                raise EnvError("reset was called with indices before all matches have begun. Call reset() first.")
            if seed is None:
                seed = self._seed if self._seed is not None else int(np.random.SeedSequence().generate_state(1)[0])
        chosen = resets(seed, self.num_envs, indices)
        self._seeds = self._seeds or [MatchSeeds(0)] * self.num_envs
        for match, own_seed in chosen:
            self._replays.pop(match, None)
            if own_seed is not None:
                self._seeds[match] = MatchSeeds(own_seed)
        return self._begin([match for match, _ in chosen])

    def _begin(self, chosen: Sequence[int]) -> Step:
        """Begin the next of each of these matches."""
        begun = np.zeros((self.num_envs, self.num_agents), dtype=np.bool_)
        begun[chosen] = True
        self._matches.begin((match, self._seeds[match].draw()) for match in chosen)
        return Step(self._observe(), begun.ravel(), present=self._rows(self.simulation.alive))

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
        step.present = self._rows(sim.alive)
        rows = np.flatnonzero(terminated)
        if len(rows):
            step.final_rows, step.final_obs = rows, step.obs[rows]
        for row in rows.tolist():
            match, at = divmod(row, self.num_agents)
            step.infos[row] = matches.info(match, *divmod(int(self._units[at]), sim.team_size))
        # Nothing is left to learn from a match without a living controlled agent, though others may go on in it.
        left = step.present.reshape(self.num_envs, -1).any(1)
        over = sorted({*over, *np.flatnonzero(~left).tolist()})
        if over:
            self._replays |= {match: matches.replay(match) for match in over if self.config.record_replay}
            begun = self._begin(over)
            step.obs, step.episode_starts, step.present = begun.obs, begun.episode_starts, begun.present
        return step

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

    def scripted_actions(self) -> Array:
        """Return what `HeuristicPolicy` would do next with every agent of every match, `[M, 2 K, n]`."""
        actions = encode(HeuristicPolicy().plan(self.simulation), self.config.control)
        return actions.reshape(self.num_envs, len(self.possible_agents), -1)

    def _observe(self) -> Array:
        return self._rows(self._matches.observer.observe(self.simulation))

    def _rows(self, array: Array) -> Array:
        """Bring `[M, 2, K, ...]` to the controlled rows, `[B, ...]`."""
        rest = array.shape[3:]
        return array.reshape(self.num_envs, -1, *rest)[:, self._units].reshape(self.num_rows, *rest)

    def call(self, name: str, *args: Any, indices: Sequence[int] | None = None) -> list[Any]:
        """Call a method of each match, or of those of `indices`, as `SkirmishEnv` has it; or read an attribute."""
        chosen = [match for match, _ in resets(None, self.num_envs, indices)]
        value = getattr(self, name)
        if name in PER_MATCH:
            return [value(match, *args) for match in chosen]
        answer: Any = value(*args) if callable(value) else value
        return [answer[match] if name == "scripted_actions" else answer for match in chosen]

    def get_last_outcome(self, match: int) -> dict[str, Any] | None:
        """Return how the last match went that ended there; None before."""
        return self._matches.outcomes[match]

    def get_team_alive(self, match: int) -> dict[str, int]:
        """Return how many mechs of each team are left."""
        return self._matches.team_alive(match)

    def get_replay(self, match: int) -> dict[str, Any]:
        """Return the last match that ended there since the last `reset`, or else the one that runs."""
        return self._replays.get(match) or self._matches.replay(match)

    def set_heuristic(self, match: int, changes: Mapping[str, Any]) -> None:
        """Let the scripted opponent play otherwise from now on: `{"fire_share": 0.2}`, see `HeuristicConfig`."""
        self._matches.set_heuristic(match, changes)

    def state_dict(self) -> dict[str, Any]:
        """Return where every match stands."""
        if not self._seeds:
            raise StateError("No match has begun, so there is no state to keep. Call reset first.")
        seeds = [seeds.state_dict() for seeds in self._seeds]
        return {"envs": [{"match": self._matches.state_of(at), "seeds": one} for at, one in enumerate(seeds)]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken, here or in worker processes."""
        kept = state["envs"]
        if len(kept) != self.num_envs or any("match" not in one for one in kept):
            raise StateError(f"The state is not of {self.num_envs} matches stepped as one. Make them as they were.")
        self._seeds = [MatchSeeds(0) for _ in kept]
        for seeds, one in zip(self._seeds, kept, strict=True):
            seeds.load_state_dict(one["seeds"])
        self._matches.go_on([one["match"] for one in kept])

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
