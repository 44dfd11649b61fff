"""Straight lines and axis-aligned boxes, many at once."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

NEARLY_ZERO = np.float32(1e-9)


class Boxes(NamedTuple):
    """Axis-aligned boxes; the four arrays have one shape."""

    x0: Array
    y0: Array
    x1: Array
    y1: Array

    def reshaped(self, *shape: int) -> Boxes:
        """Give all four arrays another shape."""
        return Boxes(*(side.reshape(shape) for side in self))


def crossings(x: Array, y: Array, dx: Array, dy: Array, boxes: Boxes) -> tuple[Array, Array]:
    """Return where lines enter and leave boxes, as parts of (dx, dy) from (x, y); a line misses where enter >= leave.

    All shapes broadcast. Sides belong to the outside: a line that only touches one misses the box.
    """
    across, along = 1 / _not_zero(dx), 1 / _not_zero(dy)
    left, right = (boxes.x0 - x) * across, (boxes.x1 - x) * across
    below, above = (boxes.y0 - y) * along, (boxes.y1 - y) * along
    enter = np.maximum(np.minimum(left, right), np.minimum(below, above))
    leave = np.minimum(np.maximum(left, right), np.maximum(below, above))
    return enter, leave


def blocked(x: Array, y: Array, dx: Array, dy: Array, boxes: Boxes) -> Array:
    """Tell which stretches from (x, y) to (x + dx, y + dy) pass through the inside of which boxes."""
    enter, leave = crossings(x, y, dx, dy, boxes)
    return np.maximum(enter, 0) < np.minimum(leave, 1)


def ray_lengths(x: Array, y: Array, dx: Array, dy: Array, boxes: Boxes, size: float) -> Array:
    """Return how far rays `[..., R]` along unit vectors reach until a box `[..., 1, W]` or the side of the arena."""
    across, along = 1 / _not_zero(dx), 1 / _not_zero(dy)
    to_sides = np.maximum(-x * across, (size - x) * across)
    reach = np.minimum(to_sides, np.maximum(-y * along, (size - y) * along))
    if not boxes.x0.shape[-1]:
        return reach
    enter, leave = crossings(x[..., None], y[..., None], dx[..., None], dy[..., None], boxes)
    enter = np.maximum(enter, 0)
    enter[enter >= leave] = np.inf
    return np.minimum(reach, enter.min(-1))


def _not_zero(d: Array) -> Array:
    return np.where(np.abs(d) < NEARLY_ZERO, NEARLY_ZERO, d)
