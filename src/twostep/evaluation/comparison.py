"""Which of several ways is better: the same seeds for each, and how sure the difference is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from twostep.errors import ConfigError
from twostep.evaluation.intervals import Interval, mean_interval, welch_interval

Strategy = Callable[[int], Any]
"""`fn(seed)` -> what `PPOTrainer.train` returns, or any mapping by names of lists or single numbers, or one number."""

STEPS = "timesteps"


@dataclass(frozen=True)
class Curve:
    """What was measured in one run, over the steps it took."""

    steps: tuple[float, ...]
    values: tuple[float, ...]


Score = Callable[[Curve], float]


def over_training(curve: Curve) -> float:
    """Return the mean of the curve over its steps: how fast and how far a run came."""
    steps, values = np.asarray(curve.steps), np.asarray(curve.values)
    if len(steps) < 2 or steps[-1] <= steps[0]:
        return float(values.mean()) if len(values) else math.nan
    return float(((values[1:] + values[:-1]) / 2 * np.diff(steps)).sum() / (steps[-1] - steps[0]))


def at_the_end(curve: Curve) -> float:
    """Return the mean of the curve's last tenth: how far a run came, however long it took."""
    return float(np.mean(curve.values[-max(1, len(curve.values) // 10) :])) if curve.values else math.nan


@dataclass(frozen=True)
class Arm:
    """All runs of one strategy, in the order of the seeds."""

    name: str
    scores: tuple[float, ...]
    curves: tuple[Curve, ...]

    @property
    def mean(self) -> float:
        """Mean score."""
        return float(np.mean(self.scores))

    @property
    def interval(self) -> Interval:
        """Where the true mean score lies with 95 % confidence."""
        return mean_interval(self.scores)


@dataclass(frozen=True)
class Difference:
    """How much better an arm is than the first one."""

    name: str
    mean: float
    interval: Interval
    """95 % confidence: of the paired differences, or Welch's where runs of one seed have nothing in common."""
    better: int
    """On how many seeds it scored higher."""

    @property
    def verdict(self) -> str:
        """`better`, `worse`, or that the runs do not tell."""
        low, high = self.interval
        if low > 0:
            return "better"
        return "worse" if high < 0 else "no difference shown"


@dataclass(frozen=True)
class Comparison:
    """Strategies over the same seeds; the first is what the others are held against."""

    measure: str
    seeds: tuple[int, ...]
    arms: tuple[Arm, ...]
    paired: bool = True

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Of each arm but the first, from the first."""
        return tuple(self._difference(arm) for arm in self.arms[1:])

    def _difference(self, arm: Arm) -> Difference:
        first = self.arms[0]
        apart = [b - a for a, b in zip(first.scores, arm.scores, strict=True)]
        interval = mean_interval(apart) if self.paired else welch_interval(first.scores, arm.scores)
        return Difference(arm.name, float(np.mean(apart)), interval, sum(difference > 0 for difference in apart))

    def __str__(self) -> str:
        width = max(len(arm.name) for arm in self.arms)
        kind = "paired" if self.paired else "Welch"
        lines = [f"{self.measure} over {len(self.seeds)} seeds, 95 % intervals ({kind})"]
        for arm in self.arms:
            low, high = arm.interval
            lines.append(f"  {arm.name:{width}}  {arm.mean:9.2f}  ({low:.2f} to {high:.2f})")
        for one in self.differences:
            low, high = one.interval
            count = f"higher on {one.better} of {len(self.seeds)} seeds"
            lines.append(
                f"  {one.name} minus {self.arms[0].name}: {one.mean:+.2f} ({low:+.2f} to {high:+.2f}), {count}: "
                f"{one.verdict}"
            )
        return "\n".join(lines)


def compare(
    strategies: Mapping[str, Strategy],
    seeds: Iterable[int],
    *,
    measure: str = "mean_reward",
    score: Score = over_training,
    paired: bool = True,
) -> Comparison:
    """Run every strategy with every seed, and say how far apart their scores are.

    Runs of one seed are compared with one another, which is right where the seed decides something they share, such as
    first weights or environments. `paired=False` takes all runs as independent.

    Args:
        strategies: By name; each is given a seed, trains or collects, and returns what it measured.
        seeds: At least two; five to ten tell apart what matters.
        measure: Which of the returned numbers is compared; higher is better.
        score: Makes one number of a curve: `over_training`, `at_the_end`, or a function of yours.
    """
    chosen = tuple(seeds)
    if len(strategies) < 2:
        raise ConfigError(f"strategies={list(strategies)} is nothing to compare: pass two or more, by name.")
    if len(chosen) < 2 or len(set(chosen)) < len(chosen):
        raise ConfigError(f"seeds={list(chosen)} must be two or more different ones: one run says nothing of chance.")
    curves: dict[str, list[Curve]] = {name: [] for name in strategies}
    for seed in chosen:  # in turn, so that a machine that slows down slows all
        for name, strategy in strategies.items():
            curves[name].append(_curve(strategy(seed), measure, name))
    arms = tuple(_arm(name, runs, score) for name, runs in curves.items())
    return Comparison(measure, chosen, arms, paired)


def _arm(name: str, runs: Sequence[Curve], score: Score) -> Arm:
    scores = tuple(score(curve) for curve in runs)
    if not all(math.isfinite(one) for one in scores):
        raise ConfigError(
            f"{name!r} scored {list(scores)}, which cannot be compared: let it run until something was measured."
        )
    return Arm(name, scores, tuple(runs))


def _curve(result: Any, measure: str, name: str) -> Curve:
    """Read what a strategy returned; entries where nothing was measured yet are left out."""
    if not isinstance(result, Mapping):
        return Curve((0.0,), (float(result),))
    if measure not in result:
        raise ConfigError(f"{name!r} returned no {measure!r} but {sorted(result)}: pass one of these as measure.")
    found: Any = result[measure]
    values = [float(found)] if isinstance(found, (int, float)) else [float(value) for value in found]
    steps = result.get(STEPS)
    places = [float(step) for step in steps] if steps is not None and len(values) > 1 else list(range(len(values)))
    known = [(step, value) for step, value in zip(places, values, strict=True) if math.isfinite(value)]
    return Curve(tuple(float(step) for step, _ in known), tuple(value for _, value in known))
