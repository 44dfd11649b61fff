"""Where a match takes place, drawn from its seed: walls that are fair to both teams, and where everybody begins."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from twostep.worlds.skirmish.config import CLASSES, EnvConfig
from twostep.worlds.skirmish.geometry import Array

TRIES_PER_WALL = 40
SPAWN_DEPTH = (0.05, 0.13)
"""Between which parts of the arena's side a team begins, measured from its own edge."""
SPAWN_HEIGHT = (0.2, 0.8)


class Arena(NamedTuple):
    """One match's walls and starting places."""

    walls: Array
    """float32 `[W, 4]`: x0, y0, x1, y1; fewer than asked for where there was no room."""
    x: Array
    """float32 `[2, K]`, blue then red."""
    y: Array


def draw_arena(config: EnvConfig, seed: int) -> Arena:
    """Draw one match; the same seed gives the same match."""
    rng = np.random.default_rng(seed)
    walls = _draw_walls(config, rng)
    x, y = zip(*(_draw_places(config, rng) for _ in range(2)), strict=True)
    size = config.size
    return Arena(
        np.array(walls, dtype=np.float32).reshape(-1, 4),
        np.array([x[0], size - x[1]], dtype=np.float32),
        np.array([y[0], size - y[1]], dtype=np.float32),
    )


def _draw_walls(config: EnvConfig, rng: np.random.Generator) -> list[tuple[float, float, float, float]]:
    """Draw walls in pairs that a half turn of the arena swaps; every mech can pass between any two."""
    size, walls = config.size, list[tuple[float, float, float, float]]()
    gap = 2 * max(CLASSES[name].radius for name in config.team) + 1.5
    # Half widths and heights between 2 and 7 hundredths of the side; centres leave a lane along the edges.
    draws = rng.random((TRIES_PER_WALL * config.walls, 4)).tolist()
    for u, v, width, height in draws:
        if len(walls) >= config.walls:
            break
        half_x, half_y = size * (0.02 + 0.05 * width), size * (0.02 + 0.05 * height)
        x = size * SPAWN_DEPTH[1] + gap + half_x + u * size * (0.87 - SPAWN_DEPTH[1])
        y = gap + half_y + v * (size - 2 * (gap + half_y))
        box = (x - half_x, y - half_y, x + half_x, y + half_y)
        turned = (size - box[2], size - box[3], size - box[0], size - box[1])
        if box[2] > size * (1 - SPAWN_DEPTH[1]) - gap or _near_zone(box, config, gap):
            continue
        if not any(_closer(box, other, gap) for other in (*walls, turned)):
            walls += [box, turned]
    return walls


def _near_zone(box: tuple[float, float, float, float], config: EnvConfig, gap: float) -> bool:
    middle = config.size / 2
    dx = max(box[0] - middle, middle - box[2], 0.0)
    dy = max(box[1] - middle, middle - box[3], 0.0)
    return math.hypot(dx, dy) < config.zone_radius + gap / 2


def _closer(one: tuple[float, ...], other: tuple[float, ...], gap: float) -> bool:
    apart_x = max(one[0] - other[2], other[0] - one[2])
    apart_y = max(one[1] - other[3], other[1] - one[3])
    return max(apart_x, apart_y) < gap


def _draw_places(config: EnvConfig, rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw where a team begins, as blue sees it: along the left edge, who stands where left to chance."""
    count, size = len(config.team), config.size
    near, far = SPAWN_DEPTH
    low, high = SPAWN_HEIGHT
    x = near + (far - near) * rng.random(count)
    lane = (high - low) / count
    y = low + lane * (rng.permutation(count) + 0.25 + 0.5 * rng.random(count))
    return size * x, size * y
