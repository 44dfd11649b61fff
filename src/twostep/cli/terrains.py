"""Agents on grids of terrains: what `twostep eval` and `twostep play` tell of a walking robot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twostep.config import TrainingConfig

if TYPE_CHECKING:
    from twostep.evaluation.terrains import Cell, TerrainScores
    from twostep.protocols import RowEnv

QUADRUPED = "quadruped"
PICTURE_FILE = "terrains.png"
_FLAT = "flat"


def score_on_terrains(
    config: TrainingConfig, policy: Any, episodes: int, *, deterministic: bool = True
) -> TerrainScores:
    """Play a robot on every type and difficulty that it was trained for, in whole episodes."""
    from twostep.config.environments import make_configured
    from twostep.evaluation.terrains import evaluate_terrains

    # An episode that begins in the middle of its time says little of how far a robot comes.
    kwargs = {**config.env.kwargs, "chance": {**config.env.kwargs.get("chance", {}), "phase": False}}
    quiet = replace(config, env=replace(config.env, kwargs=kwargs, num_workers=0))

    def make(rows: int) -> RowEnv:
        return make_configured(quiet, rows)

    return evaluate_terrains(policy, make, cells_of(config), episodes, config.seed, deterministic)


def cells_of(config: TrainingConfig) -> list[Cell]:
    """List what a robot was trained for: all that a curriculum may lead to, or what its settings draw from."""
    from twostep.worlds.quadruped import QuadrupedConfig

    world = QuadrupedConfig.from_dict(config.env.kwargs)
    low, high = world.levels
    levels = range(world.num_levels) if config.curriculum.kind == "terrain_grid" else range(low, high + 1)
    return [(name, level) for name in world.terrains for level in (levels[:1] if name == _FLAT else levels)]


def draw_terrains(scores: TerrainScores, folder: Path, who: str) -> Path:
    """Draw the grid with the part of successes in every cell."""
    from twostep.evaluation.terrain_picture import plot_terrains

    return plot_terrains(scores, folder / PICTURE_FILE, f"{who}: {scores.success:.0%} of {len(scores.infos)} succeed")
