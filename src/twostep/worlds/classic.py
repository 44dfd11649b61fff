"""Classic control tasks with something taken away."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

Array = np.ndarray[Any, np.dtype[np.float32]]


class WithoutVelocities(gym.ObservationWrapper[Array, Any, Array]):
    """Shows of CartPole where the cart and the pole are, not how they move: an agent must remember to balance it."""

    def __init__(self, env: gym.Env[Array, Any]) -> None:
        super().__init__(env)
        full = env.observation_space
        assert isinstance(full, spaces.Box)
        self.observation_space = spaces.Box(full.low[::2], full.high[::2], dtype=np.float32)

    def observation(self, observation: Array) -> Array:
        """Keep position and angle."""
        return observation[::2]


def cartpole_without_velocities(**kwargs: Any) -> gym.Env[Array, Any]:
    """Make CartPole-v1 (500 steps) with its two velocities hidden."""
    return WithoutVelocities(gym.make("CartPole-v1", disable_env_checker=True, **kwargs))


class InGroups(gym.ObservationWrapper[Any, Any, Array]):
    """Shows CartPole as two groups, `position` and `velocity`, of which a policy may look at one alone."""

    def __init__(self, env: gym.Env[Array, Any]) -> None:
        super().__init__(env)
        full = env.observation_space
        assert isinstance(full, spaces.Box)
        self.observation_space: spaces.Space[Any] = spaces.Dict(
            {name: spaces.Box(full.low[at::2], full.high[at::2], dtype=np.float32) for name, at in _GROUPS.items()}
        )

    def observation(self, observation: Array) -> dict[str, Array]:
        """Part places from speeds."""
        return {name: observation[at::2] for name, at in _GROUPS.items()}


_GROUPS = {"position": 0, "velocity": 1}


def cartpole_in_groups(**kwargs: Any) -> gym.Env[Any, Any]:
    """Make CartPole-v1 (500 steps) with a dict of observations."""
    return InGroups(gym.make("CartPole-v1", disable_env_checker=True, **kwargs))
