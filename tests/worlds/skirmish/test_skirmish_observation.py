"""What agents see: what the page says, nothing more, and the same for all."""

from __future__ import annotations

import math

import numpy as np
import pytest

from twostep.worlds.skirmish import CLASSES, EnvConfig
from twostep.worlds.skirmish.matches import Matches
from twostep.worlds.skirmish.observation import ENEMY, MATE, SELF
from twostep.worlds.skirmish.simulation import Simulation

FAR = (55.0, 55.0)
HIDDEN = ("hp", "heat", "cooldown", "shutdown", "heading", "velocity_x", "velocity_y", "x", "y")


def parts(seen: np.ndarray, config: EnvConfig) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Split one agent's observation: itself, walls, mates, enemies."""
    count = len(config.team)
    own, rays, mates, enemies = np.split(seen, np.cumsum([SELF, config.rays, MATE * (count - 1)]))
    return own, rays, mates.reshape(count - 1, MATE), enemies.reshape(count, ENEMY)


def test_what_an_agent_sees_of_itself_and_the_match(stage) -> None:
    scene = stage([(20, 30)], [(20, 55)], team=("light",))
    values = {"hp": 25, "heat": 40, "cooldown": 0.2, "shutdown": 1.5, "velocity_x": 3, "velocity_y": 4.5}
    for name, value in values.items():
        scene.set(name, "blue_0", value)
    scene.set("heading", "blue_0", math.pi / 2)
    scene.sim.zone_score[0], scene.sim.steps[0] = (3, 6), 30
    own = parts(scene.observe("blue_0"), scene.sim.config)[0]
    body = [25 / 100, 40 / 100, 0.2 / 0.8, 1.5 / 3, 4.5 / 9, -3 / 9]
    zone = [0, -1, 10 / 60, 0, 0, 0, 0, 3 / 15, 6 / 15]
    rest = [1 - 30 / 150, 0, 0, 1, 0, 1, 0, 0]
    np.testing.assert_allclose(own, [*body, *zone, *rest], atol=1e-5)


@pytest.mark.parametrize(
    ("blue", "red", "flags"),
    [(30, 55, [1, 1, 0, 0]), (55, 30, [0, 0, 1, 0]), (28, 32, [1, 0, 0, 1]), (50, 55, [0, 0, 0, 0])],
)
def test_who_is_in_the_zone(stage, blue: float, red: float, flags: list[int]) -> None:
    """Whether it stands there, whether its team, the others or both hold it."""
    scene = stage([(blue, 30)], [(red, 30)])
    assert parts(scene.observe("blue_0"), scene.sim.config)[0][9:13].tolist() == flags


def test_walls_are_felt_in_all_directions_counter_clockwise(stage) -> None:
    scene = stage([(10, 20)], [FAR], walls=[(14, 15, 16, 25)], rays=4)
    rays = parts(scene.observe("blue_0"), scene.sim.config)[1]
    np.testing.assert_allclose(rays, [4 / 15, 1, 10 / 15, 1], atol=1e-5)
    scene.set("heading", "blue_0", math.pi / 2)
    rays = parts(scene.observe("blue_0"), scene.sim.config)[1]
    np.testing.assert_allclose(rays, [1, 10 / 15, 1, 4 / 15], atol=1e-5)


def test_what_an_agent_sees_of_mates(stage) -> None:
    scene = stage([(10, 20), (10, 32), (4, 20)], [FAR, FAR, FAR])
    scene.set("hp", "blue_1", 70)
    mates = parts(scene.observe("blue_0"), scene.sim.config)[2]
    np.testing.assert_allclose(mates, [[1, 0, 1, 12 / 60, 0.5], [1, -1, 0, 6 / 60, 1]], atol=1e-5)
    scene.set("alive", "blue_1", False)
    mates = parts(scene.observe("blue_0"), scene.sim.config)[2]
    np.testing.assert_allclose(mates, [[0, 0, 0, 0, 0], [1, -1, 0, 6 / 60, 1]], atol=1e-5)


def test_what_an_agent_sees_of_enemies(stage) -> None:
    scene = stage([(10, 20), (2, 2)], [(10, 29), FAR])
    for name, value in (("hp", 35), ("velocity_x", 4.5), ("velocity_y", -9), ("heading", -math.pi / 2)):
        scene.set(name, "red_0", value)
    enemies = parts(scene.observe("blue_0"), scene.sim.config)[3]
    expected = [0, 1, 0, 1, 9 / 36, 0.25, 1, 0, 4.5 / 9, -1, 1]
    np.testing.assert_allclose(enemies, [expected, [0] * ENEMY], atol=1e-5)
    scene.set("heading", "blue_0", math.pi / 2)
    enemies = parts(scene.observe("blue_0"), scene.sim.config)[3]
    np.testing.assert_allclose(enemies[0], [0, 1, 1, 0, 9 / 36, 0.25, 1, 1, -1, -4.5 / 9, 1], atol=1e-5)
    scene.set("alive", "red_1", False)
    enemies = parts(scene.observe("blue_0"), scene.sim.config)[3]
    assert enemies[1].tolist() == [1] + [0] * (ENEMY - 1)


def test_a_mate_sees_for_all(stage) -> None:
    """The one behind the wall knows of the enemy what its mate sees, and that a wall is between."""
    scene = stage([(10, 20), (20, 35)], [(20, 20), FAR], walls=[(14, 18, 16, 22)])
    enemy = parts(scene.observe("blue_0"), scene.sim.config)[3][0]
    assert enemy[1] == 1
    assert enemy[6] == 0
    scene.set("alive", "blue_1", False)
    assert not parts(scene.observe("blue_0"), scene.sim.config)[3][0].any()


def test_what_a_team_does_not_see_changes_nothing_in_what_it_sees(scripted) -> None:
    """Partial observation: enemies out of sight get any other state, and every number of the team stays the same."""
    config, rng = EnvConfig(size=90.0, walls=16), np.random.default_rng(0)
    matches = Matches(config, 1)
    sim, plan, observe = matches.simulation, scripted["heuristic"]().plan, matches.observer.observe
    changed = 0
    for seed in range(12):
        matches.begin([(0, seed)])
        for _ in range(rng.integers(0, 70)):
            sim.step(plan(sim))
        for team in (0, 1):
            before, seen, present = observe(sim)[0, team], sim.sight.seen[0, team].copy(), sim.in_zone.copy()
            for enemy in np.repeat(np.flatnonzero(~seen & sim.alive[0, 1 - team]), 4):
                at = (0, 1 - team, enemy)
                kept = {name: getattr(sim, name)[at].copy() for name in HIDDEN}
                for name in HIDDEN:
                    getattr(sim, name)[at] = rng.uniform(1, config.size - 1)
                sim.look()
                if (sim.sight.seen[0, team] == seen).all() and (sim.in_zone == present).all():
                    changed += 1
                    np.testing.assert_array_equal(observe(sim)[0, team], before)
                for name, value in kept.items():
                    getattr(sim, name)[at] = value
                sim.look()
    assert changed > 30


@pytest.mark.parametrize(
    "config",
    [EnvConfig(), EnvConfig(control="continuous", rays=0, walls=0), EnvConfig(team=("scout",), size=200.0)],
)
def test_every_observation_lies_in_its_space_and_the_destroyed_see_nothing(config: EnvConfig, scripted) -> None:
    matches = Matches(config, 6)
    sim, plan = matches.simulation, scripted["guessing"]().plan
    matches.begin((match, match) for match in range(6))
    sim.alive[3, 0, 0] = False
    sim.look()
    for _ in range(60):
        seen = matches.observer.observe(sim)
        assert seen.dtype == np.float32
        assert seen.shape[-1] == matches.observation_space.shape[0] == matches.observer.length
        assert np.abs(seen).max() <= 1
        assert matches.observation_space.contains(seen[0, 1, 0])
        assert not seen[~sim.alive].any()
        sim.step(plan(sim))


def test_observations_are_fresh_arrays() -> None:
    """Whoever keeps one does not see it change."""
    sim = Simulation(EnvConfig(), 1)
    sim.begin(0, 0)
    sim.look()
    observer = Matches(EnvConfig(), 1).observer
    first = observer.observe(sim)
    kept = first.copy()
    sim.x += 1
    sim.look()
    observer.observe(sim)
    np.testing.assert_array_equal(first, kept)


def test_the_class_is_told(stage) -> None:
    for at, name in enumerate(CLASSES):
        scene = stage([(20, 20)], [FAR], team=(name,))
        assert parts(scene.observe("blue_0"), scene.sim.config)[0][19:].tolist() == np.eye(4)[at].tolist()
