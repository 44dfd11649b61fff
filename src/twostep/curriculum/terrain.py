"""A grid of terrains, types by difficulties, on which every type climbs by its own success."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from twostep.curriculum.tally import moved, require_between, require_score
from twostep.errors import ConfigError
from twostep.protocols import Curriculum, Task

LONGEST = 100
"""Attempts after which a cell's counts are halved, so that early failures are forgotten; where many episodes run,
after 4 attempts for each of them."""


@dataclass
class Cell:
    """How one type has gone at one difficulty since it last came there."""

    attempts: float = 0
    successes: float = 0
    displacement: float = math.nan
    """Moving mean of the scores."""
    running: int = 0
    """Episodes that were drawn and have not ended."""

    @property
    def success(self) -> float:
        """Part of its attempts that succeeded."""
        return self.successes / self.attempts if self.attempts else math.nan


class TerrainGrid(Curriculum):
    """Draws a type of terrain, all alike, and plays it at the difficulty that this type has climbed to.

    Environments are told `{"terrain": type, "difficulty": level}`, levels from 0, the flat one, where every type
    starts. A score says how far an episode came, as a part of the way it was to go.

    Args:
        types: Names of the rows.
        num_levels: Number of columns.
        promote_above: Part of successes at a level above which a type climbs, if the mean score is above it too.
        demote_below: Part of successes below which it falls back.
        min_attempts: It is moved after more attempts than these, and after more than it has episodes that still run:
            those that end first are those that fail.
        success_at: Score from which on an episode is a success.
        seed: Decides the types, and the levels of those that are solved.

    A type that would climb from the highest level has solved it, and goes on from a random one, so that no level is
    forgotten.
    """

    def __init__(
        self,
        types: Sequence[str] = ("flat", "stairs", "curbs", "gaps", "stepping_stones"),
        num_levels: int = 10,
        *,
        promote_above: float = 0.5,
        demote_below: float = 0.3,
        min_attempts: int = 10,
        success_at: float = 0.8,
        seed: int | None = None,
    ) -> None:
        if not types or len(set(types)) < len(types):
            raise ConfigError(f"types={tuple(types)} must be one or more names, each once: ('flat', 'stairs')?")
        if num_levels < 1:
            raise ConfigError(f"num_levels={num_levels} must be 1 or more: 10 is usual.")
        require_between("promote_above", promote_above, 0.5)
        require_between("demote_below", demote_below, 0.3, high=promote_above)
        self.types, self.num_levels = tuple(types), num_levels
        self.promote_above, self.demote_below = promote_above, demote_below
        self.min_attempts, self.success_at = min_attempts, success_at
        self.levels = dict.fromkeys(self.types, 0)
        """The difficulty of each type now."""
        self.attempts = dict.fromkeys(self.types, 0)
        self.solved = dict.fromkeys(self.types, 0)
        """How often each type has mastered the highest level."""
        self.grid = {f"{kind}/{level}": Cell() for kind in self.types for level in range(num_levels)}
        self._random = np.random.default_rng(seed)

    def get_task(self) -> Task:
        """Draw a type, at its level."""
        kind = self.types[int(self._random.integers(len(self.types)))]
        level = self.levels[kind]
        self.grid[f"{kind}/{level}"].running += 1
        return Task(f"{kind}/{level}", {"terrain": kind, "difficulty": level}, self)

    def set_running(self, running: Mapping[str, int]) -> None:
        """Be told how many episodes of each task still run, also those that other processes have drawn."""
        for id, cell in self.grid.items():
            cell.running = running.get(id, 0)

    def complete_task(self, id: str, score: float) -> None:
        """Write down how far an episode came, and move its type where that is enough to judge by."""
        require_score(id, score, list(self.grid))
        kind, _, level = id.rpartition("/")
        cell = self.grid[id]
        cell.running = max(0, cell.running - 1)
        cell.attempts += 1
        cell.successes += score >= self.success_at
        cell.displacement = moved(cell.displacement, score, 0.1)
        self.attempts[kind] += 1
        running = sum(self.grid[f"{kind}/{at}"].running for at in range(self.num_levels))
        if int(level) == self.levels[kind] and cell.attempts > max(self.min_attempts, running):
            self._judge(kind, cell, running)

    def _judge(self, kind: str, cell: Cell, running: int) -> None:
        level = self.levels[kind]
        if cell.success > self.promote_above and cell.displacement > self.promote_above:
            solved = level + 1 == self.num_levels
            self.solved[kind] += solved
            self._go_to(kind, int(self._random.integers(self.num_levels)) if solved else level + 1)
        elif cell.success < self.demote_below and level > 0:
            self._go_to(kind, level - 1)
        elif cell.attempts >= max(LONGEST, 4 * running):
            cell.attempts, cell.successes = cell.attempts / 2, cell.successes / 2

    def _go_to(self, kind: str, level: int) -> None:
        self.levels[kind] = level
        id = f"{kind}/{level}"
        self.grid[id] = Cell(running=self.grid[id].running)

    def get_difficulty_distribution(self) -> npt.NDArray[np.float64]:
        """Return which part of the types is at each level."""
        return np.bincount(list(self.levels.values()), minlength=self.num_levels) / len(self.types)

    def metrics(self) -> dict[str, float]:
        """Return of each type its level, attempts, how often it is solved, and how its present level goes."""
        metrics = {"curriculum/level": sum(self.levels.values()) / len(self.types)}
        for kind, level in self.levels.items():
            cell = self.grid[f"{kind}/{level}"]
            metrics |= {
                f"curriculum/level/{kind}": float(level),
                f"curriculum/attempts/{kind}": float(self.attempts[kind]),
                f"curriculum/solved/{kind}": float(self.solved[kind]),
                f"curriculum/success/{kind}": cell.success,
                f"curriculum/displacement/{kind}": cell.displacement,
            }
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Return every cell, where the types are, and where drawing stands."""
        return {
            "grid": {id: asdict(cell) for id, cell in self.grid.items()},
            "levels": dict(self.levels),
            "attempts": dict(self.attempts),
            "solved": dict(self.solved),
            "random": self._random.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        if list(state["grid"]) != list(self.grid):
            raise ConfigError(
                f"The saved state is of {len(state['levels'])} types and {len(state['grid'])} cells, but this grid has "
                f"{', '.join(self.types)} by {self.num_levels} levels. Make it with the same types and levels."
            )
        self.grid = {id: Cell(**cell) for id, cell in state["grid"].items()}
        self.levels, self.attempts, self.solved = (dict(state[name]) for name in ("levels", "attempts", "solved"))
        self._random.bit_generator.state = state["random"]
