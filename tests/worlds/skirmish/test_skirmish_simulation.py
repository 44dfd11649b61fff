"""One rule at a time, on stages where the outcome can be said beforehand; and what holds in every match."""

from __future__ import annotations

import math

import numpy as np
import pytest

from twostep.worlds.skirmish import CLASSES, EnvConfig
from twostep.worlds.skirmish.simulation import Simulation

FAR, STEP, FIRE = (55.0, 55.0), 0.4, {"fire": 1}


def inside(x: np.ndarray, y: np.ndarray, box: np.ndarray, margin: float) -> np.ndarray:
    grown = (x > box[0] - margin) & (x < box[2] + margin)
    return grown & (y > box[1] - margin) & (y < box[3] + margin)


@pytest.mark.parametrize("config", [EnvConfig(), EnvConfig(size=30.0, walls=20, ticks_per_step=2, tick_seconds=0.2)])
def test_nobody_ever_enters_a_wall_or_leaves_the_arena(config: EnvConfig, scripted) -> None:
    for player in ("guessing", "heuristic"):
        sim, plan = Simulation(config, 8), scripted[player]().plan
        for match in range(8):
            sim.begin(match, match)
        sim.look()
        walls = np.stack(sim.walls, axis=-1).swapaxes(0, 1)  # [M, W, 4]
        for _ in range(80):
            sim.step(plan(sim))
            for match in range(8):
                x, y = sim.x[match], sim.y[match]
                for wall in walls[match][walls[match, :, 0] < config.size]:
                    nearest_x, nearest_y = np.clip(x, wall[0], wall[2]), np.clip(y, wall[1], wall[3])
                    assert (np.hypot(x - nearest_x, y - nearest_y) > sim.radius - 1e-4).all()
            for place in (sim.x, sim.y):
                assert (place >= sim.radius - 1e-4).all()
                assert (place <= config.size - sim.radius + 1e-4).all()


@pytest.mark.parametrize("name", CLASSES)
def test_speeds_are_those_of_the_class(stage, name: str) -> None:
    """Forwards 1, sideways 0.7, backwards 0.6 of the speed, half of it while shut down; diagonals are no faster."""
    kind = CLASSES[name]
    for order, share in (
        ({"forward": 1}, 1.0), ({"forward": -1}, 0.6), ({"left": 1}, 0.7), ({"left": -1}, 0.7),
        ({"forward": 1, "left": 1}, 1.0), ({"forward": 0.5}, 0.5),
    ):  # fmt: skip
        scene = stage([(20, 20)], [FAR], team=(name,))
        scene.act(blue_0=order)
        moved = math.hypot(scene.get("x", "blue_0") - 20, scene.get("y", "blue_0") - 20)
        assert moved == pytest.approx(kind.speed * STEP * share, rel=1e-4)
    scene = stage([(20, 20)], [FAR], team=(name,))
    scene.set("shutdown", "blue_0", 3.0)
    scene.act(blue_0={"forward": 1})
    assert scene.get("x", "blue_0") - 20 == pytest.approx(kind.speed * STEP / 2, rel=1e-4)


def test_left_is_counter_clockwise(stage) -> None:
    scene = stage([(20, 20)], [FAR])
    scene.act(blue_0={"turn": 1})
    assert scene.get("heading", "blue_0") == pytest.approx(CLASSES["medium"].turn_rate * STEP, rel=1e-5)
    scene = stage([(20, 20)], [FAR])
    scene.act(blue_0={"left": 1})
    assert scene.get("y", "blue_0") > 20


def test_who_drives_into_a_wall_at_an_angle_slides_along_it(stage) -> None:
    scene = stage([(20, 20)], [FAR], walls=[(24, 0, 26, 40)])
    scene.set("heading", "blue_0", math.pi / 4)
    scene.act(5, blue_0={"forward": 1})
    assert 24 - 1 - 0.6 < scene.get("x", "blue_0") <= 24 - 1
    assert scene.get("y", "blue_0") == pytest.approx(20 + 5 * STEP * 6 / math.sqrt(2), rel=1e-3)


def test_mechs_that_overlap_drift_apart_and_the_destroyed_are_no_obstacle(stage) -> None:
    scene = stage([(20, 20), (20.5, 20)], [FAR, FAR])
    middle = (scene.get("x", "blue_0") + scene.get("x", "blue_1")) / 2
    scene.act(8)
    x = [scene.get("x", agent) for agent in ("blue_0", "blue_1")]
    assert x[1] - x[0] == pytest.approx(2.0, abs=0.05)
    assert sum(x) / 2 == pytest.approx(middle, abs=1e-4)
    scene = stage([(20, 20), (20.5, 20)], [FAR, FAR])
    scene.set("alive", "blue_1", False)
    scene.act(8)
    assert scene.get("x", "blue_0") == 20


def test_sight_is_blocked_exactly_where_a_wall_holds_points_of_the_line(scripted) -> None:
    """Partial observation: every line of sight of many matches, point by point."""
    sim, plan = Simulation(EnvConfig(walls=16), 4), scripted["heuristic"]().plan
    for match in range(4):
        sim.begin(match, 50 + match)
    sim.look()
    blocked = decided = 0
    parts = np.linspace(0, 1, 400)[:, None]
    for _ in range(12):
        sim.step(plan(sim))
        for match in range(4):
            walls = np.stack([side[:, match] for side in sim.walls], axis=-1).astype(float)
            blue, red = (np.stack([sim.x[match, team], sim.y[match, team]], -1).astype(float) for team in (0, 1))
            for shooter in range(5):
                for target in range(5):
                    points = blue[shooter] + parts * (red[target] - blue[shooter])
                    deep = any(inside(*points.T, wall, -0.01).any() for wall in walls)
                    near = any(inside(*points.T, wall, 0.3).any() for wall in walls)
                    if deep or not near:
                        decided, blocked = decided + 1, blocked + deep
                        assert sim.sight.clear[match, 0, shooter, target] == (not deep)
                        assert sim.sight.clear[match, 1, target, shooter] == (not deep)
    assert min(blocked, decided - blocked) > 100


# Medium: 15 damage, range 18, ready again after 1.2 s = 3 steps, 18 heat a shot, loses 8 a second = 3.2 a step.
@pytest.mark.parametrize(
    ("distance", "damage"), [(5, 15), (9, 15), (13.5, 11.25), (17.9, 15 * (1.5 - 17.9 / 18)), (18.1, 0)]
)
def test_a_shot_does_less_with_distance_and_none_out_of_range(stage, distance: float, damage: float) -> None:
    scene = stage([(10, 20)], [(10 + distance, 20)])
    scene.act(blue_0=FIRE)
    assert scene.get("hp", "red_0") == pytest.approx(140 - damage, rel=1e-5)
    assert scene.get("fired", "blue_0") is (damage > 0)


@pytest.mark.parametrize(("off", "fires"), [(0.0, True), (0.79, True), (0.81, False), (-0.79, True), (-0.81, False)])
def test_weapons_reach_as_far_to_the_side_as_their_arc(stage, off: float, fires: bool) -> None:
    scene = stage([(10, 20)], [(20, 20)])
    scene.set("heading", "blue_0", off)
    scene.act(blue_0=FIRE)
    assert scene.get("fired", "blue_0") is fires


def test_no_shot_passes_a_wall_or_goes_where_nobody_of_the_team_sees(stage) -> None:
    scene = stage([(10, 20)], [(20, 20)], walls=[(14, 18, 16, 22)])
    scene.act(blue_0=FIRE)
    assert not scene.get("fired", "blue_0")
    # A heavy shoots 21 m far but sees only 20: alone it cannot, with a scout that sees the target it can.
    alone = stage([(10, 20), (58, 2)], [(30.5, 20), FAR], team=("heavy", "scout"))
    alone.set("alive", "blue_1", False)
    alone.act(blue_0=FIRE)
    assert not alone.get("fired", "blue_0")
    helped = stage([(10, 20), (12, 40)], [(30.5, 20), FAR], team=("heavy", "scout"))
    helped.act(blue_0=FIRE)
    assert helped.get("fired", "blue_0")


@pytest.mark.parametrize(("weakest", "target"), [(0, "red_0"), (1, "red_1")])
def test_orders_choose_between_the_nearest_and_the_weakest(stage, weakest: int, target: str) -> None:
    scene = stage([(10, 20), (2, 50)], [(18, 20), (20, 23)])
    scene.set("hp", "red_1", 50)
    before = scene.get("hp", target)
    scene.act(blue_0={"fire": 1, "weakest": weakest})
    assert scene.get("hp", target) < before


def test_weapons_need_their_time_between_shots(stage) -> None:
    scene = stage([(10, 20)], [(20, 20)])
    scene.set("hp", "red_0", 1e4)
    fired = []
    for _ in range(9):
        scene.act(blue_0=FIRE)
        fired.append(scene.get("fired", "blue_0"))
    assert fired == [True, False, False] * 3


def test_a_target_that_crosses_too_fast_is_missed_at_close_range_only(stage) -> None:
    """A scout at 9 m/s crosses at 9 / distance radians per second; the medium's weapon follows 1.0."""
    for distance, hit in ((7, False), (12, True)):
        scene = stage([(10, 20)], [(10 + distance, 20)], team=("scout",))
        scene.sim.tracking[:] = CLASSES["medium"].tracking
        scene.sim.weapon_range[:] = 40
        scene.set("heading", "red_0", math.pi / 2)
        scene.set("y", "red_0", 20 - 9 * STEP / 2)
        scene.act(blue_0=FIRE, red_0={"forward": 1})
        assert scene.get("fired", "blue_0")
        assert (scene.get("hp", "red_0") < 70) is hit
    assert scene.sim.hit.sum() == 1


def test_heat_builds_up_goes_away_and_shuts_down(stage) -> None:
    scene = stage([(10, 20)], [(20, 20)])
    scene.set("hp", "red_0", 1e4)
    scene.act(blue_0=FIRE)
    assert scene.get("heat", "blue_0") == 18
    scene.act(blue_0=FIRE)
    assert scene.get("heat", "blue_0") == pytest.approx(18 - 3.2)
    scene.set("heat", "blue_0", 90)
    scene.set("cooldown", "blue_0", 0)
    scene.act(blue_0=FIRE)
    assert scene.get("shutdown", "blue_0") == 3.0
    fired = []
    for _ in range(8):
        scene.act(blue_0=FIRE)
        fired.append(scene.get("fired", "blue_0"))
    assert fired == [False] * 7 + [True]  # 3 s are over in the eighth step of 0.4 s
    assert scene.get("heat", "blue_0") == pytest.approx(90 - 3.2 + 18 - 8 * 3.2 + 18, rel=1e-5)


def test_those_who_shoot_at_the_same_time_share_what_there_was_to_take(stage) -> None:
    """Damage is credited in proportion and never exceeds the hit points; both sides may die at once: a draw."""
    scene = stage([(10, 20), (10, 23)], [(18, 21), FAR], team=("medium", "heavy"))
    scene.set("hp", "red_0", 19)
    scene.act(blue_0=FIRE, blue_1=FIRE)
    credited = scene.sim.damage[0, 0, :, 0]
    assert credited.sum() == pytest.approx(19, rel=1e-5)
    assert credited[0] / credited[1] == pytest.approx(15 / 23, rel=1e-5)
    duel = stage([(10, 20)], [(18, 20)])
    duel.set("hp", "blue_0", 1)
    duel.set("hp", "red_0", 1)
    duel.act(blue_0=FIRE, red_0=FIRE)
    assert duel.over
    assert duel.outcome() == ("draw", "elimination")


def test_the_destroyed_neither_move_nor_shoot_nor_see(stage) -> None:
    scene = stage([(10, 20), (2, 2)], [(18, 20), (55, 55)])
    scene.set("alive", "blue_0", False)
    scene.act(blue_0={"forward": 1, "turn": 1, "fire": 1})
    assert [scene.get(name, "blue_0") for name in ("x", "y", "heading", "fired")] == [10, 20, 0, False]
    assert not scene.sim.sight.seen[0, 0].any()


@pytest.mark.parametrize("team", [0, 1])
def test_who_holds_the_zone_alone_for_long_enough_wins(stage, team: int) -> None:
    """EB10: 15 s in the zone end the match, here after 38 steps of 0.4 s."""
    places = [[(30, 30)], [FAR]]
    scene = stage(places[team], places[1 - team])
    scene.act(37)
    assert not scene.over
    assert scene.sim.zone_score[0].tolist() == pytest.approx([14.8 * (1 - team), 14.8 * team], rel=1e-4)
    scene.act(1)
    assert scene.over
    assert scene.outcome() == (("blue", "red")[team], "zone")


def test_nobody_scores_in_a_contested_or_empty_zone(stage) -> None:
    contested = stage([(28, 30)], [(32, 30)])
    contested.act(20)
    empty = stage([(10, 10)], [FAR])
    empty.act(20)
    edge = stage([(30 - 7.01, 30)], [FAR])
    edge.act(20)
    for scene in (contested, empty, edge):
        assert scene.sim.zone_score.tolist() == [[0, 0]]
    barely = stage([(30 - 6.99, 30)], [FAR])
    barely.act(1)
    assert barely.sim.zone_score[0, 0] == pytest.approx(STEP)


def test_a_zone_can_be_held_in_parts(stage) -> None:
    scene = stage([(30, 30)], [FAR])
    scene.act(20)
    scene.set("x", "blue_0", 10)
    scene.act(5)
    scene.set("x", "blue_0", 30)
    scene.act(18)
    assert scene.over
    assert scene.sim.steps[0] == 43


def test_a_team_without_mechs_has_lost(stage) -> None:
    scene = stage([(10, 20)], [(18, 20)])
    scene.set("hp", "blue_0", 10)
    scene.act(red_0=FIRE)
    assert scene.outcome() == ("red", "elimination")
    assert scene.over


@pytest.mark.parametrize(
    ("zone", "hp", "winner"),
    [((2, 1), (10, 140), "blue"), ((1, 2), (140, 10), "red"), ((1, 1), (90, 80), "blue"), ((0, 0), (80, 90), "red"),
     ((0, 0), (70, 70), "draw")],
)  # fmt: skip
def test_when_time_is_up_the_zone_decides_then_the_hit_points(stage, zone, hp, winner: str) -> None:
    scene = stage([(10, 10)], [FAR], max_seconds=8.0)
    scene.sim.zone_score[0] = zone
    for agent, points in zip(("blue_0", "red_0"), hp, strict=True):
        scene.set("hp", agent, points)
    scene.act(19)
    assert not scene.over
    scene.act(1)
    assert scene.outcome() == (winner, "time")


def test_matches_beside_one_another_do_not_meet(scripted) -> None:
    """A match alone and the same match among others go the same way, bit for bit."""
    together = Simulation(EnvConfig(), 5)
    for match in range(5):
        together.begin(match, 100 + match)
    alone = [Simulation(EnvConfig(), 1) for _ in range(5)]
    for match, sim in enumerate(alone):
        sim.begin(0, 100 + match)
    plan = scripted["heuristic"]().plan
    for sim in (together, *alone):
        sim.look()
        for _ in range(60):
            sim.step(plan(sim))
    for name in ("x", "y", "heading", "hp", "heat", "cooldown", "shutdown", "velocity_x", "zone_score"):
        apart = np.concatenate([getattr(sim, name) for sim in alone])
        np.testing.assert_array_equal(getattr(together, name), apart)
