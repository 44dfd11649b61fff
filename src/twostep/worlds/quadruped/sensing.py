"""What a robot senses, by groups.

- `proprioception` (46): turning of the trunk (a quarter of rad/s), where down is, joint angles from the stance, joint
  velocities (a twentieth of rad/s), the last action, which feet feel the ground.
- `commands` (3): forward and sideways velocity in m/s, yaw rate in rad/s.
- `scandots` (132): how far the ground lies below the feet of a standing robot, in fifths of a metre and at most 5, at
  places around it: 12 from behind to ahead times 11 from right to left, turned with its heading.
- `depth` (1 x 24 x 40): what a camera on the front sees, ten times a second; see `Camera`.
- `privileged` (15): true velocity of the trunk, forces on feet (in 100 N), heights of feet above the ground, height of
  the trunk above it, friction, load, stiffness.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from twostep.worlds.quadruped import robot
from twostep.worlds.quadruped.config import QuadrupedConfig
from twostep.worlds.quadruped.depth import Camera
from twostep.worlds.quadruped.physics import (
    ANGLES,
    ANGULAR,
    LINEAR,
    ORIENTATION,
    POSITION,
    SPEEDS,
    Physics,
    turn_into,
    yaw_of,
)
from twostep.worlds.quadruped.randomness import RowRandom
from twostep.worlds.quadruped.terrain import Terrain

Array = npt.NDArray[Any]

AHEAD, ASIDE = np.linspace(-0.45, 1.2, 12), np.linspace(-0.75, 0.75, 11)
SCANDOTS = np.stack(np.meshgrid(AHEAD, ASIDE, indexing="ij"), axis=-1).reshape(-1, 2)
"""Where scandots lie, `[132, 2]`: ahead and to the left of the trunk."""
TURNING_SCALE, SPEED_SCALE, FORCE_SCALE, SCANDOT_SCALE = 0.25, 0.05, 0.01, 5.0
TOUCHING = 1.0
"""Force, in N, from which on a part touches the ground."""
NOISE = np.concatenate([
    np.full(3, 0.2 * TURNING_SCALE), np.full(3, 0.05), np.full(12, 0.01), np.full(12, 1.5 * SPEED_SCALE), np.zeros(16),
])  # fmt: skip
"""Largest errors of proprioception."""
SCANDOT_NOISE = 0.02 * SCANDOT_SCALE
SIZES = {"proprioception": len(NOISE), "commands": 3, "scandots": len(SCANDOTS), "privileged": 15}


class Senses:
    """Writes the observations of all robots into memory of its own."""

    def __init__(self, config: QuadrupedConfig, terrain: Terrain, physics: Physics, random: RowRandom) -> None:
        self._terrain, self._physics, self._random = terrain, physics, random
        self._noise = config.chance.observation_noise
        wanted = {"scandots": config.scandots, "privileged": config.privileged}
        names = [name for name in sorted(SIZES) if wanted.get(name, True)]
        boxes = {name: spaces.Box(-np.inf, np.inf, (SIZES[name],), np.float32) for name in names}
        self._camera = Camera(terrain) if config.depth else None
        if config.depth:
            boxes["depth"] = spaces.Box(0.0, 1.0, Camera.shape, np.float32)
        self.space = spaces.Dict({name: boxes[name] for name in sorted(boxes)})
        self.obs = {name: np.zeros((len(physics.state), *box.shape), np.float32) for name, box in boxes.items()}
        built = physics.bodies
        self._body = np.array([(body.friction, body.load, body.stiffness / config.stiffness) for body in built])

    def look(self, rows: Array) -> None:
        """Let the cameras of these rows take a new image; until then they show the last one."""
        if self._camera is not None and len(rows):
            state = self._physics.state[rows]
            self.obs["depth"][rows] = self._camera.look(state[:, POSITION], state[:, ORIENTATION])

    def observe(self, rows: Any, commands: Array, actions: Array) -> None:
        """Write what these rows observe now."""
        self.obs["commands"][rows] = commands[rows]
        self.obs["proprioception"][rows] = self._noisy(rows, self._proprioception(rows, actions[rows]), NOISE)
        if "scandots" in self.obs:
            self.obs["scandots"][rows] = self._noisy(rows, self._scandots(rows), SCANDOT_NOISE)
        if "privileged" in self.obs:
            self.obs["privileged"][rows] = self._privileged(rows)

    def _noisy(self, rows: Any, values: Array, noise: Any) -> Array:
        if not self._noise:
            return values
        return values + self._noise * noise * self._random.uniform(rows, values.shape[1])

    def _proprioception(self, rows: Any, actions: Array) -> Array:
        state = self._physics.state[rows]
        down = np.broadcast_to((0.0, 0.0, -1.0), (len(state), 3))
        columns = (
            state[:, ANGULAR] * TURNING_SCALE,
            turn_into(state[:, ORIENTATION], down),
            state[:, ANGLES] - robot.STANCE,
            state[:, SPEEDS] * SPEED_SCALE,
            actions,
            self._physics.sensors[rows, robot.FEET_TOUCH] > TOUCHING,
        )
        return np.concatenate(columns, axis=1)

    def _scandots(self, rows: Any) -> Array:
        state = self._physics.state[rows]
        yaw = yaw_of(state[:, ORIENTATION])
        cos, sin = np.cos(yaw)[:, None], np.sin(yaw)[:, None]
        ahead, aside = SCANDOTS.T
        x = state[:, 1:2] + cos * ahead - sin * aside
        y = state[:, 2:3] + sin * ahead + cos * aside
        return SCANDOT_SCALE * np.clip(state[:, 3:4] - robot.STAND_HEIGHT - self._terrain.height(x, y), -1, 1)

    def _privileged(self, rows: Any) -> Array:
        state, sensors = self._physics.state[rows], self._physics.sensors[rows]
        feet = sensors[:, robot.FEET].reshape(-1, len(robot.LEGS), 3)
        trunk = state[:, POSITION]
        columns = (
            turn_into(state[:, ORIENTATION], state[:, LINEAR]),
            sensors[:, robot.FEET_TOUCH] * FORCE_SCALE,
            np.clip(feet[..., 2] - self._terrain.height(feet[..., 0], feet[..., 1]), -1, 1),
            np.clip(trunk[:, 2:] - self._terrain.height(trunk[:, :1], trunk[:, 1:2]), -1, 1),
            self._body[self._physics.body[rows]],
        )
        return np.concatenate(columns, axis=1)
