"""What the environment of one match and the rows of many have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from gymnasium import spaces

from twostep.errors import EnvError, StateError
from twostep.worlds.skirmish.config import EnvConfig, HeuristicConfig
from twostep.worlds.skirmish.control import action_space, decode
from twostep.worlds.skirmish.geometry import Array
from twostep.worlds.skirmish.observation import Observer
from twostep.worlds.skirmish.replay import Recorder
from twostep.worlds.skirmish.rewards import Ledger
from twostep.worlds.skirmish.simulation import BLUE, MOVING, RUNNING, WINNERS, Simulation


class Matches:
    """Some matches with their observations, rewards and, where they are recorded, replays."""

    def __init__(self, config: EnvConfig, num_matches: int) -> None:
        self.config = config
        self.simulation = Simulation(config, num_matches)
        self.observer = Observer(config)
        self.ledger = Ledger(self.simulation)
        self.observation_space = self.observer.space
        self.action_space: spaces.Space[Any] = action_space(config.control)
        self.outcomes: list[dict[str, Any] | None] = [None] * num_matches
        """How the match went that ended last in each place."""
        recorded = range(num_matches if config.record_replay else 0)
        self._recorders = [Recorder(self.simulation, match) for match in recorded]
        self._choices = getattr(self.action_space, "nvec", None)

    def begin(self, seeds: Iterable[tuple[int, int]]) -> None:
        """Start matches anew, each given with its seed."""
        started = list(seeds)
        for match, seed in started:
            self.simulation.begin(match, seed)
        self.simulation.look()
        for match, _ in started:
            self.ledger.begin(match)
            if self._recorders:
                self._recorders[match].begin()

    def step(self, actions: Array) -> list[int]:
        """Let everybody act, `[M, 2, K, n]`; return which matches are over."""
        self.simulation.step(decode(actions, self.config.control))
        self.ledger.settle()
        for match, recorder in enumerate(self._recorders):
            recorder.record(self.ledger.rewards[match])
        over = np.flatnonzero(self.simulation.reason != RUNNING).tolist()
        for match in over:
            self.outcomes[match] = self.simulation.outcome(match)
        return over

    def replay(self, match: int) -> dict[str, Any]:
        """Return a match so far, as `save_replay` takes it."""
        if not self._recorders:
            raise EnvError("Nothing was recorded. Make the environment with EnvConfig(record_replay=True).")
        return self._recorders[match].replay()

    def team_alive(self, match: int) -> dict[str, int]:
        """Return how many mechs of each team are left."""
        return dict(zip(WINNERS[BLUE:], self.simulation.alive[match].sum(-1).tolist(), strict=True))

    def set_heuristic(self, match: int, changes: Mapping[str, Any]) -> None:
        """Let the scripted opponent play otherwise from now on."""
        heuristics = self.simulation.heuristics
        heuristics[match] = heuristics[match].changed(changes)

    def state_of(self, match: int) -> dict[str, Any]:
        """Return everything about one match that the next step depends on."""
        if self._recorders:
            raise StateError("Matches that are recorded have no state to keep: do not record them, or begin anew.")
        sim, ledger = self.simulation, self.ledger
        moving = {name: getattr(sim, name)[match].copy() for name in MOVING}
        heuristic = asdict(sim.heuristics[match])
        return {"seed": sim.seeds[match], **moving, "totals": ledger.totals[match].copy(), "heuristic": heuristic}

    def go_on(self, states: Sequence[dict[str, Any]]) -> None:
        """Let every match go on where `state_of` was taken."""
        sim, ledger = self.simulation, self.ledger
        self.begin((match, state["seed"]) for match, state in enumerate(states))
        for match, state in enumerate(states):
            for name in MOVING:
                getattr(sim, name)[match] = state[name]
            sim.heuristics[match] = HeuristicConfig(**state["heuristic"])
        sim.look()
        for match, state in enumerate(states):
            ledger.begin(match)
            ledger.totals[match] = state["totals"]

    def check_actions(self, actions: Any, shape: tuple[int, ...]) -> Array:
        """Return actions of `shape` plus their own dimension as an array, or refuse them."""
        space = self.action_space
        array = np.asarray(actions)
        expected = (*shape, *(space.shape or ()))
        if array.shape != expected:
            raise EnvError(
                f"Actions of shape {list(array.shape)} do not fit: {list(expected)} is needed, one {space} per agent."
            )
        if self._choices is None:
            array = array.astype(np.float32, copy=False)
            if not np.isfinite(array).all():
                raise EnvError(f"Actions hold {array[~np.isfinite(array)][0]}, but must be finite: look at the policy.")
            return array
        if array.dtype.kind not in "iu":
            raise EnvError(f"Actions of dtype {array.dtype} are no choices: {space} takes integers.")
        if (array < 0).any() or (array >= self._choices).any():
            wrong = array[((array < 0) | (array >= self._choices)).any(-1)][0].tolist()
            raise EnvError(f"The action {wrong} is outside of {space}: choices count from 0.")
        return array

    def info(self, match: int, team: int, slot: int) -> dict[str, Any]:
        """Return what an agent is told of the last step; more of it where that ended the agent or the match."""
        sim, ledger = self.simulation, self.ledger
        info: dict[str, Any] = {"reward_parts": ledger.part_dict(ledger.parts[match, team, slot])}
        over = sim.reason[match] != RUNNING
        if over or not sim.alive[match, team, slot]:
            info["episode_parts"] = ledger.part_dict(ledger.totals[match, team, slot])
        if over:
            outcome = self.outcomes[match]
            assert outcome is not None
            info |= {"outcome": outcome, "won": float(outcome["winner"] == WINNERS[team + 1])}
        return info
