"""What a camera on the front of the trunk sees of the ground: depth images of many robots at once.

The camera looks ahead and down. A ray goes on in small steps from where it can meet the ground at the earliest, until
it is below it; where exactly it went through is then found by halving.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from twostep.worlds.quadruped.terrain import SPACING, Terrain

Array = npt.NDArray[Any]

HEIGHT, WIDTH = 24, 40
"""Pixels."""
NEAR, FAR = 0.1, 2.0
"""Depths that are told apart, in metres along the camera's axis."""
PLACE, PITCH = (0.25, 0.0, 0.04), 0.5
"""Where the camera sits on the trunk, and by how much, in radians, it looks down."""
FIELD = (1.2, 0.8)
"""Horizontal and vertical field of view, in radians: tangents of half of each are multiplied by the image's place."""
STRIDE, HALVINGS = 0.06, 6
"""Depth between two looks at the ground, and how often the last one is halved."""
AT_ONCE = 32
"""Robots whose rays are followed together: few enough for a processor's cache."""
BLOCK = 10
"""Heights per block of which the highest is known."""


class Camera:
    """Renders depth from 0 (at `NEAR` or closer) to 1 (at `FAR` or farther)."""

    shape = (1, HEIGHT, WIDTH)

    def __init__(self, terrain: Terrain) -> None:
        self._terrain = terrain
        self._rays = _rays()
        self._highest = _highest_around(terrain.heights)

    def look(self, position: Array, orientation: Array) -> Array:
        """Return the images `[M, 1, HEIGHT, WIDTH]` of robots whose trunks are there `[M, 3]` and so `[M, 4]`."""
        parts = range(0, len(position), AT_ONCE)
        images = [self._look(position[at : at + AT_ONCE], orientation[at : at + AT_ONCE]) for at in parts]
        return np.concatenate(images)

    def _look(self, position: Array, orientation: Array) -> Array:
        turned = matrices(orientation)
        eyes = position + turned @ np.array(PLACE)
        rays = np.einsum("mij,pj->mpi", turned, self._rays).astype(np.float32)
        depth = self._meet(np.repeat(eyes.astype(np.float32), rays.shape[1], axis=0), rays.reshape(-1, 3))
        image = (np.clip(depth, NEAR, FAR) - NEAR) / (FAR - NEAR)
        return image.reshape(len(position), *self.shape).astype(np.float32)

    def _meet(self, eyes: Array, rays: Array) -> Array:
        """Return how far along their rays eyes `[N, 3]` see the ground; infinity where they do not."""
        highest = self._highest[_block(eyes[:, 1], self._highest.shape[0]), _block(eyes[:, 0], self._highest.shape[1])]
        with np.errstate(divide="ignore", invalid="ignore"):
            earliest = np.where(rays[:, 2] < 0, (eyes[:, 2] - highest) / -rays[:, 2], FAR)
        at = np.clip(earliest - 1e-4, 0.0, FAR).astype(np.float32)
        depth = np.full(len(eyes), np.inf, dtype=np.float32)
        going = np.flatnonzero(at < FAR)
        while len(going):
            at[going] += STRIDE
            below = self._is_below(eyes[going], rays[going], at[going])
            depth[going[below]] = at[going[below]]
            going = going[~below & (at[going] < FAR)]
        hits = np.flatnonzero(np.isfinite(depth))
        depth[hits] = self._halved(eyes[hits], rays[hits], depth[hits])
        return depth

    def _is_below(self, eyes: Array, rays: Array, at: Array) -> Array:
        x, y, z = (eyes + rays * at[:, None]).T
        return z <= self._terrain.height(x, y)

    def _halved(self, eyes: Array, rays: Array, above: Array) -> Array:
        low, high = above - np.float32(STRIDE), above.copy()
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            below = self._is_below(eyes, rays, middle)
            low, high = np.where(below, low, middle), np.where(below, middle, high)
        return (low + high) / 2


def _rays() -> Array:
    """Return the directions of all pixels as the trunk sees them, `[P, 3]`: one metre long along the camera's axis.

    The first pixel is the upper left one.
    """
    down, right = np.meshgrid(
        (2 * np.arange(HEIGHT) + 1) / HEIGHT - 1, (2 * np.arange(WIDTH) + 1) / WIDTH - 1, indexing="ij"
    )
    across, along = (np.tan(angle / 2) for angle in FIELD)
    ahead, left, up = np.ones_like(down), -across * right, -along * down
    cos, sin = np.cos(PITCH), np.sin(PITCH)
    return np.stack([cos * ahead + sin * up, left, cos * up - sin * ahead], axis=-1).reshape(-1, 3)


def _highest_around(heights: Array) -> Array:
    """Return the greatest height of each block and of all that a ray of it can reach."""
    rows, columns = (-(-size // BLOCK) for size in heights.shape)
    padded = np.full((rows * BLOCK, columns * BLOCK), heights.min())
    padded[: heights.shape[0], : heights.shape[1]] = heights
    highest = padded.reshape(rows, BLOCK, columns, BLOCK).max((1, 3))
    reach = int(np.ceil(1.3 * FAR / (BLOCK * SPACING))) + 1
    for axis in (0, 1):
        size = highest.shape[axis]
        near = [np.clip(np.arange(size) + step, 0, size - 1) for step in range(-reach, reach + 1)]
        highest = np.max([highest.take(places, axis=axis) for places in near], axis=0)
    return highest.astype(np.float32)


def _block(places: Array, count: int) -> Array:
    return np.clip(places / (BLOCK * SPACING), 0, count - 1).astype(np.int64)


def matrices(orientation: Array) -> Array:
    """Return the rotations `[M, 3, 3]` from trunks `[M, 4]` (w, x, y, z) to the world."""
    w, x, y, z = orientation.T
    rows = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    )
    return np.moveaxis(np.array(rows), -1, 0)
