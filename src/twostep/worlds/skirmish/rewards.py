"""What every agent earned in a step, part by part."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from twostep.worlds.skirmish.config import RewardWeights
from twostep.worlds.skirmish.geometry import Array
from twostep.worlds.skirmish.simulation import BLUE, RED, Simulation

PARTS = tuple(part.name for part in fields(RewardWeights))
TINY = np.float32(1e-6)


class Ledger:
    """Books rewards of all matches; `settle` after every step, `begin` with every new match."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._weights = np.array([getattr(sim.config.rewards, part) for part in PARTS], dtype=np.float32)
        self._zone_distance = np.zeros(sim.shape, dtype=np.float32)
        self.parts = np.zeros((*sim.shape, len(PARTS)), dtype=np.float32)
        """`[M, 2, K, parts]`, weighted: what the last step brought; `totals` what the match brought so far."""
        self.totals = np.zeros_like(self.parts)
        self.rewards = np.zeros(sim.shape, dtype=np.float32)

    def begin(self, match: int) -> None:
        """Forget what a match brought; call it after `Simulation.look`."""
        self.parts[match], self.totals[match], self.rewards[match] = 0, 0, 0
        self._zone_distance[match] = self._sim.zone_distance[match]

    def settle(self) -> None:
        """Book the last step for all who were alive when it began."""
        sim = self._sim
        approach = (self._zone_distance - sim.zone_distance) / np.float32(sim.config.size)
        self._zone_distance = sim.zone_distance
        zone = (sim.scored - sim.scored[:, ::-1]) / np.float32(sim.config.zone_seconds)
        won = (sim.winner == BLUE).astype(np.float32) - (sim.winner == RED)
        self.parts = np.zeros((*sim.shape, len(PARTS)), dtype=np.float32)
        earned = {part: self.parts[..., at] for at, part in enumerate(PARTS)}
        earned["approach"][...] = approach
        earned["zone"][...] = zone[..., None]
        if sim.fired.any():
            self._settle_shots(earned)
        earned["terminal"][:, 0], earned["terminal"][:, 1] = won[:, None], -won[:, None]
        self.parts *= self._weights
        self.parts *= sim.acted[..., None]
        self.totals += self.parts
        self.rewards = self.parts.sum(-1)

    def _settle_shots(self, earned: dict[str, Array]) -> None:
        sim = self._sim
        suffered = sim.damage.sum(2)[:, ::-1]  # [M, 2, K]
        earned["damage_dealt"][...] = (sim.damage / sim.max_hp).sum(-1)
        earned["damage_taken"][...] = -suffered / sim.max_hp
        shares = sim.damage / np.maximum(suffered, TINY)[:, ::-1, None, :]
        earned["kill"][...] = (shares * sim.died[:, ::-1, None, :]).sum(-1)
        earned["death"][...] = -sim.died.astype(np.float32)

    def part_dict(self, parts: Array) -> dict[str, float]:
        """Name the parts of one agent, `[parts]`."""
        return dict(zip(PARTS, parts.tolist(), strict=True))
