"""How well a walking robot does on each type of terrain and each difficulty."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from twostep.evaluation.episodes import EpisodeStats, evaluate
from twostep.evaluation.intervals import Interval, mean_interval, rate_interval
from twostep.protocols import RowEnv

Cell = tuple[str, int]
"""A type of terrain and a difficulty."""


@dataclass(frozen=True)
class Measure:
    """One thing that is told of episodes: the name of a number in their last info, and how it is written."""

    name: str
    title: str
    is_rate: bool = False

    def interval(self, values: Sequence[float]) -> tuple[float, Interval]:
        """Return the mean, and where the true one lies with 95 % confidence."""
        mean = float(np.mean(values)) if len(values) else math.nan
        if not self.is_rate:
            return mean, mean_interval(values)
        return mean, rate_interval(mean, len(values)) if len(values) else (math.nan, math.nan)

    def words(self, values: Sequence[float]) -> str:
        """Write the mean with its interval."""
        mean, (low, high) = self.interval(values)
        if not math.isfinite(mean):
            return "-"
        if self.is_rate:
            return f"{mean:.0%} ({low:.0%} to {high:.0%})"
        return f"{mean:.2f}" + (f" ({low:.2f} to {high:.2f})" if math.isfinite(low) else "")


MEASURES = (
    Measure("success", "success", is_rate=True),
    Measure("distance", "distance, m"),
    Measure("velocity_error", "velocity error, m/s"),
    Measure("yaw_rate_error", "yaw error, rad/s"),
    Measure("fell", "falls", is_rate=True),
)


@dataclass
class TerrainScores:
    """What episodes on a grid of terrains brought."""

    cells: list[Cell]
    infos: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """What the environment said at the end of each episode."""
    stats: EpisodeStats | None = None

    @property
    def terrains(self) -> list[str]:
        """The types, in the order in which they were asked for."""
        return list(dict.fromkeys(terrain for terrain, _ in self.cells))

    @property
    def levels(self) -> list[int]:
        """The difficulties, from the lowest."""
        return sorted({level for _, level in self.cells})

    def values(self, measure: str, terrain: str | None = None, level: int | None = None) -> list[float]:
        """Return what was measured in the episodes of a type and a difficulty, or of all."""
        return [
            float(info[measure])
            for info in self.infos
            if terrain in (None, info["terrain"]) and level in (None, info["difficulty"])
        ]

    @property
    def success(self) -> float:
        """Part of all episodes that succeeded."""
        return MEASURES[0].interval(self.values("success"))[0]

    def table(self) -> str:
        """Return a line per type, and one for all."""
        names = [*self.terrains, "all"] if len(self.terrains) > 1 else self.terrains
        rows = [["", "episodes", *(measure.title for measure in MEASURES)]]
        for name in names:
            of = None if name == "all" else name
            values = {measure: self.values(measure.name, of) for measure in MEASURES}
            count = len(self.values("success", of))
            rows.append([name, str(count), *(measure.words(values[measure]) for measure in MEASURES)])
        widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
        return "\n".join(
            "  " + "  ".join(f"{cell:{width}}" for cell, width in zip(r, widths, strict=True)) for r in rows
        )


def evaluate_terrains(
    policy: Any,
    make: Callable[[int], RowEnv],
    cells: Sequence[Cell],
    episodes: int,
    seed: int = 0,
    deterministic: bool = True,
    *,
    most_rows: int = 256,
) -> TerrainScores:
    """Play at least `episodes` episodes, equally many in each cell, all cells side by side.

    Args:
        make: Makes an environment of so many rows, each of which takes `{"terrain", "difficulty"}` for a task.
    """
    each = -(-episodes // len(cells))
    copies = min(each, max(1, most_rows // len(cells)))
    rows = [cell for cell in cells for _ in range(copies)]
    env: Any = make(len(rows))
    try:
        env.assign({row: {"terrain": name, "difficulty": level} for row, (name, level) in enumerate(rows)})
        stats = evaluate(policy, env, len(rows) * -(-each // copies), seed, deterministic)
    finally:
        env.close()
    return TerrainScores(list(cells), stats.infos, stats)
