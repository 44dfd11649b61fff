"""What an agent sees: one vector of numbers between -1 and 1, everything as it looks from its own place and heading.

In this order, each direction as cosine and sine of the bearing (left is positive):
    itself (23): hit points, heat, seconds until the weapon is ready and of shutdown (each as a part of its most),
        velocity ahead and to the left, direction and distance of the zone, whether it stands in it, whether its team,
        the other team or both hold it, both scores, the time that is left, whether there is something to hit, heading
        against that of its team's start, and its class, one of four;
    walls: how far it is to the next one, in `rays` directions, from straight ahead counter-clockwise;
    each of K - 1 mates (5), in the order of the team: alive, direction, distance, hit points;
    each of K enemies (11), likewise: destroyed, seen, direction, distance, hit points, whether no wall is between,
        whether it can be hit now, velocity ahead and to the left, how far it faces this agent.
What a team does not see of an enemy is 0. An agent that is destroyed sees only zeros.
"""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from twostep.worlds.skirmish.config import CLASSES, EnvConfig
from twostep.worlds.skirmish.geometry import Array, ray_lengths
from twostep.worlds.skirmish.simulation import SHUTDOWN, Simulation

SELF, MATE, ENEMY = 19 + len(CLASSES), 5, 11
RAY_REACH = np.float32(15)
"""Walls farther away than this look alike, in metres."""
FAST = np.float32(max(kind.speed for kind in CLASSES.values()))


class Observer:
    """Writes the observations of all agents of all matches."""

    def __init__(self, config: EnvConfig) -> None:
        self.config = config
        count = len(config.team)
        self._ends = (SELF, SELF + config.rays, SELF + config.rays + MATE * (count - 1))
        self.length = self._ends[-1] + ENEMY * count
        self.space = spaces.Box(-1.0, 1.0, (self.length,), np.float32)
        names = list(CLASSES)
        self._classes = np.eye(len(names), dtype=np.float32)[[names.index(name) for name in config.team]]
        self._directions = np.arange(config.rays, dtype=np.float32) * np.float32(2 * np.pi / max(config.rays, 1))
        self._mates = np.array(
            [[mate for mate in range(count) if mate != slot] for slot in range(count)], dtype=np.intp
        )
        self._ahead = np.array([[1.0], [-1.0]], dtype=np.float32)

    def observe(self, sim: Simulation) -> Array:
        """Return fresh observations `[M, 2, K, length]`."""
        config, count = self.config, sim.team_size
        seen = np.zeros((*sim.shape, self.length), dtype=np.float32)
        own, rays, mates, enemies = np.split(seen, self._ends, axis=-1)  # parts of the same memory
        self._write_self(own, sim)
        if config.rays:
            self._write_rays(rays, sim)
        if count > 1:
            self._write_mates(mates.reshape(*sim.shape, count - 1, MATE), sim)
        self._write_enemies(enemies.reshape(*sim.shape, count, ENEMY), sim)
        np.clip(seen, -1, 1, out=seen)
        seen *= sim.alive[..., None]
        return seen

    def _write_self(self, out: Array, sim: Simulation) -> None:
        config, sight = self.config, sim.sight
        out[..., 0] = sim.hp / sim.max_hp
        out[..., 1] = sim.heat / sim.heat_capacity
        out[..., 2] = sim.cooldown / sim.weapon_cooldown
        out[..., 3] = sim.shutdown / np.float32(SHUTDOWN)
        _write_turned(out[..., 4:6], sim.velocity_x / FAST, sim.velocity_y / FAST, sight.cos, sight.sin)
        distance = np.maximum(sim.zone_distance, np.float32(1e-6))
        _write_turned(out[..., 6:8], sim.to_zone_x / distance, sim.to_zone_y / distance, sight.cos, sight.sin)
        out[..., 8] = distance / np.float32(config.size)
        out[..., 9] = sim.in_zone
        out[..., 10] = sim.holds_zone[..., None]
        out[..., 11] = sim.holds_zone[:, ::-1, None]
        out[..., 12] = sim.contested[:, None, None]
        scores = sim.zone_score / np.float32(config.zone_seconds)
        out[..., 13] = scores[..., None]
        out[..., 14] = scores[:, ::-1, None]
        out[..., 15] = (1 - sim.steps / np.float32(config.max_steps))[:, None, None]
        out[..., 16] = sight.can_fire
        out[..., 17] = sight.cos * self._ahead
        out[..., 18] = sight.sin * self._ahead
        out[..., 19:] = self._classes

    def _write_rays(self, out: Array, sim: Simulation) -> None:
        directions = sim.heading[..., None] + self._directions
        walls = sim.walls.reshaped(-1, sim.num_matches, 1, 1, 1)
        x, y = sim.x[..., None], sim.y[..., None]
        out[...] = ray_lengths(x, y, np.cos(directions), np.sin(directions), walls, self.config.size) / RAY_REACH

    def _write_mates(self, out: Array, sim: Simulation) -> None:
        mates, size = self._mates, np.float32(self.config.size)
        alive = sim.alive[..., mates]
        dx, dy = sim.x[..., mates] - sim.x[..., None], sim.y[..., mates] - sim.y[..., None]
        distance = np.sqrt(dx * dx + dy * dy) + np.float32(1e-6)
        out[..., 0] = 1
        cos, sin = sim.sight.cos[..., None], sim.sight.sin[..., None]
        _write_turned(out[..., 1:3], dx / distance, dy / distance, cos, sin)
        out[..., 3] = distance / size
        out[..., 4] = (sim.hp / sim.max_hp)[..., mates]
        out *= alive[..., None]

    def _write_enemies(self, out: Array, sim: Simulation) -> None:
        sight = sim.sight
        cos, sin = sight.cos[..., None], sight.sin[..., None]
        x, y = sight.dx / sight.distance, sight.dy / sight.distance
        out[..., 1] = 1
        _write_turned(out[..., 2:4], x, y, cos, sin)
        out[..., 4] = sight.distance / (2 * sim.weapon_range[:, None])
        out[..., 5] = (sim.hp / sim.max_hp)[:, ::-1, None, :]
        out[..., 6] = sight.clear
        out[..., 7] = sight.in_reach
        velocity_x, velocity_y = (v[:, ::-1, None, :] / FAST for v in (sim.velocity_x, sim.velocity_y))
        _write_turned(out[..., 8:10], velocity_x, velocity_y, cos, sin)
        out[..., 10] = -(x * sight.cos[:, ::-1, None, :] + y * sight.sin[:, ::-1, None, :])
        out *= sight.seen[:, :, None, :, None]
        out[..., 0] = ~sim.alive[:, ::-1, None, :]


def _write_turned(out: Array, x: Array, y: Array, cos: Array, sin: Array) -> None:
    """Write vectors as they look to somebody whose heading has this cosine and sine: ahead, then to the left."""
    out[..., 0] = x * cos + y * sin
    out[..., 1] = y * cos - x * sin
