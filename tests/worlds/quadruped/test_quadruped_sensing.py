"""What robots sense: scandots and depth against MuJoCo's rays; streams of random numbers; one robot in Gymnasium."""

import mujoco
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from twostep.worlds.quadruped import TYPES, QuadrupedConfig, QuadrupedEnv, QuadrupedRows, Terrain
from twostep.worlds.quadruped import depth as camera
from twostep.worlds.quadruped.physics import turn_into, yaw_of
from twostep.worlds.quadruped.randomness import RowRandom
from twostep.worlds.quadruped.robot import Body, make_model
from twostep.worlds.quadruped.sensing import SCANDOT_SCALE, SCANDOTS

ALL = {"terrains": tuple(TYPES), "num_levels": 3, "levels": (2, 2)}
STILL = {"bodies": 1, "observation_noise": 0.0, "push_speed": 0.0}


@pytest.fixture(scope="module")
def ground():
    """The ground as MuJoCo knows it, with the robot far above."""
    terrain = Terrain(list(TYPES), 3)
    model = make_model(terrain, Body())
    data = mujoco.MjData(model)
    data.qpos[2] = 50.0
    mujoco.mj_forward(model, data)
    return terrain, model, data


def ray(ground, start, direction):
    _, model, data = ground
    return mujoco.mj_ray(model, data, start, direction, None, 1, -1, np.zeros(1, np.int32))


def turned(rows, seed):
    """Random attitudes: any heading, some tilt."""
    random = np.random.default_rng(seed)
    yaw = random.uniform(-np.pi, np.pi, rows)
    orientation = random.normal(0, 0.1, (rows, 4))
    orientation[:, 0] += np.cos(yaw / 2)
    orientation[:, 3] += np.sin(yaw / 2)
    return orientation / np.linalg.norm(orientation, axis=1, keepdims=True)


def test_scandots_are_the_depths_that_rays_measure_around_the_robot(ground):
    """L1: every scandot of every row is what a ray straight down from there finds, turned with the robot's heading."""
    env = QuadrupedRows(QuadrupedConfig.from_dict({**ALL, "chance": STILL}), 14)
    env.reset(seed=0)
    state = env.world.physics.state
    state[:, 1:3] += np.random.default_rng(1).uniform(-3, 3, (14, 2))
    state[:, 4:8] = turned(14, 2)
    seen = env.world.observe(slice(None))["scandots"] / SCANDOT_SCALE
    for row in range(14):
        matrix = np.zeros(9)
        mujoco.mju_quat2Mat(matrix, state[row, 4:8])
        yaw = np.arctan2(matrix[3], matrix[0])
        for dot in range(0, 132, 7):
            ahead, left = SCANDOTS[dot]
            x = state[row, 1] + np.cos(yaw) * ahead - np.sin(yaw) * left
            y = state[row, 2] + np.sin(yaw) * ahead + np.cos(yaw) * left
            height = 5 - ray(ground, np.array([x, y, 5.0]), np.array([0.0, 0.0, -1.0]))
            assert seen[row, dot] == pytest.approx(np.clip(state[row, 3] - 0.27 - height, -1, 1), abs=2e-3)


def test_depth_images_are_what_rays_measure(ground):
    """L2: pixel by pixel the depth along the camera's axis; only where a ray grazes an edge may the two differ."""
    terrain = ground[0]
    kinds = np.arange(7)
    middle = terrain.middle(kinds, np.full(7, 2)) + np.random.default_rng(0).uniform(-3, 3, (7, 2))
    position = np.column_stack([middle, terrain.height(middle[:, 0], middle[:, 1]).clip(0) + 0.3])
    orientation = turned(7, 3)
    images = camera.Camera(terrain).look(position, orientation)
    assert images.shape == (7, 1, camera.HEIGHT, camera.WIDTH)
    errors = []
    random = np.random.default_rng(4)
    for row in range(7):
        matrix = np.zeros(9)
        mujoco.mju_quat2Mat(matrix, orientation[row])
        turn = matrix.reshape(3, 3)
        eye = position[row] + turn @ np.array(camera.PLACE)
        for line, column in zip(random.integers(0, 24, 60), random.integers(0, 40, 60), strict=True):
            right = (2 * (column + 0.5) / 40 - 1) * np.tan(camera.FIELD[0] / 2)
            down = (2 * (line + 0.5) / 24 - 1) * np.tan(camera.FIELD[1] / 2)
            pitch = np.array([[np.cos(0.5), 0, np.sin(0.5)], [0, 1, 0], [-np.sin(0.5), 0, np.cos(0.5)]])
            found = ray(ground, eye, turn @ pitch @ np.array([1.0, -right, -down]))
            depth = camera.FAR if found < 0 else np.clip(found, camera.NEAR, camera.FAR)
            errors.append(abs(images[row, 0, line, column] * (camera.FAR - camera.NEAR) + camera.NEAR - depth))
    assert np.median(errors) < 1e-3
    assert np.mean(np.array(errors) > 0.02) < 0.03


def test_the_camera_takes_ten_images_a_second_and_keeps_the_last():
    """L1, LB9: between two images the last one is shown, also by an environment that goes on from a state."""
    settings = {"depth": True, "scandots": False, "max_seconds": 2.0, "chance": {"phase": False}}
    env = QuadrupedRows(QuadrupedConfig.from_dict(settings), 2)
    shown = [env.reset(seed=0).obs["depth"].copy()]
    assert env.observation_space["depth"].shape == (1, 24, 40)
    actions = np.random.default_rng(0).uniform(-1, 1, (12, 2, 12))
    shown += [env.step(action).obs["depth"].copy() for action in actions]
    changes = [step for step in range(1, 13) if not np.array_equal(shown[step], shown[step - 1])]
    assert changes == [5, 10]
    again = QuadrupedRows(QuadrupedConfig.from_dict(settings), 2)
    again.reset(seed=9)
    again.load_state_dict(env.state_dict())
    np.testing.assert_array_equal(again.step(actions[0]).obs["depth"], env.step(actions[0]).obs["depth"])
    assert 0 <= shown[0].min() < shown[0].max() <= 1


def test_what_is_not_asked_for_is_not_observed():
    """L1: scandots or depth, and what only a critic may know, are there when asked for."""
    names = {
        (): {"proprioception", "commands", "scandots"},
        ("privileged",): {"proprioception", "commands", "scandots", "privileged"},
    }
    for asked, expected in names.items():
        env = QuadrupedRows(QuadrupedConfig(**dict.fromkeys(asked, True)), 1)
        assert set(env.reset(seed=0).obs) == expected == set(env.observation_space.spaces)
    assert set(QuadrupedRows(QuadrupedConfig(scandots=False), 1).observation_space.spaces) == {
        "proprioception",
        "commands",
    }


def test_attitudes_are_read_as_mujoco_reads_them():
    orientation, vector = turned(20, 5), np.random.default_rng(6).normal(size=(20, 3))
    inside, yaw = turn_into(orientation, vector), yaw_of(orientation)
    for row in range(20):
        matrix = np.zeros(9)
        mujoco.mju_quat2Mat(matrix, orientation[row])
        turn = matrix.reshape(3, 3)
        np.testing.assert_allclose(turn.T @ vector[row], inside[row], atol=1e-12)
        np.testing.assert_allclose(turn, camera.matrices(orientation[row : row + 1])[0], atol=1e-12)
        assert yaw[row] == pytest.approx(np.arctan2(turn[1, 0], turn[0, 0]))


def test_streams_of_rows_are_even_and_apart():
    random = RowRandom(3)
    random.seed([0, 1, 2], [1, 2, 1])
    first = random.uniform(slice(None), 20_000, 0.0, 1.0)
    np.testing.assert_array_equal(first[0], first[2])
    counts = np.histogram(first[0], bins=10, range=(0, 1))[0]
    assert np.abs(counts - 2000).max() < 200
    assert abs(np.corrcoef(first[0], first[1])[0, 1]) < 0.03
    assert abs(np.corrcoef(first[0][1:], first[0][:-1])[0, 1]) < 0.03
    again = RowRandom(1)
    again.seed([0], [1])
    pieces = [again.uniform([0], count, 0.0, 1.0)[0] for count in (1, 7, 92)]
    np.testing.assert_array_equal(np.concatenate(pieces), first[0, :100])
    assert set(again.whole(np.zeros(1, int), 3, 5).tolist()) <= {3, 4, 5}


@pytest.mark.filterwarnings("ignore:.*(Box observation space|infinity|not symmetric).*")
def test_one_robot_is_a_gymnasium_environment():
    """L8: `reset`, `step`, spaces and seeds as Gymnasium's checker wants them."""
    check_env(QuadrupedEnv(max_seconds=0.5), skip_render_check=True)


def test_a_task_is_taken_as_options_of_a_reset():
    env = QuadrupedEnv(terrains=("flat", "gaps"), num_levels=4)
    env.reset(seed=0, options={"terrain": "gaps", "difficulty": 3})
    assert (env.world.kind[0], env.world.level[0]) == (1, 3)
    env.close()
    env.close()


def test_randomisation_changes_bodies_pushes_and_sensors_and_can_be_left_out():
    """L24: noise and randomisation are settings; without them the same actions lead the same way in every row."""
    spread = []
    for chance in ({"phase": False}, {**STILL, "phase": False, "action_noise": 0.0, "start": 0.0}):
        env = QuadrupedRows(QuadrupedConfig.from_dict({"chance": chance, "standing": 1.0}), 16)
        env.reset(seed=0)
        assert (len(set(env.world.physics.body.tolist())) > 1) == ("bodies" not in chance)
        for _ in range(20):
            step = env.step(np.full((16, 12), 0.1))
        spread.append(step.obs["proprioception"][:, 6:18].std(0).max())
    assert spread[0] > 0.01 > 1e-6 > spread[1]
    bodies = QuadrupedRows(QuadrupedConfig(), 1).world.physics.bodies
    assert len({body.friction for body in bodies}) == 8
    assert all(0.5 <= body.friction <= 1.25 and -0.5 <= body.load <= 1.5 for body in bodies)
