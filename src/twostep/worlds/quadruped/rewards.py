"""What every robot earned in a step, part by part."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from twostep.worlds.quadruped import robot
from twostep.worlds.quadruped.config import RewardWeights

Array = npt.NDArray[Any]

PARTS = tuple(part.name for part in fields(RewardWeights))
EACH_TIME = ("air_time", "fall")
"""Parts that come with an event; all others are rates, and count by the time a step takes."""
STEP_TIME, MOST_AIR_TIME = 0.1, 0.2
MOVING = 0.1
"""Commands slower than this, in m/s, say to stand."""


@dataclass(frozen=True)
class Moment:
    """What a step has led to, in all rows; velocities as the trunk's heading sees them."""

    command: Array
    """`[B, 3]`: forward and sideways velocity, yaw rate."""
    velocity: Array
    """`[B, 3]`."""
    turning: Array
    """`[B, 3]`: roll, pitch and yaw rate."""
    gravity: Array
    """`[B, 3]`: where down is, as the trunk sees it."""
    trunk_height: Array
    """`[B]`, above the soles of the feet that carry it; `STAND_HEIGHT` where none does."""
    offsets: Array
    """`[B, 12]`: joint angles from the stance."""
    speeds: Array
    """`[B, 12]`: joint velocities."""
    torques: Array
    """`[B, 12]`."""
    action_change: Array
    """`[B, 12]`."""
    foot_speed: Array
    """`[B, 4]`, horizontal."""
    on_ground: Array
    """`[B, 4]` bool: feet."""
    landed_after: Array
    """`[B, 4]`: seconds that a foot which just came down was up; 0 for the others."""
    knees: Array
    """`[B]`: number of knees on the ground."""
    fell: Array
    """`[B]` bool."""


def reward_parts(moment: Moment) -> Array:
    """Return each part before weighting, `[B, parts]`, in the order of `PARTS`."""
    error = moment.velocity[:, :2] - moment.command[:, :2]
    walks = np.hypot(moment.command[:, 0], moment.command[:, 1]) > MOVING
    aside = moment.offsets.reshape(-1, len(robot.LEGS), len(robot.JOINTS)) ** 2
    parts = {
        "velocity": np.exp(-(error**2).sum(1) / 0.4**2),
        "yaw_rate": np.exp(-((moment.turning[:, 2] - moment.command[:, 2]) ** 2) / 0.5**2),
        "survival": ~moment.fell,
        "bounce": moment.velocity[:, 2] ** 2,
        "sway": (moment.turning[:, :2] ** 2).sum(1),
        "tilt": (moment.gravity[:, :2] ** 2).sum(1),
        "height": (moment.trunk_height - robot.STAND_HEIGHT) ** 2,
        "torque": (moment.torques**2).sum(1),
        "work": np.abs(moment.torques * moment.speeds).sum(1),
        "smoothness": (moment.action_change**2).sum(1),
        "joint_speed": (moment.speeds**2).sum(1),
        "pose": (aside * (5.0, 1.0, 1.0)).sum((1, 2)),
        "drag": (moment.foot_speed**2 * moment.on_ground).sum(1),
        "air_time": np.clip(moment.landed_after - STEP_TIME, 0, MOST_AIR_TIME).sum(1) * walks,
        "collision": moment.knees,
        "fall": moment.fell,
    }
    return np.stack([parts[name] for name in PARTS], axis=1).astype(np.float64)


def weights_of(weights: RewardWeights, step_seconds: float) -> Array:
    """Return what one step of each part counts, `[parts]`."""
    return np.array([getattr(weights, name) * (1.0 if name in EACH_TIME else step_seconds) for name in PARTS])
