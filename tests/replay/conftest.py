"""Matches to show: real ones, and one that nobody played, in exactly the form that skirmish records.

The latter has something of everything: misses, units that overheat, an arena that is wider than high.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from twostep.worlds.skirmish import EnvConfig, HeuristicPolicy, SkirmishEnv

CLASSES = {
    # radius, hp, heat, vision, weapon range, speed, damage, frames between shots
    "scout": (0.6, 60.0, 60.0, 22.0, 11.0, 7.0, 5.0, 5),
    "light": (0.75, 90.0, 80.0, 18.0, 12.0, 5.5, 8.0, 8),
    "medium": (0.9, 130.0, 100.0, 16.0, 14.0, 4.2, 13.0, 12),
    "heavy": (1.1, 190.0, 120.0, 14.0, 16.0, 3.0, 22.0, 20),
}
WALLS = [(14, 6, 16, 14), (14, 26, 16, 34), (44, 6, 46, 14), (44, 26, 46, 34), (27, 3, 33, 5), (27, 35, 33, 37)]
WALLS += [(22, 18, 24, 22), (36, 18, 38, 22)]
SIZE, ZONE = (60.0, 40.0), (30.0, 20.0, 6.0)
FRAME = 0.1


class PretendMatch:
    """Just enough of a battle to have something of everything to show."""

    def __init__(self, seed, team, num_frames):
        self.rng = np.random.default_rng(seed)
        self.classes = team * 2
        count = len(self.classes)
        self.side = np.repeat([0, 1], count // 2)
        self.hp = np.array([CLASSES[name][1] for name in self.classes])
        lanes = np.tile(np.linspace(8, 32, count // 2), 2)
        self.place = np.stack([np.where(self.side == 0, 4.0, 56.0), lanes], axis=1)
        self.place += self.rng.normal(0, 0.4, self.place.shape)
        self.heading = np.where(self.side == 0, 0.0, math.pi) + self.rng.normal(0, 0.2, count)
        self.heat, self.wait = np.zeros(count), np.zeros(count)
        self.overheated = np.zeros(count, dtype=bool)
        self.score, self.owner = np.zeros(2), 0
        self.rewards = np.zeros(count)
        self.shots, self.frames = [], []
        self.record()
        while len(self.frames) < num_frames and self.reason() == "time":
            self.step(len(self.frames))
            self.record()

    def record(self):
        columns = {"x": self.place[:, 0], "y": self.place[:, 1], "heading": self.heading, "hp": self.hp}
        columns |= {"heat": self.heat, "cooldown": self.wait * FRAME, "alive": self.hp > 0}
        columns |= {"overheated": self.overheated, "zone_score": self.score, "zone_owner": self.owner}
        self.frames.append({name: np.array(value) for name, value in (columns | {"rewards": self.rewards}).items()})

    def step(self, frame):
        self.rewards = np.zeros(len(self.hp))
        self.wait = np.maximum(self.wait - 1, 0)
        self.heat = np.maximum(self.heat - 0.9, 0)
        self.overheated &= self.heat > 20
        for unit in np.flatnonzero(self.hp > 0):
            self.act(int(unit), frame)
        inside = (np.hypot(*(self.place - ZONE[:2]).T) < ZONE[2]) & (self.hp > 0)
        present = [bool(inside[self.side == side].any()) for side in (0, 1)]
        self.owner = 3 if all(present) else 1 if present[0] else 2 if present[1] else 0
        if self.owner in (1, 2):
            self.score[self.owner - 1] += FRAME / 20.0
            self.rewards[inside] += 0.02

    def act(self, unit, frame):
        _, _, max_heat, _, reach, speed, damage, pause = CLASSES[self.classes[unit]]
        foes = np.flatnonzero((self.side != self.side[unit]) & (self.hp > 0))
        away = self.place[foes] - self.place[unit] if len(foes) else np.zeros((1, 2))
        near = int(np.hypot(*away.T).argmin())
        distance = float(np.hypot(*away[near])) if len(foes) else math.inf
        goal = np.array(ZONE[:2]) - self.place[unit]
        aims = distance < reach
        wanted = math.atan2(*(away[near] if aims else goal)[::-1])
        turn = (wanted - self.heading[unit] + math.pi) % (2 * math.pi) - math.pi
        self.heading[unit] += float(np.clip(turn, -0.3, 0.3)) + self.rng.normal(0, 0.03)
        pace = speed * FRAME * (0.35 if aims else min(1.0, float(np.hypot(*goal)) / 4))
        drift = self.heading[unit] + (1.3 if aims and unit % 2 else 0.0)
        self.place[unit] += pace * np.array([math.cos(drift), math.sin(drift)])
        self.place[unit] = np.clip(self.place[unit], 1, [SIZE[0] - 1, SIZE[1] - 1])
        if aims and self.wait[unit] == 0 and not self.overheated[unit] and abs(turn) < 0.4:
            self.shoot(unit, int(foes[near]), frame, damage)
            self.wait[unit] = pause
            self.heat[unit] += damage * 1.4
            self.overheated[unit] = self.heat[unit] > max_heat * 0.9

    def shoot(self, unit, foe, frame, damage):
        hit = self.rng.random() < 0.6
        dealt = min(damage, float(self.hp[foe])) if hit else 0.0
        self.hp[foe] -= dealt
        self.rewards[unit] += dealt / 50
        self.rewards[foe] -= dealt / 50
        self.shots.append((frame, unit, foe, float(hit), dealt))

    def reason(self):
        if min(self.hp[self.side == side].sum() for side in (0, 1)) <= 0:
            return "elimination"
        return "zone" if self.score.max() >= 1 else "time"

    def replay(self, seed):
        left = [float(self.hp[self.side == side].sum()) for side in (0, 1)]
        reason = self.reason()
        lead = {"elimination": left[0] - left[1]}.get(reason, float(self.score[0] - self.score[1]))
        columns = {name: np.stack([frame[name] for frame in self.frames]) for name in self.frames[0]}
        kinds = {"alive": np.bool_, "overheated": np.bool_, "zone_owner": np.int8}
        columns = {name: values.astype(kinds.get(name, np.float32)) for name, values in columns.items()}
        half = len(self.classes) // 2
        units = []
        for unit, name in enumerate(self.classes):
            team = ("blue", "red")[self.side[unit]]
            facts = zip(("radius", "max_hp", "max_heat", "vision", "weapon_range"), CLASSES[name], strict=False)
            units.append({"id": f"{team}_{unit % half}", "team": team, "class": name, **dict(facts)})
        return {
            "format": 1,
            "world": "skirmish",
            "seed": seed,
            "seconds_per_frame": FRAME,
            "size": list(SIZE),
            "walls": np.array(WALLS, dtype=np.float32),
            "zone": list(ZONE),
            "units": units,
            "rewards": columns.pop("rewards"),
            "frames": columns,
            "shots": np.array(self.shots, dtype=np.float32).reshape(-1, 5),
            "outcome": {
                "winner": "draw" if lead == 0 else "blue" if lead > 0 else "red",
                "reason": reason,
                "frames": len(self.frames),
                "hp": left,
                "zone": self.score.tolist(),
            },
        }


def pretend_match(seed=0, team=("scout", "light", "medium", "medium", "heavy"), num_frames=600):
    return PretendMatch(seed, list(team), num_frames).replay(seed)


@pytest.fixture(scope="session")
def replay():
    """A match of five against five; nobody may change it."""
    return pretend_match(seed=4)


@pytest.fixture(scope="session")
def make_replay():
    """A function: seed, classes of a team and most frames to a match."""
    return pretend_match


def real_match(seed=0, random_teams=(), **settings):
    """Play skirmish: teams follow the heuristic, or act at random where they are named."""
    env = SkirmishEnv(EnvConfig(record_replay=True, **settings))
    heuristic = HeuristicPolicy()
    env.reset(seed=seed)
    rng = np.random.default_rng(seed)
    while env.agents:
        choices = env.action_space(env.agents[0]).nvec
        env.step(
            {
                agent: rng.integers(choices) if agent.startswith(tuple(random_teams)) else heuristic.act(env, agent)
                for agent in env.agents
            }
        )
    return env.get_replay()


@pytest.fixture(scope="session")
def real_replay():
    """A match of skirmish between two heuristic teams; nobody may change it."""
    return real_match(seed=1)


@pytest.fixture(scope="session")
def play_match():
    """A function: seed, teams that act at random, and settings of skirmish."""
    return real_match
