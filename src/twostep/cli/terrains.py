"""Agents on grids of terrains: what `twostep eval` and `twostep play` tell of a walking robot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from PIL import Image

from twostep.config import TrainingConfig

if TYPE_CHECKING:
    from twostep.evaluation.terrains import Cell, TerrainScores
    from twostep.protocols import RowEnv

QUADRUPED = "quadruped"
PICTURE_FILE, FILM_FILE = "terrains.png", "terrains.gif"
_FLAT = "flat"
_FILM_SECONDS, _LONGEST_SECONDS = 28.0, 12.0
"""Of a whole film, and of one episode in it at most."""
_STEPS_PER_PICTURE = 4


def score_on_terrains(
    config: TrainingConfig, policy: Any, episodes: int, *, deterministic: bool = True
) -> TerrainScores:
    """Play a robot on every type and difficulty that it was trained for, in whole episodes."""
    from twostep.evaluation.terrains import evaluate_terrains

    def make(rows: int) -> RowEnv:
        return _make(config, rows)

    return evaluate_terrains(policy, make, cells_of(config), episodes, config.seed, deterministic)


def _make(config: TrainingConfig, rows: int, **changes: Any) -> RowEnv:
    """Make robots whose first episodes begin at their beginning: else these say little of how far a robot comes."""
    from twostep.config.environments import make_configured

    kwargs = {**config.env.kwargs, "chance": {**config.env.kwargs.get("chance", {}), "phase": False}, **changes}
    return make_configured(replace(config, env=replace(config.env, kwargs=kwargs, num_workers=0)), rows)


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


def film_terrains(config: TrainingConfig, policy: Any, scores: TerrainScores, target: Path) -> Path:
    """Film an episode on every type of terrain, as hard as the robot manages more often than not."""
    from twostep.replay.animation import write_film
    from twostep.worlds.quadruped import QuadrupedConfig

    seconds = min(_FILM_SECONDS / len(scores.terrains), _LONGEST_SECONDS)
    world = QuadrupedConfig.from_dict(config.env.kwargs)
    env = _make(config, 1, max_seconds=min(seconds, world.max_seconds))
    try:
        fps = 1.0 / (_STEPS_PER_PICTURE * world.step_seconds)
        cells = [hardest(scores, name) for name in scores.terrains]
        return write_film(_pictures(env, policy, cells, config.seed), target, fps)
    finally:
        env.close()


def hardest(scores: TerrainScores, terrain: str) -> Cell:
    """Return the hardest cell of a type in which half of the episodes succeed, or the easiest that was played."""
    levels = [level for name, level in scores.cells if name == terrain]
    good = [level for level in levels if fmean(scores.values("success", terrain, level)) >= 0.5]
    return terrain, max(good, default=min(levels))


def _pictures(env: Any, policy: Any, cells: list[Cell], seed: int) -> Iterator[Image.Image]:
    """Play one episode after the other, and yield a picture every few steps."""
    from twostep.policies.playing import Player
    from twostep.worlds.quadruped import Film

    film = Film(env.world.terrain, env.world.physics)
    try:
        for terrain, level in cells:
            env.assign({0: {"terrain": terrain, "difficulty": level}})
            with Player(policy, env.action_space, 1, None) as player:
                step, steps = env.reset(seed), 0
                while not steps or not step.episode_starts[0]:
                    if steps % _STEPS_PER_PICTURE == 0:
                        yield _titled(film.picture(0), f"{terrain.replace('_', ' ')}, difficulty {level}")
                    step, steps = env.step(player.act(step)), steps + 1
    finally:
        film.close()


def _titled(pixels: Any, words: str) -> Image.Image:
    from PIL import ImageDraw

    picture = Image.fromarray(pixels)
    ImageDraw.Draw(picture).text((10, 8), words, fill=(32, 33, 36))
    return picture
