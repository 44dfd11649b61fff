"""Lines and boxes against exact arithmetic and against points tried one by one."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from twostep.worlds.skirmish.geometry import Boxes, blocked, ray_lengths

SIZE = 20
# Multiples of an eighth are exact in single precision, and meet sides and corners often.
place = st.integers(0, 8 * SIZE).map(lambda eighths: eighths / 8)
box = st.tuples(place, place, place, place).map(
    lambda ends: (min(ends[0], ends[2]), min(ends[1], ends[3]), max(ends[0], ends[2]), max(ends[1], ends[3]))
)
solid_box = box.filter(lambda sides: sides[0] < sides[2] and sides[1] < sides[3])


def overlap(x: float, y: float, dx: float, dy: float, sides: tuple[float, ...]) -> Fraction:
    """How deep a stretch and a box overlap where they overlap least: separating axes, in fractions; negative: apart."""
    a = (Fraction(x), Fraction(y))
    b = (a[0] + Fraction(dx), a[1] + Fraction(dy))
    corners = [(Fraction(sides[i]), Fraction(sides[j])) for i in (0, 2) for j in (1, 3)]
    depths = []
    for nx, ny in ((1, 0), (0, 1), (-Fraction(dy), Fraction(dx))):
        stretch = [p[0] * nx + p[1] * ny for p in (a, b)]
        body = [p[0] * nx + p[1] * ny for p in corners]
        depths.append(min(max(stretch) - min(body), max(body) - min(stretch)))
    return min(depths)


@given(place, place, place, place, solid_box)
def test_stretches_that_pass_through_a_box_are_found(x, y, to_x, to_y, sides) -> None:
    """The answer is that of exact separating axes, wherever more than rounding decides."""
    dx, dy = to_x - x, to_y - y
    assume(dx or dy)
    depth = overlap(x, y, dx, dy, sides)
    assume(abs(depth) > 1e-3)
    numbers = [np.float32(value) for value in (x, y, dx, dy)]
    assert bool(blocked(*numbers, Boxes(*(np.float32(side) for side in sides)))) == (depth > 0)


@given(place, place, st.floats(0, 2 * math.pi), st.lists(solid_box, max_size=4))
def test_rays_end_where_the_first_point_is_inside_something(x, y, angle, boxes) -> None:
    """No point before the end is inside a box; the point after it is inside one, or outside of the arena."""
    inside = [box for box in boxes if box[0] <= x <= box[2] and box[1] <= y <= box[3]]
    assume(not inside)
    dx, dy = np.cos(np.float32(angle)), np.sin(np.float32(angle))
    walls = Boxes(*np.array(boxes, dtype=np.float32).reshape(-1, 4).T)
    start = np.float32([x]), np.float32([y])
    length = float(ray_lengths(*start, np.array([dx]), np.array([dy]), walls, SIZE)[0])
    near, slack = 1e-4, 2e-3
    for t in np.linspace(0, max(length - near, 0), 200):
        px, py = x + t * dx, y + t * dy
        assert -near <= px <= SIZE + near
        assert -near <= py <= SIZE + near
        for left, bottom, right, top in boxes:
            assert not (left + slack < px < right - slack and bottom + slack < py < top - slack)
    px, py = x + (length + slack) * dx, y + (length + slack) * dy
    outside = not (slack < px < SIZE - slack and slack < py < SIZE - slack)
    in_box = [b[0] - slack <= px <= b[2] + slack and b[1] - slack <= py <= b[3] + slack for b in boxes]
    assert outside or any(in_box)


@pytest.mark.parametrize(
    ("angle", "expected"),
    [(0.0, 5.0), (math.pi, 2.0), (math.pi / 2, 17.0), (math.atan2(1, 1), 17 * math.sqrt(2)), (-math.pi / 2, 3.0)],
)
def test_a_ray_of_known_length(angle: float, expected: float) -> None:
    walls = Boxes(*np.float32([[7], [0], [9], [4]]))
    direction = np.float32([math.cos(angle)]), np.float32([math.sin(angle)])
    length = ray_lengths(np.float32([2]), np.float32([3]), *direction, walls, SIZE)
    assert length[0] == pytest.approx(expected, rel=1e-5)
