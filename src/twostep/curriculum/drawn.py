"""Curricula that draw their tasks: by fixed weights, or more often where scores say that there is more to learn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from twostep.curriculum.tally import Record, Tally, Tasks, require_between
from twostep.errors import ConfigError
from twostep.protocols import Curriculum, Task

Numbers = npt.NDArray[np.float64]


class Drawn(Curriculum, ABC):
    """Draws tasks by `weights()`, of which only proportions matter; without any weight, all alike."""

    def __init__(self, tally: Tally, explore: float, seed: int | None) -> None:
        require_between("explore", explore, 0.1)
        self.tally, self._explore = tally, explore
        self._random = np.random.default_rng(seed)

    @abstractmethod
    def weights(self) -> Numbers:
        """Return the weight of each task, 0 or more."""

    def chances(self) -> Numbers:
        """Return how likely each task is drawn next, in the order of the tasks."""
        alike = np.full(len(self.tally.names), 1 / len(self.tally.names))
        weights = self.weights()
        chances = weights / weights.sum() if weights.sum() > 0 else alike
        return (1 - self._explore) * chances + self._explore * alike

    def get_task(self) -> Task:
        """Draw a task."""
        name = self.tally.names[int(self._random.choice(len(self.tally.names), p=self.chances()))]
        return Task(name, self.tally.settings[name], self)

    def complete_task(self, id: str, score: float) -> None:
        """Write down a score."""
        self.tally.add(id, score)

    def metrics(self) -> dict[str, float]:
        """Return attempts, moving mean score and chance of each task."""
        named = zip(self.tally.names, self.chances().tolist(), strict=True)
        return self.tally.metrics() | {f"curriculum/chance/{name}": chance for name, chance in named}

    def state_dict(self) -> dict[str, Any]:
        """Return the records and where drawing stands."""
        return {"tally": self.tally.state_dict(), "random": self._random.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self.tally.load_state_dict(state["tally"])
        self._random.bit_generator.state = state["random"]


class UniformCurriculum(Drawn):
    """Draws all tasks alike, or by fixed weights; with a single task, that one for ever."""

    def __init__(self, tasks: Tasks, weights: Sequence[float] | None = None, *, seed: int | None = None) -> None:
        super().__init__(Tally(tasks), 0.0, seed)
        count = len(self.tally.names)
        self._weights = np.ones(count) if weights is None else np.asarray(weights, dtype=np.float64)
        valid = self._weights.shape == (count,) and np.isfinite(self._weights).all() and (self._weights >= 0).all()
        if not valid or not self._weights.any():
            raise ConfigError(
                f"weights={weights} must be a number for each of {count} tasks, 0 or more, and not all 0. "
                f"Leave them out to draw all alike."
            )

    def weights(self) -> Numbers:
        """Return what was given."""
        return self._weights


class LowRewardCurriculum(Drawn):
    """Draws tasks more often the lower their mean score is beside their best: the weight is best / mean.

    Scores below 0 are counted from the worst of all. A task without a score is weighed like the heaviest.

    Args:
        tasks: What environments are told.
        rate: What the newest score counts in the mean.
        explore: Part of all episodes that is drawn without weights.
        seed: Decides what is drawn.
    """

    def __init__(self, tasks: Tasks, *, rate: float = 0.01, explore: float = 0.0, seed: int | None = None) -> None:
        super().__init__(Tally(tasks, rate=rate), explore, seed)

    def weights(self) -> Numbers:
        """Return best / mean, at most about 100."""
        scored = [record for record in self.tally.records.values() if record.attempts]
        lowest = min([0.0, *(record.worst for record in scored)])
        span = max([lowest, *(record.best for record in scored)]) - lowest
        least = 0.01 * span or 1.0  # a mean of 0 shall weigh much, not infinitely much

        def weight(record: Record) -> float:
            return (record.best - lowest + least) / (record.score - lowest + least)

        return _weighed(self.tally, weight)


class LearningProgressCurriculum(Drawn):
    """Draws tasks more often the faster their scores change: the weight is |fast mean - slow mean|.

    What is too hard yet and what is mastered both stand still, and cost little time. A task without a score is weighed
    like the heaviest.

    Args:
        tasks: What environments are told.
        fast: What the newest score counts in the fast mean.
        slow: The same in the slow mean.
        explore: Part of all episodes that is drawn without weights: only so a task that stood still is noticed to move.
        seed: Decides what is drawn.
    """

    def __init__(
        self, tasks: Tasks, *, fast: float = 0.05, slow: float = 0.01, explore: float = 0.2, seed: int | None = None
    ) -> None:
        if slow >= fast:
            raise ConfigError(f"slow={slow} must be below fast={fast}: progress is what the two means differ by.")
        super().__init__(Tally(tasks, rate=fast, slow_rate=slow), explore, seed)

    def weights(self) -> Numbers:
        """Return how far the two means are apart."""
        return _weighed(self.tally, lambda record: abs(record.score - record.slow))


def _weighed(tally: Tally, weight: Callable[[Record], float]) -> Numbers:
    """Weigh the tasks that have a score, and the others like the heaviest of them."""
    weights = {name: weight(record) for name, record in tally.records.items() if record.attempts}
    heaviest = max(weights.values(), default=1.0) or 1.0
    return np.array([weights.get(name, heaviest) for name in tally.names])
