"""The scripted opponent: every mech goes for the zone by itself and fights whom it meets on the way.

It is meant to be beaten by learning: it stands still in the open while it fights, shoots at the nearest instead of
with the others, never flees, and arrives one by one, scouts first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from twostep.worlds.skirmish.config import HeuristicConfig
from twostep.worlds.skirmish.control import Orders, encode
from twostep.worlds.skirmish.geometry import Array, ray_lengths
from twostep.worlds.skirmish.simulation import Simulation

DETOURS = np.array([0.0, 0.5, -0.5, 1.0, -1.0, 1.5, -1.5, 2.2, -2.2], dtype=np.float32)
"""Directions it considers when a wall is in the way, against that of its goal."""
LOOK_AHEAD = np.float32(4)
"""How much free way a direction must offer, in metres, where the goal is not nearer."""


class HeuristicPolicy:
    """Plays any agent of a `SkirmishEnv`; has no memory, so one may play several."""

    def __init__(self, config: HeuristicConfig | None = None) -> None:
        """Play as `config` says, or as each match says by itself (`Simulation.heuristics`)."""
        self.config = config
        self._planned: tuple[Simulation, int] | None = None
        self._actions: Array = np.zeros(0)

    def act(self, env: Any, agent_id: str) -> Array:
        """Return the action of one agent; all agents are planned at once, at the first call after a step."""
        env = getattr(env, "unwrapped", env)
        sim: Simulation = env.simulation
        if self._planned != (sim, sim.num_steps):
            self._actions = encode(self.plan(sim), sim.config.control).reshape(2 * sim.team_size, -1)
            self._planned = sim, sim.num_steps
        return self._actions[env.possible_agents.index(agent_id)].copy()

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: what is planned follows from what is seen."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Forget what was planned."""
        self._planned = None

    def plan(self, sim: Simulation) -> Orders:
        """Return orders `[M, 2, K]` for every mech of every match; a plan for both teams, each by what it sees."""
        style = _Style(sim.heuristics if self.config is None else [self.config] * sim.num_matches)
        sight = sim.sight
        fights = sight.clear & sight.seen[:, :, None, :] & sim.alive[..., None]
        distances = np.where(fights, sight.distance, np.inf)
        enemy = distances.argmin(-1)
        distance = _chosen(distances, enemy)
        fighting = distance <= style.engage * sim.weapon_range
        x, y = _way_to_zone(sim, style)
        x = np.where(fighting, _chosen(sight.dx, enemy), x)
        y = np.where(fighting, _chosen(sight.dy, enemy), y)
        ahead, left = x * sight.cos + y * sight.sin, y * sight.cos - x * sight.sin
        bearing = np.arctan2(left, ahead)
        wanted = style.standoff * sim.weapon_range
        closing = np.where(distance > wanted, np.float32(1), np.where(distance < wanted / 2, np.float32(-1), 0))
        driving = (np.abs(bearing) < 1) & (np.maximum(np.abs(x), np.abs(y)) > 1)
        cool = sim.heat + sim.shot_heat <= style.heat_limit * sim.heat_capacity
        return Orders(
            forward=np.where(fighting, closing, driving).astype(np.float32),
            left=np.zeros(sim.shape, dtype=np.float32),
            turn=np.clip(bearing / (sim.turn_rate * np.float32(sim.config.step_seconds)), -1, 1),
            fire=cool & style.may_fire(sim.steps),
            weakest=np.zeros(sim.shape, dtype=np.bool_),
        )


class _Style:
    """How it plays, setting by setting, each `[M, 1, 1]`."""

    def __init__(self, matches: Sequence[HeuristicConfig]) -> None:
        rows = [(one.engage, one.standoff, one.heat_limit, one.spread, one.fire_share) for one in matches]
        columns = np.array(rows, dtype=np.float64).T.reshape(5, -1, 1, 1)
        self.engage, self.standoff, self.heat_limit = columns[:3].astype(np.float32)
        self.spread, self._fire_share = columns[3:]

    def may_fire(self, steps: Array) -> Array:
        """Say in which matches this is one of the decisions in which it may fire."""
        steps = steps[:, None, None]
        return np.floor((steps + 1) * self._fire_share) > np.floor(steps * self._fire_share)


def _way_to_zone(sim: Simulation, style: _Style) -> tuple[Array, Array]:
    """Return where to drive, as a vector: straight to a place in the zone, or around the wall that is in the way."""
    slots = np.arange(sim.team_size, dtype=np.float32) * np.float32(2 * np.pi / sim.team_size)
    sides = np.array([[-1.0], [1.0]], dtype=np.float32)  # each team stands on its own side first
    radius = (style.spread * sim.config.zone_radius).astype(np.float32)
    x, y = sim.to_zone_x + sides * radius * np.cos(slots), sim.to_zone_y + sides * radius * np.sin(slots)
    distance = np.sqrt(x * x + y * y) + np.float32(1e-6)
    directions = np.arctan2(y, x)[..., None] + DETOURS
    cos, sin = np.cos(directions), np.sin(directions)
    limits = sim.limits.reshaped(-1, *sim.shape, 1)
    free = ray_lengths(sim.x[..., None], sim.y[..., None], cos, sin, limits, sim.config.size)
    enough = np.minimum(distance, LOOK_AHEAD)[..., None]
    # The smallest detour with enough free way; of two alike, the one with more of it; where none has, the freest.
    cost = np.abs(DETOURS) - np.float32(0.02) * np.minimum(free, 15) + np.float32(10) * (free < enough)
    best = cost.argmin(-1)
    return _chosen(cos, best) * distance, _chosen(sin, best) * distance


def _chosen(values: Array, index: Array) -> Array:
    """Return of `values` `[..., n]` the one that `index` `[...]` names."""
    flat = values.reshape(-1, values.shape[-1])
    return flat[np.arange(len(flat)), index.ravel()].reshape(index.shape)
