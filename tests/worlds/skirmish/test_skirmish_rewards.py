"""What is earned: part by part, and as a whole."""

from __future__ import annotations

import numpy as np
import pytest

from twostep.worlds.skirmish import EnvConfig, RewardWeights
from twostep.worlds.skirmish.matches import Matches
from twostep.worlds.skirmish.rewards import PARTS

FAR = (55.0, 55.0)
FIRE = {"fire": 1}
ONES = dict.fromkeys(PARTS, 1.0)


def test_rewards_are_the_sum_of_their_parts_in_every_match(scripted) -> None:
    """Parts add up over a match; those of the destroyed stand still; team parts are one side's gain, other's loss."""
    config = EnvConfig(size=30.0, rewards=RewardWeights(**ONES), max_seconds=30.0)
    matches = Matches(config, 6)
    sim, ledger = matches.simulation, matches.ledger
    matches.begin((match, match) for match in range(6))
    totals, plan = np.zeros_like(ledger.totals), scripted["heuristic"]().plan
    began = sim.zone_distance.copy()
    steps = 0
    while not sim.reason.any():
        sim.step(plan(sim))
        ledger.settle()
        totals += ledger.parts
        steps += 1
        np.testing.assert_allclose(ledger.rewards, ledger.parts.sum(-1), atol=1e-6)
        assert not ledger.parts[~sim.acted].any()
        part = dict(zip(PARTS, np.moveaxis(ledger.parts, -1, 0), strict=True))
        dealt, taken = ((part[name] * sim.max_hp).sum(-1) for name in ("damage_dealt", "damage_taken"))
        assert (dealt >= 0).all()
        assert (taken <= 0).all()
        deaths = sim.died.sum(-1)
        np.testing.assert_allclose(part["kill"].sum(-1), deaths[:, ::-1], atol=1e-4)
        np.testing.assert_allclose(part["death"].sum(-1), -deaths, atol=1e-4)
        for name in ("zone", "terminal"):
            blue, red = (part[name].sum(-1) / sim.acted.sum(-1)).T  # nothing for the destroyed, the same for all others
            np.testing.assert_allclose(blue, -red, atol=1e-6)
    assert steps > 10
    np.testing.assert_allclose(ledger.totals, totals, atol=1e-4)
    lost = (sim.max_hp - sim.hp) / sim.max_hp
    np.testing.assert_allclose(-totals[..., PARTS.index("damage_taken")], lost, atol=1e-4)
    approached = totals[..., PARTS.index("approach")][sim.alive]
    np.testing.assert_allclose(approached, ((began - sim.zone_distance) / config.size)[sim.alive], atol=1e-4)


def test_approach_is_paid_by_distance(stage) -> None:
    scene = stage([(10, 30)], [FAR])
    scene.act(blue_0={"forward": 1})
    assert scene.part("approach", "blue_0") == pytest.approx(2.4 / 60, rel=1e-4)
    assert scene.part("approach", "red_0") == 0
    scene.act(blue_0={"forward": -1})
    assert scene.part("approach", "blue_0") == pytest.approx(-0.6 * 2.4 / 60, rel=1e-4)


def test_the_zone_is_paid_to_the_whole_team(stage) -> None:
    scene = stage([(30, 30), (2, 2)], [FAR, (55, 5)])
    scene.act()
    assert [scene.part("zone", agent) for agent in scene.sim.config.agent_ids] == pytest.approx(
        [0.4 / 15, 0.4 / 15, -0.4 / 15, -0.4 / 15]
    )


def test_shots_are_paid_to_who_fired_and_charged_to_who_was_hit(stage) -> None:
    weights = RewardWeights(damage_dealt=2, damage_taken=3, kill=5, death=7)
    scene = stage([(10, 20), (10, 23)], [(18, 21), FAR], team=("medium", "heavy"), rewards=weights)
    scene.set("hp", "red_0", 19)
    scene.act(blue_0=FIRE, blue_1=FIRE)
    shares = 15 / 38, 23 / 38
    for agent, share in zip(("blue_0", "blue_1"), shares, strict=True):
        assert scene.part("damage_dealt", agent) == pytest.approx(2 * 19 / 140 * share, rel=1e-4)
        assert scene.part("kill", agent) == pytest.approx(5 * share, rel=1e-4)
    assert scene.part("damage_taken", "red_0") == pytest.approx(-3 * 19 / 140, rel=1e-4)
    assert scene.part("death", "red_0") == -7
    assert scene.part("death", "red_1") == scene.part("damage_taken", "red_1") == 0


def test_the_end_is_paid_to_those_who_saw_it(stage) -> None:
    scene = stage([(30, 30), (2, 2)], [FAR, (55, 5)], rewards=RewardWeights(terminal=3))
    scene.set("alive", "red_1", False)
    scene.act(38)
    assert scene.over
    assert [scene.part("terminal", agent) for agent in scene.sim.config.agent_ids] == [3, 3, -3, 0]


def test_a_draw_pays_nobody(stage) -> None:
    scene = stage([(10, 10)], [(50, 50)], max_seconds=2.0)
    scene.act(5)
    assert scene.outcome() == ("draw", "time")
    assert scene.part("terminal", "blue_0") == scene.part("terminal", "red_0") == 0


def test_fear_costs_matches_so_suffering_is_free_by_default() -> None:
    """Measured: with charges for damage and death policies win less the longer they learn."""
    assert RewardWeights().damage_taken == RewardWeights().death == 0
