"""The simulation against the rules written down a second time: plain loops over plain numbers, one mech at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest

from twostep.worlds.skirmish import CLASSES, EnvConfig
from twostep.worlds.skirmish.control import Orders
from twostep.worlds.skirmish.simulation import Simulation

STATE = ("x", "y", "heading", "hp", "heat", "cooldown", "shutdown", "alive", "velocity_x", "velocity_y")


class Mech:
    def __init__(self, sim: Simulation, team: int, slot: int) -> None:
        self.team, self.slot, self.kind = team, slot, CLASSES[sim.config.team[slot]]
        for name in STATE:
            setattr(self, name, getattr(sim, name)[0, team, slot].item())


class Rules:
    """One step of one match. `margin` is how far the closest decision was from going the other way."""

    def __init__(self, sim: Simulation) -> None:
        self.config = sim.config
        self.mechs = [Mech(sim, team, slot) for team in range(2) for slot in range(sim.team_size)]
        sides = np.stack([side[:, 0] for side in sim.walls], axis=-1).tolist()
        self.walls = [wall for wall in sides if wall[0] < sim.config.size]
        self.zone_score = sim.zone_score[0].tolist()
        self.margin = math.inf

    def close_call(self, difference: float, scale: float = 1.0) -> bool:
        """Say whether a difference is positive, and remember how close that was."""
        self.margin = min(self.margin, abs(difference) / scale)
        return difference > 0

    def step(self, orders: Orders) -> None:
        mechs, config = self.mechs, self.config
        told = [
            {name: getattr(orders, name)[0, m.team, m.slot].item() for name in Orders.__dataclass_fields__}
            for m in mechs
        ]
        pushes = [self.push(m) for m in mechs]
        for mech, order, push in zip(mechs, told, pushes, strict=True):
            self.drive(mech, order, push)
        visible = {m: self.visible_to(m.team) for m in mechs}
        shots = [self.shot(m, order, visible[m]) for m, order in zip(mechs, told, strict=True)]
        self.wound([shot for shot in shots if shot])
        middle = config.size / 2
        inside = [False, False]
        for m in mechs:
            depth = config.zone_radius - math.hypot(m.x - middle, m.y - middle)
            inside[m.team] |= m.alive and self.close_call(depth)
        for team in range(2):
            if inside[team] and not inside[1 - team]:
                self.zone_score[team] += config.tick_seconds * config.ticks_per_step

    def push(self, mech: Mech) -> tuple[float, float]:
        px = py = 0.0
        for other in self.mechs:
            distance = math.hypot(mech.x - other.x, mech.y - other.y)
            overlap = mech.kind.radius + other.kind.radius - distance
            if other is not mech and mech.alive and other.alive and overlap > 0:
                px += overlap / 2 * (mech.x - other.x) / max(distance, 1e-6)
                py += overlap / 2 * (mech.y - other.y) / max(distance, 1e-6)
        ticks = self.config.ticks_per_step
        return px / ticks, py / ticks

    def drive(self, mech: Mech, order: dict, push: tuple[float, float]) -> None:
        able = (0.5 if mech.shutdown > 0 else 1.0) if mech.alive else 0.0
        tick = self.config.tick_seconds
        ahead = order["forward"] * (0.6 if order["forward"] < 0 else 1.0)
        aside = order["left"] * 0.7
        pace = mech.kind.speed * able * tick / max(math.hypot(ahead, aside), 1.0)
        begin_x, begin_y = mech.x, mech.y
        for _ in range(self.config.ticks_per_step):
            mech.heading += order["turn"] * mech.kind.turn_rate * able * tick
            cos, sin = math.cos(mech.heading), math.sin(mech.heading)
            x = mech.x + pace * (ahead * cos - aside * sin) + push[0]
            mech.x = x if self.free(mech, x, mech.y) else mech.x
            y = mech.y + pace * (ahead * sin + aside * cos) + push[1]
            mech.y = y if self.free(mech, mech.x, y) else mech.y
        seconds = tick * self.config.ticks_per_step
        mech.velocity_x, mech.velocity_y = (mech.x - begin_x) / seconds, (mech.y - begin_y) / seconds
        mech.heading = (mech.heading + math.pi) % math.tau - math.pi

    def free(self, mech: Mech, x: float, y: float) -> bool:
        r, size = mech.kind.radius, self.config.size
        depths = [min(x - (a - r), c + r - x, y - (b - r), d + r - y) for a, b, c, d in self.walls]
        depths += [r - x, x - (size - r), r - y, y - (size - r)]
        return not any([self.close_call(depth) for depth in depths])

    def clear(self, a: Mech, b: Mech) -> bool:
        """Look along the line: no part of it is inside of a wall."""
        return not any(self.close_call(self.depth_of_crossing(a, b, wall)) for wall in self.walls)

    @staticmethod
    def depth_of_crossing(a: Mech, b: Mech, wall: list[float]) -> float:
        dx, dy = b.x - a.x, b.y - a.y
        length = math.hypot(dx, dy)
        depths = []
        for nx, ny in ((1.0, 0.0), (0.0, 1.0), (-dy / length, dx / length)):
            line = [m.x * nx + m.y * ny for m in (a, b)]
            body = [wall[i] * nx + wall[j] * ny for i in (0, 2) for j in (1, 3)]
            depths.append(min(max(line) - min(body), max(body) - min(line)))
        return min(depths)

    def visible_to(self, team: int) -> list[Mech]:
        watchers = [m for m in self.mechs if m.team == team and m.alive]
        enemies = [m for m in self.mechs if m.team != team and m.alive]
        return [enemy for enemy in enemies if any([self.sees(watcher, enemy) for watcher in watchers])]

    def sees(self, watcher: Mech, enemy: Mech) -> bool:
        distance = math.hypot(watcher.x - enemy.x, watcher.y - enemy.y)
        return self.close_call(watcher.kind.vision - distance) and self.clear(watcher, enemy)

    def shot(self, mech: Mech, order: dict, visible: list[Mech]) -> tuple[Mech, Mech, float] | None:
        kind, seconds = mech.kind, self.config.tick_seconds * self.config.ticks_per_step
        mech.cooldown = max(mech.cooldown - seconds, 0)
        mech.shutdown = max(mech.shutdown - seconds, 0)
        mech.heat = max(mech.heat - kind.dissipation * seconds, 0)
        targets = []
        for enemy in visible:
            distance = math.hypot(mech.x - enemy.x, mech.y - enemy.y)
            bearing = math.atan2(enemy.y - mech.y, enemy.x - mech.x) - mech.heading
            off = abs((bearing + math.pi) % math.tau - math.pi)
            in_range, in_arc = self.close_call(kind.weapon_range - distance), self.close_call(0.8 - off)
            if in_range and in_arc and self.clear(mech, enemy):
                targets.append((enemy.hp if order["weakest"] else distance, enemy.slot, enemy))
        ready = mech.cooldown < 1e-3 and mech.shutdown < 1e-3
        if not (mech.alive and order["fire"] and ready and targets):
            return None
        targets.sort(key=lambda target: target[:2])
        if len(targets) > 1:
            self.margin = min(self.margin, targets[1][0] - targets[0][0] or math.inf)
        mech.heat += kind.shot_heat
        mech.cooldown = kind.cooldown
        if mech.heat >= kind.heat_capacity and mech.shutdown < 1e-3:
            mech.shutdown = 3.0
        return mech, targets[0][2], self.harm(mech, targets[0][2])

    def harm(self, mech: Mech, enemy: Mech) -> float:
        dx, dy = enemy.x - mech.x, enemy.y - mech.y
        distance = math.hypot(dx, dy)
        turning = abs(enemy.velocity_x * dy - enemy.velocity_y * dx) / distance**2
        if self.close_call(turning - mech.kind.tracking, 0.1):
            return 0.0
        return mech.kind.damage * min(1.5 - distance / mech.kind.weapon_range, 1.0)

    def wound(self, shots: list[tuple[Mech, Mech, float]]) -> None:
        for _, enemy, harm in shots:
            enemy.hp = enemy.hp - harm
        for mech in self.mechs:
            if mech.alive and mech.hp <= 1e-4:
                mech.hp, mech.alive = 0.0, False


@pytest.mark.parametrize(
    ("config", "player"),
    [
        (EnvConfig(), "heuristic"),
        (EnvConfig(size=30.0, zone_radius=5.0), "guessing"),
        (EnvConfig(size=30.0, zone_radius=7.0, walls=4, ticks_per_step=3), "holding"),
        (EnvConfig(size=32.0, team=("scout", "heavy", "light"), walls=6, tick_seconds=0.15), "guessing"),
        (EnvConfig(size=30.0, team=("heavy",) * 8, walls=0), "heuristic"),
    ],
)
def test_every_step_follows_the_rules(config: EnvConfig, player: str, scripted) -> None:
    """Whatever a step of a match does is what the rules say of the state before it."""
    compared = fired = 0
    for seed in range(3):
        sim, plan = Simulation(config, 1), scripted[player]().plan
        sim.begin(0, seed)
        sim.look()
        while not sim.reason[0]:
            rules, orders = Rules(sim), plan(sim)
            rules.step(orders)
            sim.step(orders)
            fired += sim.fired.sum()
            if rules.margin < 1e-4:
                continue  # in single precision this step may go another way
            compared += 1
            for mech in rules.mechs:
                for name in STATE:
                    found = float(getattr(sim, name)[0, mech.team, mech.slot])
                    apart = found - float(getattr(mech, name))
                    apart = math.remainder(apart, math.tau) if name == "heading" else apart
                    assert abs(apart) < 2e-3, (seed, sim.steps[0], mech.team, mech.slot, name, found)
            np.testing.assert_allclose(sim.zone_score[0], rules.zone_score, atol=1e-3)
    assert compared > 60
    assert fired > 20
