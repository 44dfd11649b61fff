"""Who sees whom, and who can hit whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from twostep.worlds.skirmish.geometry import blocked

if TYPE_CHECKING:
    from twostep.worlds.skirmish.geometry import Array
    from twostep.worlds.skirmish.simulation import Simulation

ARC = np.float32(np.cos(0.8))
"""Cosine of the angle to either side of the heading within which weapons reach."""


class Sight:
    """Who can see and hit whom: arrays `[M, 2, K, K]` from every mech to every enemy."""

    def __init__(self, sim: Simulation) -> None:
        self.cos, self.sin = np.cos(sim.heading), np.sin(sim.heading)  # [M, 2, K]
        x, y = sim.x, sim.y
        self.dx = x[:, ::-1, None, :] - x[..., None]
        self.dy = y[:, ::-1, None, :] - y[..., None]
        self.distance = np.sqrt(self.dx * self.dx + self.dy * self.dy) + np.float32(1e-6)
        self.clear = _lines_of_sight(sim, self.dx[:, 0], self.dy[:, 0])
        pairs = sim.alive[..., None] & sim.alive[:, ::-1, None, :] & self.clear
        seen = np.logical_or.reduce(pairs & (self.distance <= sim.vision[:, None]), axis=2)
        self.seen = seen
        """`[M, 2, K]`: the enemies that a team sees; what one sees, all know."""
        self.forward = self.dx * self.cos[..., None] + self.dy * self.sin[..., None]
        in_arc = self.forward >= self.distance * ARC
        in_range = self.distance <= sim.weapon_range[:, None]
        self.in_reach = pairs & in_range & in_arc & seen[:, :, None, :]
        """In range, inside the arc of fire, no wall between, seen by the team."""
        self.can_fire = np.logical_or.reduce(self.in_reach, axis=-1)


def _lines_of_sight(sim: Simulation, dx: Array, dy: Array) -> Array:
    """Return whether no wall stands between a mech and an enemy: looked at once, from blue to red, for both."""
    clear = np.ones((*sim.shape, sim.team_size), dtype=np.bool_)
    if sim.config.walls:
        walls = sim.walls.reshaped(-1, sim.num_matches, 1, 1)
        hidden = np.logical_or.reduce(blocked(sim.x[:, 0, :, None], sim.y[:, 0, :, None], dx, dy, walls), axis=0)
        clear[:, 0] = ~hidden
        clear[:, 1] = clear[:, 0].transpose(0, 2, 1)
    return clear
