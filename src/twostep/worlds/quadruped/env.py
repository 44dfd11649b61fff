"""One robot, as a Gymnasium environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from twostep.errors import EnvError, StateError
from twostep.worlds.quadruped.config import QuadrupedConfig
from twostep.worlds.quadruped.world import World

Obs = dict[str, npt.NDArray[Any]]


class QuadrupedEnv(gym.Env[Any, Any]):
    """A robot of twelve joints is to walk as it is commanded, over ground of a type and a difficulty.

    An action is, for each joint, where between one bound and the other around the stance its motor shall pull it
    (`action_scale`), fifty times a second. `sensing` says what is observed, `RewardWeights` what is rewarded. An
    episode ends when the robot falls, and is cut after `max_seconds`. Its last info tells how it went: `success`,
    `progress` (the way made, as a part of the way commanded), errors of velocities, and what each part of the reward
    brought.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - declared so by Gymnasium

    def __init__(self, config: QuadrupedConfig | None = None, **settings: Any) -> None:
        """Take a config, or its settings one by one."""
        self.config = QuadrupedConfig.from_dict(settings) if config is None else config
        if config is not None and settings:
            raise EnvError(f"{', '.join(settings)} came beside a config, which says it already. Give one of the two.")
        self.world = World(self.config, 1)
        self.observation_space: spaces.Space[Any] = self.world.observation_space
        self.action_space = self.world.action_space
        self._begun = self._over = False

    def set_task(self, task: Mapping[str, Any]) -> None:
        """Say which ground episodes have from the next one on: `{"terrain": "stairs", "difficulty": 3}`."""
        self.world.set_task([0], task)

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Begin an episode; `options` is a task, for this time and later ones."""
        super().reset(seed=seed)
        first = seed is not None or not self._begun
        if first:
            drawn = self.config.seed if seed is None else seed
            self.world.random.seed(
                [0], [int(np.random.SeedSequence().generate_state(1)[0]) if drawn is None else drawn]
            )
        if options:
            self.set_task(options)
        self._begun, self._over = True, False
        self.world.begin(np.zeros(1, dtype=np.int64), first=first)
        self.world.steer()
        return self._observed(), {}

    def step(self, action: npt.NDArray[Any]) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Take an action."""
        if not self._begun or self._over:
            raise EnvError("step was called, but no episode is running. Call reset first.")
        stepped = self.world.step(np.asarray(action, dtype=np.float64).reshape(1, -1))
        self._over = bool(len(stepped.ended))
        ends = bool(stepped.terminated[0]), bool(stepped.truncated[0])
        return self._observed(), float(stepped.rewards[0]), *ends, stepped.infos.get(0, {})

    def _observed(self) -> Obs:
        return {name: values[0].copy() for name, values in self.world.observe(slice(None)).items()}

    def state_dict(self) -> dict[str, Any]:
        """Return where the robot stands."""
        if not self._begun:
            raise StateError("No episode has begun, so there is no state to keep. Call reset first.")
        return {"robot": self.world.state_of(0), "over": self._over}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken."""
        self.world.go_on([state["robot"]])
        self._begun, self._over = True, bool(state["over"])

    def close(self) -> None:
        """End the threads."""
        self.world.close()
