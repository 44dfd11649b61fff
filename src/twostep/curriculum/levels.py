"""Curricula that go from level to level: when training is so far on, or when the level is mastered."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from twostep.curriculum.tally import Tally, Tasks
from twostep.errors import ConfigError
from twostep.protocols import Curriculum, Task


class StagedCurriculum(Curriculum):
    """Plays one task after the other, each from a given part of training on.

    Args:
        tasks: What environments are told, in their order.
        after: Beyond which part of training each task but the first begins.
    """

    def __init__(self, tasks: Tasks, after: Sequence[float] = (0.3, 0.6)) -> None:
        self.tally, self.after = Tally(tasks), tuple(after)
        count = len(self.tally.names)
        rising = list(self.after) == sorted(self.after) and all(0 <= part < 1 for part in self.after)
        if len(self.after) != count - 1 or not rising:
            raise ConfigError(
                f"after={self.after} must be {count - 1} rising parts of training below 1, one for each of {count} "
                f"tasks but the first: after=(0.3, 0.6) for three."
            )
        self.level = 0
        """Position of the task that is played now."""

    def get_task(self) -> Task:
        """Return the task of this part of training."""
        name = self.tally.names[self.level]
        return Task(name, self.tally.settings[name], self)

    def complete_task(self, id: str, score: float) -> None:
        """Write down a score, which changes nothing."""
        self.tally.add(id, score)

    def set_progress(self, progress: float) -> None:
        """Take note of how far training is."""
        self.level = sum(progress > part for part in self.after)

    def metrics(self) -> dict[str, float]:
        """Return the level, and attempts and moving mean score of each task."""
        return {"curriculum/level": float(self.level)} | self.tally.metrics()

    def state_dict(self) -> dict[str, Any]:
        """Return the level and the records."""
        return {"tally": self.tally.state_dict(), "level": self.level}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self.tally.load_state_dict(state["tally"])
        self.level = state["level"]


class SuccessRateCurriculum(Curriculum):
    """Plays the tasks in their order: the next when the present one succeeds, the one before when it fails.

    Args:
        tasks: What environments are told, the easiest first.
        promote_above: Mean score of the last episodes above which the next task begins.
        demote_below: Mean score below which the task before comes back.
        history: How many episodes are judged, all of the present task since it began.

    Scores are best 1 for success and 0 for failure; with others, choose the two limits in their units.
    """

    def __init__(
        self, tasks: Tasks, *, promote_above: float = 0.8, demote_below: float = 0.3, history: int = 10
    ) -> None:
        if demote_below > promote_above:
            raise ConfigError(f"demote_below={demote_below} must not be above promote_above={promote_above}: 0.3, 0.8?")
        if history < 1:
            raise ConfigError(f"history={history} must be 1 or more: 10 episodes are usual.")
        self.tally, self.promote_above, self.demote_below = Tally(tasks), promote_above, demote_below
        self.recent: deque[float] = deque(maxlen=history)
        """Scores of the present task's last episodes."""
        self.level = 0
        """Position of the present task."""

    def get_task(self) -> Task:
        """Return the present task."""
        name = self.tally.names[self.level]
        return Task(name, self.tally.settings[name], self)

    def complete_task(self, id: str, score: float) -> None:
        """Write down a score and judge; episodes of another task, begun before a change, decide nothing."""
        self.tally.add(id, score)
        if id != self.tally.names[self.level]:
            return
        self.recent.append(score)
        if len(self.recent) < (self.recent.maxlen or 1):
            return
        rate = sum(self.recent) / len(self.recent)
        if rate > self.promote_above and self.level + 1 < len(self.tally.names):
            self._go_to(self.level + 1)
        elif rate < self.demote_below and self.level > 0:
            self._go_to(self.level - 1)

    def _go_to(self, level: int) -> None:
        self.level = level
        self.recent.clear()

    def metrics(self) -> dict[str, float]:
        """Return the level, and attempts and moving mean score of each task."""
        return {"curriculum/level": float(self.level)} | self.tally.metrics()

    def state_dict(self) -> dict[str, Any]:
        """Return the level, what it is judged by, and the records."""
        return {"tally": self.tally.state_dict(), "level": self.level, "recent": list(self.recent)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self.tally.load_state_dict(state["tally"])
        self.level = state["level"]
        self.recent = deque(state["recent"], maxlen=self.recent.maxlen)
