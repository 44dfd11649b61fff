"""What robots earn: every part against its plain definition, one number at a time."""

import math

import numpy as np
import pytest

from twostep.worlds.quadruped import QuadrupedConfig, QuadrupedRows, RewardWeights
from twostep.worlds.quadruped.rewards import EACH_TIME, PARTS, Moment, reward_parts, weights_of


def a_moment(rows, seed):
    random = np.random.default_rng(seed)
    landed = random.uniform(0, 0.5, (rows, 4)) * (random.uniform(size=(rows, 4)) < 0.5)
    return Moment(
        command=random.uniform(-1, 1, (rows, 3)) * (np.arange(rows) % 3 > 0)[:, None],
        velocity=random.normal(0, 0.5, (rows, 3)),
        turning=random.normal(0, 1, (rows, 3)),
        gravity=random.normal(0, 1, (rows, 3)),
        trunk_height=random.uniform(0.1, 0.4, rows),
        offsets=random.normal(0, 0.3, (rows, 12)),
        speeds=random.normal(0, 5, (rows, 12)),
        torques=random.normal(0, 10, (rows, 12)),
        action_change=random.normal(0, 0.5, (rows, 12)),
        foot_speed=random.uniform(0, 2, (rows, 4)),
        on_ground=random.uniform(size=(rows, 4)) < 0.5,
        landed_after=landed,
        knees=random.integers(0, 5, rows),
        fell=random.uniform(size=rows) < 0.3,
    )


def plain(moment, row):
    """Compute every part of one robot's reward without arrays."""
    command, velocity, turning = moment.command[row], moment.velocity[row], moment.turning[row]
    squares = sum((velocity[axis] - command[axis]) ** 2 for axis in (0, 1))
    walks = math.hypot(command[0], command[1]) > 0.1
    pose = sum((5 if joint % 3 == 0 else 1) * moment.offsets[row][joint] ** 2 for joint in range(12))
    drag = sum(moment.foot_speed[row][leg] ** 2 for leg in range(4) if moment.on_ground[row][leg])
    ups = [after - 0.1 for after in moment.landed_after[row] if after > 0.1]
    return {
        "velocity": math.exp(-squares / 0.16),
        "yaw_rate": math.exp(-((turning[2] - command[2]) ** 2) / 0.25),
        "survival": 0.0 if moment.fell[row] else 1.0,
        "bounce": velocity[2] ** 2,
        "sway": turning[0] ** 2 + turning[1] ** 2,
        "tilt": moment.gravity[row][0] ** 2 + moment.gravity[row][1] ** 2,
        "height": (moment.trunk_height[row] - 0.27) ** 2,
        "torque": sum(torque**2 for torque in moment.torques[row]),
        "work": sum(abs(torque * speed) for torque, speed in zip(moment.torques[row], moment.speeds[row], strict=True)),
        "smoothness": sum(change**2 for change in moment.action_change[row]),
        "joint_speed": sum(speed**2 for speed in moment.speeds[row]),
        "pose": pose,
        "drag": drag,
        "air_time": sum(min(up, 0.2) for up in ups) if walks else 0.0,
        "collision": moment.knees[row],
        "fall": 1.0 if moment.fell[row] else 0.0,
    }


@pytest.mark.parametrize("seed", range(3))
def test_every_part_is_what_its_definition_says(seed):
    """LB14: rewards are real and exact: each named part equals a plain computation."""
    moment = a_moment(30, seed)
    parts = reward_parts(moment)
    for row in range(30):
        expected = plain(moment, row)
        assert list(expected) == list(PARTS)
        np.testing.assert_allclose(parts[row], list(expected.values()), rtol=1e-9, atol=1e-12)


def test_rates_count_by_time_and_events_each_time():
    weights = weights_of(RewardWeights(velocity=3.0, fall=-7.0, air_time=2.0), 0.02)
    told = dict(zip(PARTS, weights.tolist(), strict=True))
    assert told["velocity"] == pytest.approx(0.06)
    assert (told["fall"], told["air_time"]) == (-7.0, 2.0)
    assert set(EACH_TIME) == {"fall", "air_time"}


def test_the_last_info_tells_what_each_part_brought():
    """L18: the parts, summed over an episode, are its return, and each is told by its name."""
    env = QuadrupedRows(QuadrupedConfig.from_dict({"max_seconds": 0.4, "chance": {"phase": False}}), 6)
    env.reset(seed=0)
    random, returns = np.random.default_rng(0), np.zeros(6)
    for _ in range(20):
        step = env.step(random.uniform(-1, 1, (6, 12)))
        returns += step.rewards
    assert sorted(step.infos) == list(range(6))
    for row, info in step.infos.items():
        assert sum(info[f"reward_{part}"] for part in PARTS) == pytest.approx(returns[row], rel=1e-4)
        assert info["reward_survival"] == pytest.approx(0.5 * 0.4)
        assert set(env.episode_statistics) <= set(info)


def test_a_robot_that_does_as_commanded_earns_most_and_goes_all_the_way():
    """L26: progress is the way made along the command, as a part of the way commanded over the whole time."""
    quiet = {"bodies": 1, "phase": False, "push_speed": 0.0, "action_noise": 0.0, "start": 0.0}
    env = QuadrupedRows(QuadrupedConfig.from_dict({"max_seconds": 1.0, "standing": 0.0, "chance": quiet}), 3)
    env.reset(seed=0)
    world = env.world
    for _ in range(50):
        yaw = 2 * np.arctan2(world.physics.state[:, 7], world.physics.state[:, 4])
        ahead = np.stack([np.cos(yaw), np.sin(yaw)], axis=1)
        left = np.stack([-np.sin(yaw), np.cos(yaw)], axis=1)
        pace = np.array([1.0, 0.5, 0.0])[:, None] * world.command
        world.physics.place(np.arange(3), np.column_stack([world.physics.state[:, 1:3], [0.5] * 3]), yaw, _stance(3))
        world.physics.state[:, 20:22] = pace[:, :1] * ahead + pace[:, 1:2] * left  # it flies, as fast as commanded
        step = env.step(np.zeros((3, 12)))
    progress = [step.infos[row]["progress"] for row in range(3)]
    np.testing.assert_allclose(progress, [1.0, 0.5, 0.0], atol=0.03)
    assert [step.infos[row]["success"] for row in range(3)] == [True, False, False]
    earned = [step.infos[row]["reward_velocity"] for row in range(3)]
    assert earned[0] == pytest.approx(2.0, rel=0.02)
    assert max(earned[1:]) < 1.0


def _stance(rows):
    return np.tile([0.0, 0.9, -1.8], (rows, 4))
