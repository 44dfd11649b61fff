"""Scenes for skirmish: matches whose walls, places and orders a test decides."""

from __future__ import annotations

import numpy as np
import pytest

from twostep.worlds.skirmish import EnvConfig, HeuristicPolicy
from twostep.worlds.skirmish import simulation as simulation_module
from twostep.worlds.skirmish.arena import Arena
from twostep.worlds.skirmish.control import Orders, encode
from twostep.worlds.skirmish.matches import Matches
from twostep.worlds.skirmish.simulation import Simulation


class Scene:
    """One match on a stage of the test's own; `act` takes orders by agent and leaves everybody else standing."""

    def __init__(self, config: EnvConfig) -> None:
        self.matches = Matches(config, 1)
        self.sim = self.matches.simulation
        self.matches.begin([(0, 0)])
        self.over = False

    def set(self, name: str, agent: str, value: float) -> None:
        """Change one number of an agent's state: `x`, `heading`, `hp`, ..."""
        getattr(self.sim, name)[0][self.place(agent)] = value
        self.sim.look()
        self.matches.ledger.begin(0)

    def get(self, name: str, agent: str) -> float:
        return getattr(self.sim, name)[0][self.place(agent)].item()

    def place(self, agent: str) -> tuple[int, int]:
        return divmod(self.sim.config.agent_ids.index(agent), self.sim.team_size)

    def act(self, steps: int = 1, **orders: dict[str, float]) -> None:
        """Play `steps` decisions, or fewer where the match ends: `act(blue_0={"forward": 1, "fire": 1})`."""
        told = no_orders(self.sim)
        for agent, order in orders.items():
            for name, value in order.items():
                getattr(told, name)[0][self.place(agent)] = value
        for _ in range(steps):
            self.sim.step(told)
            self.matches.ledger.settle()
            self.over = bool(self.sim.reason[0])
            if self.over:
                break

    def outcome(self) -> tuple[str, str]:
        outcome = self.sim.outcome(0)
        return outcome["winner"], outcome["reason"]

    def part(self, name: str, agent: str) -> float:
        ledger = self.matches.ledger
        return ledger.part_dict(ledger.parts[0][self.place(agent)])[name]

    def observe(self, agent: str) -> np.ndarray:
        return self.matches.observer.observe(self.sim)[0][self.place(agent)]


def no_orders(sim: Simulation) -> Orders:
    still = (np.zeros(sim.shape, dtype=np.float32) for _ in range(3))
    return Orders(*still, *(np.zeros(sim.shape, dtype=np.bool_) for _ in range(2)))


@pytest.fixture
def stage(monkeypatch):
    """A function: where blue and red begin, and walls, to a `Scene`; blue looks to the right, red to the left."""

    def build(blue, red, walls=(), **settings) -> Scene:
        x, y = (
            np.array([[place[axis] for place in team] for team in (blue, red)], dtype=np.float32) for axis in (0, 1)
        )
        arena = Arena(np.array(walls, dtype=np.float32).reshape(-1, 4), x, y)
        monkeypatch.setattr(simulation_module, "draw_arena", lambda config, seed: arena)
        settings = {"team": ("medium",) * len(blue), "walls": 2 * ((len(walls) + 1) // 2)} | settings
        return Scene(EnvConfig(**settings))

    return build


class Holding:
    """A scripted team that plays together: all go into the zone at once, stand in it and shoot at the weakest."""

    def __init__(self) -> None:
        self.driver, self.fighter = HeuristicPolicy(), HeuristicPolicy()

    def plan(self, sim: Simulation) -> Orders:
        config = sim.config
        rush = type(config.heuristic)(engage=0.0, spread=0.4)
        orders, fight = HeuristicPolicy(rush).plan(sim), self.fighter.plan(sim)
        inside = sim.zone_distance < 0.75 * config.zone_radius
        orders.forward = np.where(inside, np.float32(0), orders.forward)
        orders.turn = np.where(inside & sim.sight.seen.any(-1, keepdims=True), fight.turn, orders.turn)
        orders.weakest[...] = True
        return orders


class Guessing:
    """Plays at random."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def plan(self, sim: Simulation) -> Orders:
        forward, left, turn = self.rng.uniform(-1, 1, (3, *sim.shape)).astype(np.float32)
        fire, weakest = self.rng.random((2, *sim.shape)) < 0.5
        return Orders(forward, left, turn, fire, weakest)


@pytest.fixture(scope="session")
def scripted():
    """Players by name."""
    return {"heuristic": HeuristicPolicy, "holding": Holding, "guessing": Guessing}


@pytest.fixture(scope="session")
def contest():
    """A function: play many matches, blue against red, and return the outcome of each."""

    def play(blue, red, num_matches: int, config: EnvConfig | None = None, seed: int = 0) -> list[dict]:
        config = config or EnvConfig()
        matches = Matches(config, num_matches)
        matches.begin((match, seed + match) for match in range(num_matches))
        outcomes: list = [None] * num_matches
        while None in outcomes:
            plans = blue.plan(matches.simulation), red.plan(matches.simulation)
            actions = [encode(plan, config.control) for plan in plans]
            for match in matches.step(np.concatenate([actions[0][:, :1], actions[1][:, 1:]], axis=1)):
                outcomes[match] = outcomes[match] or matches.simulation.outcome(match)
        return outcomes

    return play


@pytest.fixture(scope="session")
def standing_orders():
    """A function: orders for a simulation in which nobody does anything."""
    return no_orders
