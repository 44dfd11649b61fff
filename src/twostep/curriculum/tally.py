"""The tasks of a curriculum, and how each has gone so far."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from twostep.errors import ConfigError

Tasks = Mapping[str, Any] | Sequence[Any]
"""What environments are told, by the task's name; without names tasks are called by their number."""


@dataclass
class Record:
    """How a task has gone."""

    attempts: int = 0
    score: float = math.nan
    """Moving mean of its scores."""
    slow: float = math.nan
    """Another, which moves less."""
    best: float = -math.inf
    worst: float = math.inf


class Tally:
    """Tasks by name, in their order, and the record of each.

    Args:
        tasks: What environments are told.
        rate: What the newest score counts in `Record.score`; 0.05 makes it the mean of about the last 20.
        slow_rate: The same of `Record.slow`.
    """

    def __init__(self, tasks: Tasks, *, rate: float = 0.05, slow_rate: float = 0.005) -> None:
        named = tasks if isinstance(tasks, Mapping) else {str(number): task for number, task in enumerate(tasks)}
        if not named:
            raise ConfigError("tasks is empty, but there must be something to play: {'easy': {'length': 3}}?")
        for name, value in (("rate", rate), ("slow_rate", slow_rate)):
            require_between(name, value, 0.05)
        self.settings: dict[str, Any] = dict(named)
        self.names = list(self.settings)
        self.records = {name: Record() for name in self.names}
        self._rate, self._slow_rate = rate, slow_rate

    def add(self, id: str, score: float) -> None:
        """Write down how an episode of a task went."""
        require_score(id, score, self.names)
        record = self.records[id]
        record.attempts += 1
        record.score = moved(record.score, score, self._rate)
        record.slow = moved(record.slow, score, self._slow_rate)
        record.best, record.worst = max(record.best, score), min(record.worst, score)

    def metrics(self) -> dict[str, float]:
        """Return attempts and moving mean score of each task."""
        attempts = {f"curriculum/attempts/{name}": float(record.attempts) for name, record in self.records.items()}
        return attempts | {f"curriculum/score/{name}": record.score for name, record in self.records.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the records."""
        return {name: asdict(record) for name, record in self.records.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back records, which must be of the same tasks."""
        if list(state) != self.names:
            raise ConfigError(
                f"The saved state is of the tasks {', '.join(state)}, but this curriculum has {', '.join(self.names)}. "
                f"Make it with the same tasks."
            )
        self.records = {name: Record(**record) for name, record in state.items()}


def moved(mean: float, score: float, rate: float) -> float:
    """Return a moving mean after one more score; the first is taken as it is."""
    return score if math.isnan(mean) else mean + rate * (score - mean)


def require_score(id: str, score: float, names: Sequence[str]) -> None:
    """Refuse scores of unknown tasks, and those that are no finite number."""
    if id not in names:
        raise ConfigError(f"There is no task {id!r} to complete. Tasks are {', '.join(names)}.")
    if not math.isfinite(score):
        raise ConfigError(f"score={score} of the task {id!r} must be finite. Let what scores episodes see to that.")


def require_between(name: str, value: float, usual: float, low: float = 0.0, high: float = 1.0) -> None:
    """Refuse a setting that lies outside of its range."""
    if not low <= value <= high:
        raise ConfigError(f"{name}={value!r} must be between {low:g} and {high:g}: {usual:g} is usual.")
