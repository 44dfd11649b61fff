"""Whether both teams have the same chances, and whether the scripted opponent is one to beat."""

from __future__ import annotations

import math

import numpy as np
import pytest

from twostep.worlds.skirmish import EnvConfig
from twostep.worlds.skirmish.control import Orders
from twostep.worlds.skirmish.observation import Observer
from twostep.worlds.skirmish.rewards import Ledger
from twostep.worlds.skirmish.simulation import Simulation

MECHS = ("hp", "heat", "cooldown", "shutdown", "alive")


def turn(original: Simulation, turned: Simulation) -> None:
    """Give `turned` the state of `original` after half a turn of the arena, with the teams swapped."""
    size = np.float32(original.config.size)
    for name in MECHS:
        setattr(turned, name, getattr(original, name)[:, ::-1].copy())
    turned.x, turned.y = size - original.x[:, ::-1], size - original.y[:, ::-1]
    turned.velocity_x, turned.velocity_y = -original.velocity_x[:, ::-1], -original.velocity_y[:, ::-1]
    turned.heading = (original.heading[:, ::-1] + np.float32(math.pi)).astype(np.float32)
    turned.zone_score = original.zone_score[:, ::-1].copy()
    turned.steps = original.steps.copy()
    turned.look()


def swapped(orders: Orders) -> Orders:
    return Orders(*(getattr(orders, name)[:, ::-1] for name in Orders.__dataclass_fields__))


@pytest.mark.parametrize("seed", range(3))
def test_a_match_turned_by_half_and_with_teams_swapped_goes_the_same_way(seed: int, scripted) -> None:
    """What either team sees, does, gets and wins, it would have seen, done, got and won on the other side."""
    config = EnvConfig()
    original, other = Simulation(config, 1), Simulation(config, 1)
    player, observer = scripted["heuristic"](), Observer(config)
    for sim in (original, other):
        sim.begin(0, seed)
        sim.look()
    turn(original, other)
    ledgers = [Ledger(original), Ledger(other)]
    while not original.reason[0]:
        np.testing.assert_allclose(observer.observe(original)[:, ::-1], observer.observe(other), atol=1e-4)
        orders = player.plan(original)
        mirrored = player.plan(other)
        np.testing.assert_allclose(orders.turn[:, ::-1], mirrored.turn, atol=1e-3)
        np.testing.assert_array_equal(orders.forward[:, ::-1], mirrored.forward)
        for ledger, sim, told in zip(ledgers, (original, other), (orders, swapped(orders)), strict=True):
            ledger.begin(0)
            sim.step(told)
            ledger.settle()
        np.testing.assert_allclose(original.x[:, ::-1], config.size - other.x, atol=1e-3)
        np.testing.assert_allclose(original.y[:, ::-1], config.size - other.y, atol=1e-3)
        np.testing.assert_allclose(original.hp[:, ::-1], other.hp, atol=1e-3)
        np.testing.assert_allclose(ledgers[0].rewards[:, ::-1], ledgers[1].rewards, atol=1e-3)
        assert original.reason[0] == other.reason[0]
        turn(original, other) if not original.reason[0] else None
    assert {int(original.winner[0]), int(other.winner[0])} in ({0}, {1, 2})


def won(outcomes: list[dict], team: str) -> float:
    return sum(outcome["winner"] == team for outcome in outcomes) / len(outcomes)


def test_both_teams_win_equally_often(contest, scripted) -> None:
    """Heuristic against heuristic: half of the matches each, within 3.3 standard errors."""
    outcomes = contest(scripted["heuristic"](), scripted["heuristic"](), 300)
    draws = won(outcomes, "draw")
    assert draws < 0.05
    assert abs(won(outcomes, "blue") + draws / 2 - 0.5) < 3.3 * 0.5 / math.sqrt(300)
    assert {outcome["reason"] for outcome in outcomes} >= {"zone", "elimination"}


@pytest.mark.parametrize("control", ["discrete", "continuous"])
def test_playing_at_random_loses_to_the_heuristic(control: str, contest, scripted) -> None:
    config = EnvConfig(control=control)
    assert won(contest(scripted["guessing"](), scripted["heuristic"](), 60, config), "red") >= 0.95


def test_a_team_that_plays_together_beats_the_heuristic(contest, scripted) -> None:
    """It is meant to be beaten: going for the zone at once and shooting at the weakest is enough."""
    assert won(contest(scripted["holding"](), scripted["heuristic"](), 80), "blue") >= 0.85


@pytest.mark.parametrize("missing", ["scout", "light", "medium", "heavy"])
def test_every_class_is_worth_having(missing: str, contest, scripted, monkeypatch) -> None:
    """Without any one of its mechs a team of equals mostly loses."""
    slot = EnvConfig().team.index(missing)
    begin = Simulation.begin

    def begin_without(self: Simulation, match: int, seed: int) -> None:
        begin(self, match, seed)
        self.alive[match, 0, slot], self.hp[match, 0, slot] = False, 0

    monkeypatch.setattr(Simulation, "begin", begin_without)
    assert won(contest(scripted["heuristic"](), scripted["heuristic"](), 40), "red") > 0.7
