"""How good a policy is: whole episodes, chosen without regard to how they went."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from twostep.environments import adapted
from twostep.errors import ConfigError
from twostep.evaluation.intervals import mean_interval
from twostep.policies.playing import Player, to_numpy
from twostep.protocols import Step


@dataclass
class EpisodeStats:
    """What episodes brought, row after row of the environment and in the order they were played there."""

    returns: list[float]
    """Sum of raw rewards, undiscounted."""
    lengths: list[int]
    infos: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """What the environment said at the end of each."""

    @property
    def mean_return(self) -> float:
        """NaN without episodes, as all means here."""
        return float(np.mean(self.returns)) if self.returns else math.nan

    @property
    def std_return(self) -> float:
        """Population deviation, as published scores usually state it."""
        return float(np.std(self.returns)) if self.returns else math.nan

    @property
    def mean_length(self) -> float:
        """Steps per episode."""
        return float(np.mean(self.lengths)) if self.lengths else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Where the true mean return lies with 95 % confidence, by Student's t; NaN for fewer than two episodes."""
        return mean_interval(self.returns)

    def __len__(self) -> int:
        return len(self.returns)

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"return {self.mean_return:.2f} (95 % interval {low:.2f} to {high:.2f}), "
            f"length {self.mean_length:.1f}, {len(self)} episodes"
        )


def evaluate(
    policy: Any,
    env: Any,
    episodes: int = 10,
    seed: int = 0,
    deterministic: bool = True,
    *,
    device: torch.device | str | None = None,
) -> EpisodeStats:
    """Play exactly `episodes` whole episodes and say how they went; the same seed gives the same episodes.

    Each row plays a number of episodes that is fixed beforehand. Taking whichever end first would favour short ones.

    Args:
        env: Whatever `PPOTrainer` takes.
        deterministic: Act by the mode of the distribution instead of sampling from it.
        device: Where the policy computes; None asks its parameters, or takes the CPU where it has none.
    """
    if episodes < 1:
        raise ConfigError(f"episodes={episodes} must be 1 or more: nothing else can be measured.")
    env = adapted(env)
    tally = _Tally(episodes, env.num_rows)
    with Player(policy, env.action_space, env.num_rows, None if deterministic else seed, device=device) as player:
        step = env.reset(seed)
        while not tally.complete:
            step = env.step(player.act(step))
            tally.count(step)
    return tally.stats()


class _Tally:
    """Counts the episodes that each row owes."""

    def __init__(self, episodes: int, rows: int) -> None:
        self.owed = np.array([episodes // rows + (row < episodes % rows) for row in range(rows)])
        self.returns = np.zeros(rows)
        self.lengths = np.zeros(rows, dtype=np.int64)
        self.ended: list[list[tuple[float, int, dict[str, Any]]]] = [[] for _ in range(rows)]

    @property
    def complete(self) -> bool:
        return not self.owed.any()

    def count(self, step: Step) -> None:
        """Take in one step: phantom steps count for nothing, and nothing of an episode that a failure broke off."""
        rewards, terminated, truncated = map(to_numpy, (step.rewards, step.terminated, step.truncated))
        valid = np.ones(len(rewards), dtype=np.bool_) if step.valid is None else to_numpy(step.valid)
        self.returns += np.where(valid, rewards, 0.0)
        self.lengths += valid
        ended = valid & (terminated | truncated)
        for row in np.flatnonzero(ended & (self.owed > 0)).tolist():
            info = dict(step.infos.get(row, {}))
            self.ended[row].append((float(self.returns[row]), int(self.lengths[row]), info))
            self.owed[row] -= 1
        over = ended | (truncated & ~valid)
        self.returns[over] = 0.0
        self.lengths[over] = 0

    def stats(self) -> EpisodeStats:
        played = [episode for row in self.ended for episode in row]
        return EpisodeStats(
            [ret for ret, _, _ in played], [length for _, length, _ in played], [i for _, _, i in played]
        )
