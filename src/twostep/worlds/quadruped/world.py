"""Episodes of many robots: they begin, are commanded, earn, are pushed, fall, and end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from twostep.errors import EnvError, StateError
from twostep.worlds.quadruped import robot
from twostep.worlds.quadruped.config import QuadrupedConfig
from twostep.worlds.quadruped.physics import ANGLES, ANGULAR, LINEAR, ORIENTATION, SPEEDS, Physics, turn_into, yaw_of
from twostep.worlds.quadruped.randomness import RowRandom
from twostep.worlds.quadruped.rewards import MOVING, PARTS, Moment, reward_parts, weights_of
from twostep.worlds.quadruped.sensing import TOUCHING, Senses
from twostep.worlds.quadruped.terrain import REACH, Terrain

Array = npt.NDArray[Any]

MOST_TILT = 0.5
"""Cosine of the tilt below which a robot has fallen."""
SUCCESS = 0.8
"""Part of the way from which on an episode is a success."""
FLAT = "flat"
TOLD = ("success", "progress", "fell", "distance", "velocity_error", "yaw_rate_error", "seconds")
STATISTICS = (*TOLD, *(f"reward_{part}" for part in PARTS))
"""Numbers of an episode's last info: how it went, and what each part of the reward brought."""


@dataclass
class Stepped:
    """What a step brought."""

    rewards: Array
    terminated: Array
    truncated: Array
    ended: Array
    """Rows whose episode ended."""
    infos: dict[int, dict[str, Any]]


class World:
    """Robots on one ground, each alone in a world of its own."""

    def __init__(self, config: QuadrupedConfig, num_robots: int) -> None:
        self.config, self.num_robots = config, num_robots
        self.terrain = Terrain(config.terrains, config.num_levels, config.terrain_seed)
        self.physics = Physics(config, self.terrain, num_robots)
        self.random = RowRandom(num_robots)
        self.senses = Senses(config, self.terrain, self.physics, self.random)
        self.observation_space = self.senses.space
        self.action_space = spaces.Box(-1.0, 1.0, (robot.NUM_JOINTS,), np.float32)
        self._weights = weights_of(config.rewards, config.step_seconds)
        self._push_steps = max(1, round(config.chance.push_seconds / config.step_seconds))
        self._tasks: dict[int, tuple[int, int]] = {}
        self.kind = np.zeros(num_robots, dtype=np.int64)
        """Type of each robot's ground, as a number of `config.terrains`."""
        self.level = np.zeros(num_robots, dtype=np.int64)
        self.step_count = np.zeros(num_robots, dtype=np.int64)
        self.first_step = np.zeros(num_robots, dtype=np.int64)
        """The step that each episode began with: not 0 where it began somewhere in the middle of its time."""
        self.command = np.zeros((num_robots, 3))
        self.heading = np.zeros(num_robots)
        self.action = np.zeros((num_robots, robot.NUM_JOINTS))
        self.air_time = np.zeros((num_robots, len(robot.LEGS)))
        self.totals = np.zeros((num_robots, len(PARTS)))
        """What each part of the reward brought so far, weighted."""
        self.course = np.zeros((num_robots, 4))
        """Sums over the episode: way commanded, way made, errors of velocity and of yaw rate."""

    def set_task(self, rows: Sequence[int], task: Any) -> None:
        """Say which ground these rows have from their next episodes on: `{"terrain": "stairs", "difficulty": 3}`."""
        types, levels = self.config.terrains, self.config.num_levels
        if not isinstance(task, Mapping) or set(cast("Mapping[str, Any]", task)) != {"terrain", "difficulty"}:
            raise EnvError(f"The task {task!r} must say 'terrain' and 'difficulty': {{'terrain': 'flat', ...: 0}}.")
        kind, level = task["terrain"], task["difficulty"]
        if kind not in types:
            raise EnvError(f"terrain={kind!r} is not built here, only {', '.join(types)}. Name it in terrains.")
        if not 0 <= level < levels:
            raise EnvError(f"difficulty={level} must be from 0 to {levels - 1}. More come with num_levels.")
        self._tasks.update(dict.fromkeys(rows, (types.index(kind), int(level))))

    def begin(self, rows: Array, *, first: bool = False) -> None:
        """Begin the next episodes of rows; the `first` ones may begin in the middle of their time."""
        config, random = self.config, self.random
        chance, count = config.chance, len(rows)
        self.kind[rows] = random.whole(rows, 0, len(config.terrains) - 1)
        self.level[rows] = random.whole(rows, *config.levels)
        for row in rows.tolist():
            if row in self._tasks:
                self.kind[row], self.level[row] = self._tasks[row]
        self.physics.body[rows] = random.whole(rows, 0, chance.bodies - 1)
        position = np.zeros((count, 3))
        position[:, :2] = self.middle(rows) + random.uniform(rows, 2, -0.3, 0.3)
        position[:, 2] = robot.STAND_HEIGHT + 0.02
        yaw = random.uniform(rows, 1, -np.pi, np.pi)[:, 0]
        angles = robot.STANCE + chance.start * random.uniform(rows, robot.NUM_JOINTS)
        self.physics.place(rows, position, yaw, np.clip(angles, robot.LOWEST, robot.HIGHEST))
        self.first_step[rows] = random.whole(rows, 0, config.max_steps // 2) if first and chance.phase else 0
        self.step_count[rows] = self.first_step[rows]
        for memory in (self.action, self.air_time, self.totals, self.course):
            memory[rows] = 0
        self._command(rows)

    def middle(self, rows: Any) -> Array:
        """Return the middle of each robot's cell, `[M, 2]`."""
        return self.terrain.middle(self.kind[rows], self.level[rows])

    def _command(self, rows: Array) -> None:
        config = self.config
        ranges = np.array([config.forward, config.sideways, config.yaw_rate])
        drawn = self.random.uniform(rows, 5, 0.0, 1.0)
        command = ranges[:, 0] + drawn[:, :3] * (ranges[:, 1] - ranges[:, 0])
        self.heading[rows] = (2 * drawn[:, 3] - 1) * np.pi
        command[self._steered(rows), 1] = 0
        command[drawn[:, 4] < config.standing] = 0
        self.command[rows] = command

    def _steered(self, rows: Any) -> Array:
        """Tell which rows keep a heading."""
        names = np.array([name != FLAT for name in self.config.terrains])
        return names[self.kind[rows]]

    def steer(self) -> None:
        """Command robots that keep a heading to turn towards it."""
        yaw = yaw_of(self.physics.state[:, ORIENTATION])
        off = np.mod(self.heading - yaw + np.pi, 2 * np.pi) - np.pi
        rows = self._steered(slice(None)) & (np.abs(self.command[:, 0]) > MOVING)
        self.command[rows, 2] = np.clip(off[rows], *self.config.yaw_rate)

    def step(self, actions: Array) -> Stepped:
        """Take one action per row, `[B, 12]`."""
        config, everybody = self.config, slice(None)
        action = np.clip(actions, -1, 1)
        targets = robot.STANCE + config.action_scale * action
        if config.chance.action_noise:
            targets += config.chance.action_noise * self.random.uniform(everybody, robot.NUM_JOINTS)
        broke = self.physics.advance(np.clip(targets, robot.LOWEST, robot.HIGHEST))
        moment = self._moment(action, broke)
        parts = reward_parts(moment) * self._weights
        self.action = action
        self.totals += parts
        self._note_course(moment)
        self.step_count += 1
        truncated = (self.step_count >= config.max_steps) & ~moment.fell
        ended = np.flatnonzero(moment.fell | truncated)
        infos = {row: self.info(row, bool(moment.fell[row])) for row in ended.tolist()}
        self._go_on()
        return Stepped(parts.sum(1).astype(np.float32), moment.fell, truncated, ended, infos)

    def _moment(self, action: Array, broke: Array) -> Moment:
        state, sensors = self.physics.state, self.physics.sensors
        orientation = state[:, ORIENTATION]
        yaw = yaw_of(orientation)
        x, y, z = state[:, LINEAR].T
        velocity = np.stack([np.cos(yaw) * x + np.sin(yaw) * y, np.cos(yaw) * y - np.sin(yaw) * x, z], axis=1)
        gravity = turn_into(orientation, np.broadcast_to((0.0, 0.0, -1.0), (self.num_robots, 3)))
        on_ground = sensors[:, robot.FEET_TOUCH] > TOUCHING
        landed_after = self.air_time * on_ground
        self.air_time = (self.air_time + self.config.step_seconds) * ~on_ground
        soles = sensors[:, robot.FEET][:, 2::3] - robot.FOOT_RADIUS
        carrying = on_ground.sum(1)
        carried = state[:, 3] - (soles * on_ground).sum(1) / np.maximum(carrying, 1)
        fell = broke | (gravity[:, 2] > -MOST_TILT) | (state[:, 3] < 0)
        fell |= sensors[:, robot.TRUNK_TOUCH][:, 0] > TOUCHING
        return Moment(
            command=self.command,
            velocity=velocity,
            turning=state[:, ANGULAR],
            gravity=gravity,
            trunk_height=np.where(carrying > 0, carried, robot.STAND_HEIGHT),
            offsets=state[:, ANGLES] - robot.STANCE,
            speeds=state[:, SPEEDS],
            torques=sensors[:, robot.TORQUE],
            action_change=action - self.action,
            foot_speed=np.hypot(self.physics.foot_velocity[..., 0], self.physics.foot_velocity[..., 1]),
            on_ground=on_ground,
            landed_after=landed_after,
            knees=(sensors[:, robot.KNEES_TOUCH] > TOUCHING).sum(1),
            fell=fell,
        )

    def _note_course(self, moment: Moment) -> None:
        wanted, made = moment.command[:, :2], moment.velocity[:, :2]
        speed = np.hypot(wanted[:, 0], wanted[:, 1])
        along = (wanted * made).sum(1) / np.maximum(speed, 1e-9)
        error = made - wanted
        course = (
            speed,
            along * (speed > MOVING),
            np.hypot(error[:, 0], error[:, 1]),
            np.abs(moment.turning[:, 2] - moment.command[:, 2]),
        )
        self.course += np.stack(course, axis=1) * self.config.step_seconds

    def _go_on(self) -> None:
        """Draw commands and pushes that are due, carry robots back from the edge, and steer them."""
        chance, count = self.config.chance, self.step_count
        due = np.flatnonzero(count % self.config.command_steps == 0)
        if len(due):
            self._command(due)
        pushed = np.flatnonzero(count % self._push_steps == 0)
        if chance.push_speed and len(pushed):
            self.physics.state[pushed, 20:22] += self.random.uniform(pushed, 2) * chance.push_speed
        off = self.physics.state[:, 1:3] - self.middle(slice(None))
        far = np.abs(off).max(1) > REACH
        self.physics.state[far, 1:3] -= off[far]
        self.steer()

    def info(self, row: int, fell: bool) -> dict[str, Any]:
        """Tell how an episode went that ends now."""
        config = self.config
        seconds = float(self.step_count[row] - self.first_step[row]) * config.step_seconds
        missed = (config.max_steps - int(self.step_count[row])) * config.step_seconds
        asked, made, error, yaw_error = self.course[row].tolist()
        speed = float(np.hypot(*self.command[row, :2]))
        whole = asked + missed * speed
        progress = min(max(made / whole, 0.0), 1.0) if whole > MOVING else seconds / (seconds + missed)
        return {
            "terrain": config.terrains[self.kind[row]],
            "difficulty": int(self.level[row]),
            "success": progress >= SUCCESS and not fell,
            "progress": progress,
            "fell": fell,
            "distance": made,
            "velocity_error": error / seconds,
            "yaw_rate_error": yaw_error / seconds,
            "seconds": seconds,
            **{f"reward_{part}": total for part, total in zip(PARTS, self.totals[row].tolist(), strict=True)},
        }

    def observe(self, rows: Any) -> dict[str, Array]:
        """Write what these rows observe, and return the observations of all; the memory is used again."""
        due = (self.step_count - self.first_step) % self.config.camera_steps == 0
        everybody = np.arange(self.num_robots)
        self.senses.look(everybody[rows][due[rows]])
        self.senses.observe(rows, self.command, self.action)
        return self.senses.obs

    def _memories(self) -> dict[str, Array]:
        names = ("kind", "level", "step_count", "first_step", "command", "heading", "action", "air_time", "totals")
        own = {name: getattr(self, name) for name in (*names, "course")}
        physics = {name: getattr(self.physics, name) for name in ("state", "body", "sensors", "foot_velocity")}
        images = {"depth": self.senses.obs["depth"]} if self.config.depth else {}
        return own | physics | images | {"keys": self.random.keys, "drawn": self.random.drawn}

    def state_of(self, row: int) -> dict[str, Any]:
        """Return where one robot stands."""
        task = self._tasks.get(row)
        return {name: memory[row].copy() for name, memory in self._memories().items()} | {"task": task}

    def go_on(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Let every robot go on exactly where `state_of` was taken."""
        memories = self._memories()
        for row, state in enumerate(states):
            for name, memory in memories.items():
                if np.shape(state[name]) != memory[row].shape:
                    raise StateError(f"The state's {name} does not fit. Was it taken with other settings?")
                memory[row] = state[name]
            self._tasks.pop(row, None)
            if state["task"] is not None:
                self._tasks[row] = (int(state["task"][0]), int(state["task"][1]))

    def close(self) -> None:
        """End the threads."""
        self.physics.close()
