"""An environment in which one of several processes, `MISHAP_RANK`, dies, hangs or is told to stop: `MISHAP`."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import gymnasium as gym
import numpy as np

CUT = 70
"""Step of the environment at which it happens."""


class Walk(gym.Env):
    """A walk by chance and by choice, of plain attributes."""

    observation_space = gym.spaces.Box(-100, 100, (2,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.left = 0.0, int(self.np_random.integers(3, 20))
        return self.seen(), {}

    def seen(self) -> np.ndarray:
        return np.array([self.place, self.left], np.float32)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.place += action - 1 + float(self.np_random.normal())
        self.left -= 1
        self.total = getattr(self, "total", 0) + 1
        if self.total == CUT and os.environ.get("MISHAP_RANK") == os.environ.get("RANK"):
            happen(os.environ["MISHAP"])
        return self.seen(), -abs(self.place), self.left <= 0, False, {}


def happen(what: str) -> None:
    """Let it happen, but once, also where there was a restart."""
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
        return
    del os.environ["MISHAP_RANK"]
    if what == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "hangs":
        time.sleep(600)
    if what == "raises":
        raise ValueError("the floor is gone")
    if what == "told to stop":
        os.kill(os.getpid(), signal.SIGTERM)


def make() -> gym.Env:
    return Walk()
