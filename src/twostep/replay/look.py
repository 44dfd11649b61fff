"""Shapes and colours that the page and the animation share."""

from __future__ import annotations

Points = tuple[tuple[float, float], ...]


def _with_mirror_image(half: Points) -> Points:
    """Close an outline that is given on one side of the nose only."""
    return (*half, *((x, -y) for x, y in reversed(half) if y))


_SIDE_OF_THE_HEAVY = ((0.7, 0.3), (1.35, 0.35), (1.35, 0.7), (0.7, 0.75), (0.6, 1.05), (-0.7, 1.05), (-1.05, 0.7))

SHAPES: dict[str, Points] = {
    "scout": _with_mirror_image(((1.6, 0), (-1.1, 0.95), (-0.6, 0))),
    "light": _with_mirror_image(((1.3, 0), (-0.85, 1.0))),
    "medium": _with_mirror_image(((1.25, 0), (0.45, 0.9), (-0.95, 0.9))),
    "heavy": _with_mirror_image(_SIDE_OF_THE_HEAVY),
    "other": _with_mirror_image(((1.2, 0), (0.6, 0.85), (-0.6, 0.85), (-1.0, 0))),
}
"""Outlines by class, nose to the right, in radii: a dart, a triangle, a house on its side, a box with two barrels."""

DARK = {
    "page": "#0e1116",
    "card": "#161b22",
    "line": "#2a323d",
    "text": "#e6eaf0",
    "quiet": "#97a3b3",
    "floor": "#141920",
    "grid": "#1b222b",
    "wall": "#3b4655",
    "edge": "#566477",
    "blue": "#58a6ff",
    "red": "#ff7b54",
    "zone": "#aeb9c7",
    "contested": "#e3b341",
    "heat": "#f2b134",
    "hull": "#4cc38a",
    "low": "#f0605a",
    "wreck": "#5b6675",
    "mark": "#ffffff",
    "shade": "#000000a0",
}

LIGHT = {
    "page": "#f4f6f8",
    "card": "#ffffff",
    "line": "#d5dbe2",
    "text": "#1a2230",
    "quiet": "#566274",
    "floor": "#fbfcfd",
    "grid": "#eef1f4",
    "wall": "#aab4c0",
    "edge": "#8390a0",
    "blue": "#1767c4",
    "red": "#c8431b",
    "zone": "#66748a",
    "contested": "#b27d00",
    "heat": "#d98200",
    "hull": "#218a58",
    "low": "#cf2f2f",
    "wreck": "#a3adb9",
    "mark": "#ffffff",
    "shade": "#3d4a5c48",
}
