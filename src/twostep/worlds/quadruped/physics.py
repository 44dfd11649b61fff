"""Many robots, each in a world of its own, stepped in one call by MuJoCo's threads."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from twostep.worlds.quadruped import robot
from twostep.worlds.quadruped.config import QuadrupedConfig
from twostep.worlds.quadruped.terrain import Terrain

Array = npt.NDArray[Any]

POSITION, ORIENTATION, ANGLES = slice(1, 4), slice(4, 8), slice(8, 20)
LINEAR, ANGULAR, SPEEDS = slice(20, 23), slice(23, 26), slice(26, 38)
WIDTH = 38
"""Columns of a state: the time, where the trunk is and how it is turned (w, x, y, z), the joints; their velocities,
that of the trunk's place as the world sees it and that of its turning as the trunk does."""


class Physics:
    """The states of all robots, `[B, 38]`, and what their sensors measured in the last step."""

    def __init__(self, config: QuadrupedConfig, terrain: Terrain, num_robots: int) -> None:
        mujoco = robot.import_mujoco()
        self.bodies = draw_bodies(config)
        self._models = [robot.make_model(terrain, body) for body in self.bodies]
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        threads = min(config.threads or cores or 1, num_robots)
        self._data = [mujoco.MjData(self._models[0]) for _ in range(threads)]
        self._pool = mujoco.rollout.Rollout(nthread=threads if threads > 1 else 0)
        self._substeps = config.substeps
        self.state = np.zeros((num_robots, WIDTH))
        self.body = np.zeros(num_robots, dtype=np.int64)
        """Which of `bodies` each robot has."""
        self.sensors = np.zeros((num_robots, self._models[0].nsensordata))
        """As of the last substep, one substep before `state`; those of `robot`."""
        self.foot_velocity = np.zeros((num_robots, len(robot.LEGS), 3))
        self._states = np.zeros((num_robots, config.substeps, WIDTH))
        self._sensed = np.zeros((num_robots, config.substeps, self.sensors.shape[1]))
        self._targets = np.zeros((num_robots, config.substeps, robot.NUM_JOINTS))

    def place(self, rows: Array, position: Array, yaw: Array, angles: Array) -> None:
        """Put robots down, at rest."""
        state = np.zeros((len(rows), WIDTH))
        state[:, POSITION], state[:, ANGLES] = position, angles
        state[:, 4], state[:, 7] = np.cos(yaw / 2), np.sin(yaw / 2)
        self.state[rows] = state
        self.sensors[rows], self.foot_velocity[rows] = 0, 0

    def advance(self, targets: Array) -> Array:
        """Let motors pull towards joint angles `[B, 12]` for one step; tell which robots' physics broke down, `[B]`."""
        self._targets[...] = targets[:, None]
        before = self.state[:, 0].copy()
        self._pool.rollout(
            [self._models[body] for body in self.body.tolist()],
            self._data,
            self.state,
            self._targets,
            skip_checks=True,
            nstep=self._substeps,
            state=self._states,
            sensordata=self._sensed,
        )
        self.state[...] = self._states[:, -1]
        self.sensors[...] = self._sensed[:, -1]
        self._measure_feet()
        # where its numbers explode, MuJoCo stops a robot's time
        return ~(self.state[:, 0] > before + (self._substeps - 0.5) * robot.TIMESTEP)

    def _measure_feet(self) -> None:
        feet = self._sensed[..., robot.FEET].reshape(*self._sensed.shape[:2], len(robot.LEGS), 3)
        if self._substeps > 1:
            self.foot_velocity = (feet[:, -1] - feet[:, 0]) / (robot.TIMESTEP * (self._substeps - 1))

    def close(self) -> None:
        """End the threads."""
        self._pool.close()


def draw_bodies(config: QuadrupedConfig) -> list[robot.Body]:
    """Make the different robots; the same for the same settings."""
    chance = config.chance
    built = robot.Body(stiffness=config.stiffness, damping=config.damping)
    if chance.bodies == 1:
        return [built]
    random = np.random.default_rng(config.terrain_seed)
    bodies: list[robot.Body] = []
    for _ in range(chance.bodies):
        friction, load, gain = (float(random.uniform(*ends)) for ends in (chance.friction, chance.load, chance.gains))
        bodies.append(robot.Body(friction, load, built.stiffness * gain, built.damping * gain))
    return bodies


def turn_into(orientation: Array, vector: Array) -> Array:
    """Return vectors `[B, 3]` of the world as they look to trunks `[B, 4]` (w, x, y, z)."""
    w, axis = orientation[:, :1], -orientation[:, 1:]
    twice = 2 * np.cross(axis, vector)
    return vector + w * twice + np.cross(axis, twice)


def yaw_of(orientation: Array) -> Array:
    """Return where trunks head, `[B]`, counter-clockwise from the x axis."""
    w, x, y, z = orientation.T
    return np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
