"""One match as an environment of many agents, after PettingZoo's parallel interface, without needing PettingZoo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from twostep.errors import EnvError, StateError
from twostep.worlds.skirmish.config import EnvConfig
from twostep.worlds.skirmish.control import encode
from twostep.worlds.skirmish.geometry import Array
from twostep.worlds.skirmish.heuristic import HeuristicPolicy
from twostep.worlds.skirmish.matches import Matches
from twostep.worlds.skirmish.seeds import MatchSeeds

Infos = dict[str, dict[str, Any]]


class SkirmishEnv:
    """Two teams of mechs, one match at a time; the same seed gives the same match.

    An agent that is destroyed ends alone and leaves `agents`. A match ends when a team has held the zone for long
    enough, when a team is destroyed, or when time is up: all three decide it, so all three are terminations.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "skirmish_v0", "render_modes": [], "is_parallelizable": True}
    render_mode: str | None = None
    default_agent_ids = "blue_*"
    """Whom a policy controls where nothing else is said; `make_opponent` plays the others."""

    def __init__(self, config: EnvConfig | None = None) -> None:
        self.config = config or EnvConfig()
        self.possible_agents = list(self.config.agent_ids)
        self.agents: list[str] = []
        self._matches = Matches(self.config, 1)
        self.simulation = self._matches.simulation
        self._places = {agent: divmod(at, len(self.config.team)) for at, agent in enumerate(self.possible_agents)}
        matches = self._matches
        self.observation_spaces = {agent: _own(matches.observation_space) for agent in self.possible_agents}
        self.action_spaces = {agent: _own(matches.action_space) for agent in self.possible_agents}
        # x, y, cosine and sine of the heading, hit points, heat, seconds until the weapon is ready, of shutdown
        self.state_space = spaces.Box(-np.inf, np.inf, (len(self.possible_agents) * 8 + 3,), np.float32)
        self._seeds: MatchSeeds | None = None

    @property
    def unwrapped(self) -> SkirmishEnv:
        """This environment: there is nothing around it."""
        return self

    @property
    def num_agents(self) -> int:
        """How many are still alive."""
        return len(self.agents)

    @property
    def max_num_agents(self) -> int:
        """How many begin a match."""
        return len(self.possible_agents)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Return the space of an agent's observations; all have the same."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Return the space of an agent's actions; all have the same."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Array], Infos]:
        """Begin a match: that of `seed`, or the next of the sequence that the last seed began. Takes no options."""
        if seed is not None or self._seeds is None:
            self._seeds = MatchSeeds(self.config.seed if seed is None else seed)
        self._matches.begin([(0, self._seeds.draw())])
        self.agents = list(self.possible_agents)
        return self._observations(self.agents), {agent: {} for agent in self.agents}

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Array], dict[str, float], dict[str, bool], dict[str, bool], Infos]:
        """Take one action of every living agent."""
        acting, sim = self.agents, self.simulation
        if not acting:
            raise EnvError("step was called, but no match is running. Call reset first.")
        everybody = self._actions(actions)
        over = bool(self._matches.step(everybody))
        rewards = self._matches.ledger.rewards[0]
        alive = sim.alive[0]
        ended = {agent: over or not alive[self._places[agent]] for agent in acting}
        self.agents = [agent for agent in acting if not ended[agent]]
        return (
            self._observations(acting),
            {agent: float(rewards[self._places[agent]]) for agent in acting},
            ended,
            dict.fromkeys(acting, False),
            {agent: self._matches.info(0, *self._places[agent]) for agent in acting},
        )

    def _actions(self, actions: Mapping[str, Any]) -> Array:
        missing = [agent for agent in self.agents if agent not in actions]
        if missing:
            raise EnvError(f"{', '.join(missing)} got no action, but every agent in env.agents needs one.")
        given = np.array([np.asarray(actions[agent]) for agent in self.agents])
        checked = self._matches.check_actions(given, (len(self.agents),))
        everybody = np.zeros((1, *self.simulation.shape[1:], checked.shape[-1]), dtype=checked.dtype)
        for agent, action in zip(self.agents, checked, strict=True):
            everybody[(0, *self._places[agent])] = action
        return everybody

    def _observations(self, agents: list[str]) -> dict[str, Array]:
        seen = self._matches.observer.observe(self.simulation)[0]
        return {agent: seen[self._places[agent]] for agent in agents}

    def state_dict(self) -> dict[str, Any]:
        """Return where the match stands."""
        if self._seeds is None:
            raise StateError("No match has begun, so there is no state to keep. Call reset first.")
        return {"match": self._matches.state_of(0), "seeds": self._seeds.state_dict(), "agents": list(self.agents)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken."""
        self._seeds = MatchSeeds(0)
        self._seeds.load_state_dict(state["seeds"])
        self._matches.go_on([state["match"]])
        self.agents = list(state["agents"])

    def state(self) -> Array:
        """Return everything about all mechs and the match, for critics that may know it (see `state_space`)."""
        sim, size = self.simulation, np.float32(self.config.size)
        columns = (
            sim.x / size,
            sim.y / size,
            np.cos(sim.heading),
            np.sin(sim.heading),
            sim.hp / sim.max_hp,
            sim.heat / sim.heat_capacity,
            sim.cooldown,
            sim.shutdown,
        )
        mechs = np.stack([column[0] for column in columns], axis=-1).ravel()
        match = [*(sim.zone_score[0] / self.config.zone_seconds), sim.steps[0] / self.config.max_steps]
        return np.concatenate([mechs, np.array(match, dtype=np.float32)])

    def make_opponent(self) -> HeuristicPolicy:
        """Make the scripted player for agents that nobody else plays."""
        return HeuristicPolicy()

    def scripted_actions(self) -> Array:
        """Return what the scripted player would do next with every agent, also with those that are gone, `[2 K, n]`."""
        actions = encode(HeuristicPolicy().plan(self.simulation), self.config.control)
        return actions.reshape(len(self.possible_agents), -1)

    def get_replay(self) -> dict[str, Any]:
        """Return the match so far, or the one that just ended, as `save_replay` takes it."""
        return self._matches.replay(0)

    def get_last_outcome(self) -> dict[str, Any] | None:
        """Return how the last match went that ended; None before."""
        return self._matches.outcomes[0]

    def get_team_alive(self) -> dict[str, int]:
        """Return how many mechs of each team are left."""
        return self._matches.team_alive(0)

    def set_heuristic(self, changes: Mapping[str, Any]) -> None:
        """Let the scripted opponent play otherwise from now on: `{"fire_share": 0.2}`, see `HeuristicConfig`."""
        self._matches.set_heuristic(0, changes)

    def render(self) -> None:
        """Draw nothing: matches are watched as replays."""

    def close(self) -> None:
        """Free nothing: there is nothing to free."""


def _own(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """Copy a space, so that every agent samples from its own randomness."""
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(space.nvec)
    assert isinstance(space, spaces.Box)
    return spaces.Box(space.low, space.high, dtype=np.float32)
