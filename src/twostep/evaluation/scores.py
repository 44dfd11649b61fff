"""What a suite brought: numbers for each case, each category and the whole, with intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from twostep.evaluation.intervals import UNKNOWN, Interval, mean_interval, means_interval, rate_interval
from twostep.suites import category_of


@dataclass
class CaseScores:
    """What the episodes of one case brought, environment after environment and in the order they were played there."""

    name: str
    returns: list[float] = field(default_factory=list[float])
    """Sum of raw rewards; where the policy plays many agents, the mean over them."""
    lengths: list[int] = field(default_factory=list[int])
    results: list[float] = field(default_factory=list[float])
    """1 for won, 0.5 for drawn, 0 for lost; empty where the environment does not tell."""
    seconds: float = 0.0
    cut: int = 0
    """Episodes that were cut after `max_steps`."""
    out_of_time: bool = False
    """Whether `max_time_s` ended the case before all episodes were played."""

    @property
    def score(self) -> float:
        """The rate of wins where the environment tells who won, else the mean return; NaN without episodes."""
        return self.win_rate if self.results else self.mean_return

    @property
    def interval(self) -> Interval:
        """Where the true score lies with 95 % confidence."""
        return self.win_interval if self.results else self.return_interval

    @property
    def mean_return(self) -> float:
        """NaN without episodes, as all means here."""
        return _mean(self.returns)

    @property
    def return_interval(self) -> Interval:
        """By Student's t; NaN for fewer than two episodes."""
        return mean_interval(self.returns)

    @property
    def mean_length(self) -> float:
        """Steps per episode."""
        return _mean(self.lengths)

    @property
    def wins(self) -> int:
        """Episodes won."""
        return self.results.count(1.0)

    @property
    def win_rate(self) -> float:
        """Part of all episodes, draws included; NaN where the environment does not tell."""
        return self.wins / len(self.results) if self.results else math.nan

    @property
    def win_interval(self) -> Interval:
        """By Wilson's score."""
        return rate_interval(self.win_rate, len(self.results)) if self.results else UNKNOWN

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as JSON can hold it, null for what is not known."""
        return {
            "score": _known(self.score),
            "interval": _known_interval(self.interval),
            "mean_return": _known(self.mean_return),
            "return_interval": _known_interval(self.return_interval),
            "win_rate": _known(self.win_rate),
            "win_interval": _known_interval(self.win_interval),
            "wins": self.wins if self.results else None,
            "draws": self.results.count(0.5) if self.results else None,
            "mean_length": _known(self.mean_length),
            "episodes": len(self.returns),
            "cut": self.cut,
            "out_of_time": self.out_of_time,
            "seconds": round(self.seconds, 3),
            "returns": self.returns,
            "lengths": self.lengths,
            "results": self.results,
        }


@dataclass
class CategoryScores:
    """What the cases of one category brought; every case counts alike, however many episodes it had."""

    name: str
    cases: list[CaseScores]

    @property
    def judged_by_wins(self) -> bool:
        """Whether all its cases tell who won."""
        return all(case.results for case in self.cases)

    @property
    def score(self) -> float:
        """The mean of the cases' rates of wins, or, where not all tell, of their mean returns."""
        wins = self.judged_by_wins
        return float(np.mean([case.win_rate if wins else case.mean_return for case in self.cases]))

    @property
    def interval(self) -> Interval:
        """Where the true score lies with 95 % confidence, by Student's t or Wilson's score."""
        if not self.judged_by_wins:
            return means_interval([case.returns for case in self.cases])
        trials = len(self.cases) ** 2 / sum(1 / len(case.results) for case in self.cases)
        return rate_interval(self.score, trials)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        names = [case.name for case in self.cases]
        return {"score": _known(self.score), "interval": _known_interval(self.interval), "cases": names}


class SuiteScores(Mapping[str, float]):
    """What a suite brought. As a mapping: the scores by name, as they are logged.

    `score` is the whole, `navigation/score` a category, `navigation/maze` a case; a case also has its interval
    (`navigation/maze/low`, `navigation/maze/high`) and its mean `navigation/maze/length`.
    """

    def __init__(self, suite: str, cases: Sequence[CaseScores], seed: int = 0) -> None:
        self.suite, self.seed = suite, seed
        self.cases = {case.name: case for case in cases}
        by_category: dict[str, list[CaseScores]] = {}
        for case in cases:
            by_category.setdefault(category_of(case.name), []).append(case)
        self.categories = {name: CategoryScores(name, members) for name, members in by_category.items()}
        self._numbers = self._named()

    @property
    def score(self) -> float:
        """The mean of the categories' scores; NaN where a case had no episode."""
        return float(np.mean([category.score for category in self.categories.values()]))

    def _named(self) -> dict[str, float]:
        numbers = {"score": self.score}
        for category in self.categories.values():
            numbers[f"{category.name}/score"] = category.score
        for name, case in self.cases.items():
            low, high = case.interval
            numbers |= {name: case.score, f"{name}/low": low, f"{name}/high": high, f"{name}/length": case.mean_length}
        return numbers

    def __getitem__(self, name: str) -> float:
        return self._numbers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def to_dict(self) -> dict[str, Any]:
        """Return all of it, every episode included, as JSON can hold it."""
        return {
            "suite": self.suite,
            "seed": self.seed,
            "score": _known(self.score),
            "categories": {name: category.to_dict() for name, category in self.categories.items()},
            "cases": {name: case.to_dict() for name, case in self.cases.items()},
        }


def _mean(numbers: Sequence[float]) -> float:
    return float(np.mean(numbers)) if numbers else math.nan


def _known(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _known_interval(interval: Interval) -> list[float] | None:
    return list(interval) if all(map(math.isfinite, interval)) else None
