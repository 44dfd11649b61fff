"""How good a policy is in skirmish: matches against the scripted opponent, or against any other."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from twostep.errors import ConfigError
from twostep.evaluation.intervals import rate_interval
from twostep.policies.playing import Player
from twostep.protocols import Step
from twostep.seeds import Seeds, row_seeds, whole_numbers
from twostep.worlds.skirmish import EnvConfig, HeuristicPolicy, SkirmishEnv, SkirmishRows
from twostep.worlds.skirmish.control import Orders, encode
from twostep.worlds.skirmish.geometry import Array
from twostep.worlds.skirmish.rows import Planner
from twostep.worlds.skirmish.simulation import REASONS, RUNNING, Simulation

MATCHES_PER_CALL = 16
"""How many matches the model plays in one call, always: the rounding of its products must not depend on the number."""
FIRST_OWN_SEED = 2**31
"""Seeds drawn for evaluation begin here; those that matches of training draw by themselves all lie below."""


@dataclass
class EvalStats:
    """What matches brought."""

    win_rate: float
    """Part of all matches, draws included; so are all means."""
    mean_hp_margin: float
    """Share of its hit points that the own team had left, minus the other team's."""
    mean_episode_length: float
    """Steps."""
    episodes: int
    draws: int = 0
    mean_return: float = math.nan
    """What an agent earned in a match, on average over the team."""
    ends: dict[str, int] = field(default_factory=dict[str, int])
    """How many matches ended by `zone`, `elimination` and `time`."""

    @property
    def wins(self) -> int:
        """Matches won."""
        return round(self.win_rate * self.episodes)

    @property
    def losses(self) -> int:
        """Matches lost."""
        return self.episodes - self.wins - self.draws

    @property
    def win_interval(self) -> tuple[float, float]:
        """Where the true rate of wins lies with 95 % confidence, by Wilson's score; NaN without matches."""
        return rate_interval(self.win_rate, self.episodes)

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as JSON can hold it."""
        return {
            "win_rate": self.win_rate,
            "win_interval": list(self.win_interval),
            "wins": self.wins,
            "losses": self.losses,
            "draws": self.draws,
            "mean_hp_margin": self.mean_hp_margin,
            "mean_episode_length": self.mean_episode_length,
            "mean_return": None if math.isnan(self.mean_return) else self.mean_return,
            "episodes": self.episodes,
            "ends": dict(self.ends),
        }

    def metrics(self) -> dict[str, float]:
        """Return what there is to log."""
        low, high = self.win_interval
        return {
            "win_rate": self.win_rate,
            "win_rate_low": low,
            "win_rate_high": high,
            "mean_hp_margin": self.mean_hp_margin,
            "mean_length": self.mean_episode_length,
            "episodes": float(self.episodes),
        }

    def __str__(self) -> str:
        low, high = self.win_interval
        ends = ", ".join(f"{count} by {reason}" for reason, count in self.ends.items())
        return (
            f"{self.wins} of {self.episodes} matches won, {self.draws} drawn: {self.win_rate:.1%} "
            f"(95 % interval {low:.1%} to {high:.1%}), hit points {self.mean_hp_margin:+.1%}, "
            f"length {self.mean_episode_length:.1f}{f', ended {ends}' if ends else ''}"
        )


def evaluate_vs_heuristic(
    model: Any,
    env_cfg: EnvConfig,
    episodes: int,
    seeds: Seeds,
    device: torch.device | str | None = None,
    save_replay: bool = False,
    *,
    deterministic: bool = True,
    num_envs: int = 64,
    opponent: Callable[[], Planner] | None = None,
) -> tuple[EvalStats, dict[str, Any] | None]:
    """Play matches as blue and say how they went; with `save_replay` also how the first one went, step by step.

    The same arguments give the same result, also with another `num_envs`. The model keeps the mode it is in.

    Args:
        model: An `ActorCritic`, or any network that `as_policy` takes.
        seeds: The seed of each match. From a single number as many are drawn as there are episodes, none of which a
            match in training draws.
        device: Where the model computes; None asks its parameters.
        deterministic: Act by the mode of the distribution instead of sampling from it.
        num_envs: How many matches run at the same time at most, rounded up to a multiple of 16.
        opponent: A function that makes the player of the other team, an object with `plan(simulation)`; None for
            `HeuristicPolicy`.
    """
    own_seeds = _match_seeds(episodes, seeds)
    if num_envs < 1:
        raise ConfigError(f"num_envs={num_envs} must be 1 or more: 64 matches at the same time are the default.")
    at_once = -(-num_envs // MATCHES_PER_CALL) * MATCHES_PER_CALL
    results: list[_Result] = []
    replay = None
    for first in range(0, episodes, at_once):
        played = _Round(env_cfg, own_seeds[first : first + at_once], opponent or HeuristicPolicy)
        results += played.play(model, deterministic, device)
        if save_replay and first == 0:
            replay = played.first_match()
    return _stats(results), replay


def _match_seeds(episodes: int, seeds: Seeds) -> list[int]:
    if episodes < 1:
        raise ConfigError(f"episodes={episodes} must be 1 or more: nothing else can be measured.")
    if np.ndim(seeds) == 0:
        (seed,) = whole_numbers("seeds", [seeds])
        return [FIRST_OWN_SEED + own for own in row_seeds(seed, episodes)]
    own_seeds = whole_numbers("seeds", seeds)
    if len(own_seeds) != episodes:
        raise ConfigError(
            f"{len(own_seeds)} seeds came for episodes={episodes}, but every match has one of its own. Pass "
            f"episodes={len(own_seeds)}, or a single number from which all seeds are drawn."
        )
    return own_seeds


@dataclass
class _Result:
    """How one match went."""

    outcome: dict[str, Any]
    mean_return: float


class _Round:
    """Matches that run at the same time, each played once."""

    def __init__(self, config: EnvConfig, seeds: list[int], opponent: Callable[[], Planner]) -> None:
        self.config, self.seeds = config, seeds
        self._opponent = _Overheard(opponent())
        self._env = SkirmishRows(config, len(seeds), agent_ids="blue_*", opponent=lambda: self._opponent)
        self._first_actions: list[Array] = []

    def play(self, model: Any, deterministic: bool, device: torch.device | str | None) -> list[_Result]:
        """Play until every match has ended once; what the environment plays after that does not count."""
        env, count = self._env, len(self.seeds)
        results: list[_Result | None] = [None] * count
        returns = np.zeros(count)
        with ExitStack() as stack:
            team = _Team(model, env, None if deterministic else self.seeds, device, stack)
            step = env.reset(self.seeds)
            while None in results:
                actions = team.act(step)
                if results[0] is None:
                    self._first_actions.append(actions[: env.num_agents])
                step = env.step(actions)
                returns += np.asarray(step.rewards).reshape(count, -1).mean(1)
                for row, info in step.infos.items():
                    match = row // env.num_agents
                    if "outcome" in info and results[match] is None:
                        results[match] = _Result(info["outcome"], float(returns[match]))
        return [result for result in results if result is not None]

    def first_match(self) -> dict[str, Any]:
        """Return the replay of the first match, played again by the orders that both teams gave."""
        env = SkirmishEnv(replace(self.config, record_replay=True))
        env.reset(self.seeds[0])
        for blue, both in zip(self._first_actions, self._opponent.actions, strict=False):
            env.step(dict(zip(env.possible_agents, [*blue, *both[len(blue) :]], strict=True)))
        return env.get_replay()


class _Overheard:
    """Another player, whose actions in the first match are kept."""

    def __init__(self, player: Planner) -> None:
        self._player = player
        self.actions: list[Array] = []

    def plan(self, sim: Simulation) -> Orders:
        """See `Planner`."""
        orders = self._player.plan(sim)
        first = encode(orders, sim.config.control)[0]
        self.actions.append(first.reshape(-1, first.shape[-1]))
        return orders


class _Team:
    """The model in all matches of a round, a fixed number of them per call; rows that are missing are padded.

    The rounding of a row's numbers may depend on how many rows a product has, and on where the row is among them. So
    neither may depend on how many matches run at the same time.
    """

    def __init__(
        self,
        model: Any,
        env: SkirmishRows,
        sampling_seeds: list[int] | None,
        device: torch.device | str | None,
        stack: ExitStack,
    ) -> None:
        self._rows = MATCHES_PER_CALL * env.num_agents
        self._players: list[Player] = []
        for first in range(0, env.num_envs, MATCHES_PER_CALL):
            seed = None
            if sampling_seeds is not None:
                entropy = sampling_seeds[first : first + MATCHES_PER_CALL]
                seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
            player = Player(model, env.action_space, self._rows, seed, device=device)
            self._players.append(stack.enter_context(player))

    def act(self, step: Step) -> Array:
        """Return one action per row."""
        obs, starts = (self._padded(array) for array in (step.obs, step.episode_starts))
        actions = [player.act(Step(*given)) for player, *given in zip(self._players, obs, starts, strict=True)]
        return np.concatenate(actions)[: len(step.obs)]

    def _padded(self, array: Array) -> Array:
        padded = np.zeros((len(self._players) * self._rows, *array.shape[1:]), dtype=array.dtype)
        padded[: len(array)] = array
        return padded.reshape(len(self._players), self._rows, *array.shape[1:])


def _stats(results: list[_Result]) -> EvalStats:
    count = len(results)
    outcomes = [result.outcome for result in results]
    winners = Counter(outcome["winner"] for outcome in outcomes)
    ends = Counter(outcome["reason"] for outcome in outcomes)
    return EvalStats(
        win_rate=winners["blue"] / count,
        mean_hp_margin=float(np.mean([blue - red for blue, red in (outcome["hp"] for outcome in outcomes)])),
        mean_episode_length=float(np.mean([outcome["frames"] for outcome in outcomes])),
        episodes=count,
        draws=winners["draw"],
        mean_return=float(np.mean([result.mean_return for result in results])),
        ends={reason: ends[reason] for reason in REASONS[RUNNING + 1 :]},
    )
