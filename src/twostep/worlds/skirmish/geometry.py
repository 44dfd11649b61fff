"""Straight lines and axis-aligned boxes, many at once.

Boxes that lines are tried against come first, `[W, ...]`: numpy finds the least over a first axis many times faster.
"""

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


def crossings(x: Array, y: Array, across: Array, along: Array, boxes: Boxes) -> tuple[Array, Array]:
    """Return where lines from (x, y) enter and leave boxes, as parts of their directions; across, along are 1 / those.

    All shapes broadcast. A line misses where enter >= leave; where it only touches a box, rounding decides.
    """
    left, right = (boxes.x0 - x) * across, (boxes.x1 - x) * across
    below, above = (boxes.y0 - y) * along, (boxes.y1 - y) * along
    enter = np.maximum(np.minimum(left, right), np.minimum(below, above))
    leave = np.minimum(np.maximum(left, right), np.maximum(below, above))
    return enter, leave


def blocked(x: Array, y: Array, dx: Array, dy: Array, boxes: Boxes) -> Array:
    """Tell which stretches from (x, y) to (x + dx, y + dy) pass through the inside of which boxes."""
    enter, leave = crossings(x, y, _inverse(dx), _inverse(dy), boxes)
    return np.maximum(enter, 0) < np.minimum(leave, 1)


def ray_lengths(x: Array, y: Array, dx: Array, dy: Array, boxes: Boxes, size: float) -> Array:
    """Return how far rays `[...]` along unit vectors reach until one of the boxes `[W, ...]` or the arena's side."""
    across, along = _inverse(dx), _inverse(dy)
    to_sides = np.maximum(-x * across, (size - x) * across)
    reach = np.minimum(to_sides, np.maximum(-y * along, (size - y) * along))
    if not len(boxes.x0):
        return reach
    enter, leave = crossings(x, y, across, along, boxes)
    enter = np.maximum(enter, 0)
    enter[enter >= leave] = np.inf
    return np.minimum(reach, np.minimum.reduce(enter, axis=0))


def _inverse(d: Array) -> Array:
    """Return 1 / d, and something very large where d is nothing."""
    return 1 / np.where(np.abs(d) < NEARLY_ZERO, NEARLY_ZERO, d)
