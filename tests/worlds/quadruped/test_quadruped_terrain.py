"""The ground: its types, its heights between the points of the grid, and what MuJoCo makes of it."""

import mujoco
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twostep.worlds.quadruped import TYPES, QuadrupedConfig, QuadrupedRows, Terrain
from twostep.worlds.quadruped.robot import Body, make_model
from twostep.worlds.quadruped.terrain import CELL, PIT, PLATFORM, REACH, RIM, SPACING


@pytest.fixture(scope="module")
def terrain():
    return Terrain(list(TYPES), 4, seed=3)


def looked_up(terrain, x, y):
    """Find the height of one place the slow way: its triangle among the four heights around it."""
    column, row = int(x // SPACING), int(y // SPACING)
    across, along = x / SPACING - column, y / SPACING - row
    near, far = terrain.heights[row, column], terrain.heights[row + 1, column + 1]
    if across >= along:
        right = terrain.heights[row, column + 1]
        return (1 - across) * near + (across - along) * right + along * far
    upper = terrain.heights[row + 1, column]
    return (1 - along) * near + (along - across) * upper + across * far


@settings(max_examples=200, deadline=None)
@given(st.floats(0.0, 39.9), st.floats(0.0, 69.9))
def test_heights_are_those_of_the_triangles_of_the_grid(terrain, x, y):
    """L1: scandots sample the height field for all rows at once, as a lookup of each place does."""
    x, y = round(x, 3) + 0.0004, round(y, 3) + 0.0007  # not on a grid line, where rounding decides the triangle
    assert terrain.height(np.array([x]), np.array([y]))[0] == pytest.approx(looked_up(terrain, x, y), abs=2e-3)


def test_heights_are_where_rays_meet_the_ground_of_the_physics(terrain):
    """L1: what is observed of the ground is what the feet stand on, to a tenth of a millimetre in steep places, too."""
    model = make_model(terrain, Body())
    data = mujoco.MjData(model)
    data.qpos[2] = 50.0
    mujoco.mj_forward(model, data)
    random = np.random.default_rng(0)
    x, y = (random.uniform(0.01, size - 0.01, 400) for size in terrain.size)
    geom, down = np.zeros(1, np.int32), np.array([0.0, 0.0, -1.0])
    hits = [
        5 - mujoco.mj_ray(model, data, np.array([*at, 5.0]), down, None, 1, -1, geom) for at in zip(x, y, strict=True)
    ]
    np.testing.assert_allclose(terrain.height(x, y), hits, atol=5e-4)
    assert np.ptp(hits) > 1


def test_every_cell_is_flat_where_robots_start_and_where_they_are_carried_back_from(terrain):
    """L26: every type begins flat; the middle and the rim of harder ones feel alike, so nobody notices the way back."""
    places = np.abs(np.linspace(-CELL / 2, CELL / 2, round(CELL / SPACING) + 1))
    distance = np.maximum(places[:, None], places[None, :])
    assert PLATFORM < RIM < REACH < CELL / 2
    for row in range(len(TYPES)):
        for level in range(4):
            side = round(CELL / SPACING)
            cell = terrain.heights[row * side : (row + 1) * side + 1, level * side : (level + 1) * side + 1]
            assert not cell[(distance < PLATFORM) | (distance >= RIM)].any()
            assert bool(cell.any()) == (row > 0 and level > 0)


def test_levels_grow_harder_and_pits_are_deep(terrain):
    """L26: the difficulty of a level is its number's part of the highest one."""
    side = round(CELL / SPACING)

    def cell(name, level):
        row = list(TYPES).index(name)
        return terrain.heights[row * side : (row + 1) * side + 1, level * side : (level + 1) * side + 1]

    for name in ("rough", "slope", "stairs", "curbs"):
        tops = [float(cell(name, level).max()) for level in range(4)]
        assert tops == sorted(tops)
        assert tops[0] < tops[1] < tops[3] < 0.85
    for name in ("gaps", "stepping_stones"):
        holes = [(cell(name, level) < 0).mean() for level in range(4)]
        depths = [float(cell(name, level).min()) for level in range(4)]
        assert holes == sorted(holes)
        assert 0 == holes[0] < holes[1] < holes[3] < 0.5
        assert depths == sorted(depths, reverse=True)
        assert depths[3] == np.float32(PIT)


def test_a_cell_is_the_same_whatever_is_beside_it(terrain):
    alone = Terrain(["gaps"], 4, seed=3)
    side = round(CELL / SPACING)
    row = list(TYPES).index("gaps") * side
    np.testing.assert_array_equal(alone.heights, terrain.heights[row : row + side + 1])
    assert Terrain(["flat"], 4).is_flat
    assert not alone.is_flat


def test_trotting_feet_are_not_pushed_aside_where_the_field_is_flat():
    """LB14: contacts are stiff enough that the edges between triangles are not felt: 7 % of them were, once."""
    config = {"terrains": ("flat", "slope"), "num_levels": 2, "threads": 1, "chance": {"bodies": 1}}
    env = QuadrupedRows(QuadrupedConfig.from_dict(config), 12)
    env.reset(seed=0)
    random, upright = np.random.default_rng(0), []
    contact = env.world.physics._data[0].contact  # those of the last row
    for step in range(100):
        phase = 0.1 * np.pi * step + np.array([0, np.pi, np.pi, 0])
        action = random.normal(0, 0.1, (12, 4, 3))
        action[..., 1] -= 0.4 * np.cos(phase)
        action[..., 2] -= 0.8 * np.maximum(np.sin(phase), 0)
        env.step(action.reshape(12, 12))
        upright += [abs(frame[2]) for frame in contact.frame]
    assert len(upright) > 200
    assert np.mean(np.array(upright) < 0.9) < 0.02
