"""A lock of many dials: easy to open where it is short, and never by chance where it is long."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from twostep.errors import EnvError

Array = np.ndarray[Any, np.dtype[np.float32]]


class CombinationLock(gym.Env[Array, Any]):
    """Dials are set one after the other; a wrong number ends the episode, the last right one opens the lock: reward 1.

    Chance opens a lock of n dials once in `choices ** n` episodes, so whoever only ever sees a long one learns nothing.
    `reset(options={"length": n})` gives one of fewer dials, the first n of the same lock: all that opens a short lock
    helps with a longer one. An observation says which dial is next, and how many the lock has.

    Args:
        length: Dials of the whole lock, and of an episode whose reset does not say another number.
        choices: Numbers of a dial.
        combination: Seed of the right numbers, which are the same in every episode.
    """

    def __init__(self, length: int = 12, choices: int = 4, combination: int = 0) -> None:
        for name, value, least in (("length", length, 1), ("choices", choices, 2)):
            if value < least:
                raise EnvError(f"{name}={value} must be {least} or more: a lock of 12 dials with 4 numbers is usual.")
        self.num_dials = self.length = length
        self._right = np.random.default_rng(combination).integers(choices, size=length).tolist()
        self._at = 0
        self.observation_space = spaces.Box(0.0, 1.0, (length + 1,), np.float32)
        self.action_space = spaces.Discrete(choices)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Begin with the first dial of a lock of `options["length"]`."""
        super().reset(seed=seed)
        length = (options or {}).get("length", self.num_dials)
        if not 1 <= length <= self.num_dials:
            raise EnvError(f"length={length} must be from 1 to {self.num_dials}, the dials of the whole lock.")
        self.length, self._at = int(length), 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Set the next dial."""
        is_right = action == self.right_number
        self._at += is_right
        opened = self._at == self.length
        return self._obs(), float(opened), opened or not is_right, False, {"success": opened}

    @property
    def right_number(self) -> int:
        """What the next dial must be set to."""
        return self._right[self._at]

    def _obs(self) -> Array:
        obs = np.zeros(self.num_dials + 1, dtype=np.float32)
        obs[-1] = self.length / self.num_dials
        if self._at < self.length:
            obs[self._at] = 1.0
        return obs
