"""The ground: a grid of cells, types by difficulties, as one field of heights.

Every cell is a square whose middle and whose edge are flat, at height 0; what must be crossed lies in rings between the
two, so that it is met in whatever direction a robot walks. Who reaches the edge is carried back to the middle, which
looks and feels the same, so no episode ends for want of ground.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

CELL = 10.0
"""Side of a cell, in metres."""
SPACING = 0.1
"""Between two heights."""
PLATFORM, RIM = 1.0, 4.0
"""Distances from a cell's middle, along the farther of both axes, between which the ground is not flat."""
REACH = 4.5
"""Distance at which a robot is carried back to the middle."""
PIT, SHALLOW = -0.6, -0.03
"""Height of what lies between ground that carries, where it is most and least difficult."""


def flat(distance: Array, difficulty: float, random: np.random.Generator) -> Array:
    """Return a plane."""
    return np.zeros_like(distance)


def rough(distance: Array, difficulty: float, random: np.random.Generator) -> Array:
    """Return bumps of up to 8 cm, at a raster of 20 cm."""
    count = round(CELL / 0.2) + 1
    coarse = random.uniform(-0.08, 0.08, (count, count)) * difficulty
    places = np.linspace(0, count - 1, len(distance))
    rows = np.array([np.interp(places, np.arange(count), row) for row in coarse])
    return np.array([np.interp(places, np.arange(count), column) for column in rows.T]).T


def slope(distance: Array, difficulty: float, random: np.random.Generator) -> Array:
    """Return a ramp of up to 0.5 up to a ridge, and down again."""
    return 0.5 * difficulty * np.minimum(distance - PLATFORM, RIM - distance)


def stairs(distance: Array, difficulty: float, random: np.random.Generator) -> Array:
    """Return four steps up of up to 18 cm, each 30 cm deep, a landing, and as many down."""
    inside = np.minimum(distance - PLATFORM, RIM - distance)
    return 0.18 * difficulty * np.clip(np.floor(inside / 0.3) + 1, 0, 4)


def curbs(distance: Array, difficulty: float, random: np.random.Generator) -> Array:
    """Return three walls of up to 25 cm, 20 to 50 cm wide, all around the middle."""
    height = np.zeros_like(distance)
    for start in (1.3, 2.2, 3.1):
        width = random.uniform(0.2, 0.5)
        height[(distance >= start) & (distance < start + width)] = 0.25 * difficulty
    return height


def gaps(distance: Array, difficulty: float, random: np.random.Generator) -> Array:
    """Return three pits all around the middle, from 15 cm wide and shallow to 50 cm wide and deep."""
    height = np.zeros_like(distance)
    for start in (1.3, 2.3, 3.3):
        height[(distance >= start) & (distance < start + 0.15 + 0.35 * difficulty)] = _depth(difficulty)
    return height


def stepping_stones(distance: Array, difficulty: float, random: np.random.Generator) -> Array:
    """Return square stones, 60 to 25 cm wide, with 10 to 25 cm of shallow and then deep pits between them."""
    stone, between = 0.6 - 0.35 * difficulty, 0.1 + 0.15 * difficulty
    side = np.arange(len(distance)) * SPACING
    starts = random.uniform(0, stone + between, 2)
    on_x, on_y = ((side + start) % (stone + between) < stone for start in starts)
    return np.where(on_x[:, None] & on_y[None, :], 0.0, _depth(difficulty))


def _depth(difficulty: float) -> float:
    """Return the height of pits: a stumble first, a fall in the end."""
    return SHALLOW + (PIT - SHALLOW) * difficulty**2


TYPES: dict[str, Callable[[Array, float, np.random.Generator], Array]] = {
    kind.__name__: kind for kind in (flat, rough, slope, stairs, curbs, gaps, stepping_stones)
}
"""What makes the heights of a cell from the distances to its middle, a difficulty from 0 to 1, and chance."""


class Terrain:
    """The ground of all types and levels.

    Args:
        types: Names of the rows of cells, which lie along the y axis.
        num_levels: Cells along the x axis, of growing difficulty.
        seed: Decides details, each cell's by itself: other types beside it change nothing.
    """

    def __init__(self, types: Sequence[str], num_levels: int, seed: int = 0) -> None:
        self.types, self.num_levels = tuple(types), num_levels
        self._side = round(CELL / SPACING)
        self.heights = np.zeros((len(types) * self._side + 1, num_levels * self._side + 1), dtype=np.float32)
        """`[rows along y, columns along x]`, `SPACING` apart, from `(0, 0)` on."""
        places = np.abs(np.linspace(-CELL / 2, CELL / 2, self._side + 1))
        distance = np.maximum(places[:, None], places[None, :])
        inside = (distance >= PLATFORM) & (distance < RIM)
        for row, kind in enumerate(self.types):
            for level in range(1, num_levels):
                random = np.random.default_rng((seed, list(TYPES).index(kind), level))
                made = TYPES[kind](distance, level / (num_levels - 1), random)
                corner = slice(row * self._side, (row + 1) * self._side + 1), self._columns(level)
                self.heights[corner] = np.where(inside, made, 0.0)
        self.is_flat = not self.heights.any()
        self.size = (self.heights.shape[1] - 1) * SPACING, (self.heights.shape[0] - 1) * SPACING

    def _columns(self, level: int) -> slice:
        return slice(level * self._side, (level + 1) * self._side + 1)

    def middle(self, types: Array, levels: Array) -> Array:
        """Return the middles of cells, `[M, 2]`."""
        return np.stack([(levels + 0.5) * CELL, (types + 0.5) * CELL], axis=-1)

    def height(self, x: Array, y: Array) -> Array:
        """Return the height of the ground at places of any shape; beyond its end, that of its edge.

        Between four heights lie two triangles, parted by the diagonal from the first corner to the last.
        """
        if self.is_flat:
            return np.zeros(np.shape(x), dtype=np.float32)
        rows, columns = self.heights.shape
        across, along = (np.asarray(place, dtype=np.float32) * np.float32(1 / SPACING) for place in (x, y))
        across, along = np.clip(across, 0, columns - 1.001), np.clip(along, 0, rows - 1.001)
        column, row = across.astype(np.intp), along.astype(np.intp)
        across, along = across - column.astype(np.float32), along - row.astype(np.float32)
        first = row * columns + column
        flat = self.heights.reshape(-1)
        near, far = flat.take(first, mode="clip"), flat.take(first + (columns + 1), mode="clip")
        third = flat.take(first + np.where(along > across, columns, 1), mode="clip")
        return near + np.maximum(across, along) * (third - near) + np.minimum(across, along) * (far - third)
