"""What makes one environment, in whatever process it is called: it travels as its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from twostep.errors import ConfigError
from twostep.vector.missing import explained


@dataclass(frozen=True)
class Registered:
    """Makes environments of a Gymnasium id, in whatever process it is called."""

    env_spec: Any
    name: str

    def __call__(self, **env_kwargs: Any) -> Any:
        """Make one."""
        with explained(self.name):
            return gym.make(self.env_spec, disable_env_checker=True, **env_kwargs)


@dataclass(frozen=True)
class Maker:
    """Makes one environment as it was wished for, in whatever process it is called."""

    function: Callable[..., Any]
    wrappers: tuple[Callable[[Any], Any], ...]
    env_kwargs: dict[str, Any]

    def __call__(self) -> Any:
        """Make one and wrap it."""
        env = self.function(**self.env_kwargs)
        for wrapper in self.wrappers:
            env = wrapper(env)
        return env


_NOT_KWARGS = (
    *("spec", "num_envs", "seed", "vectorization", "wrappers", "num_workers"),
    *("restarts", "step_timeout", "start_method", "agent_ids", "opponent"),
)


def require_own(kwargs: Mapping[str, Any]) -> None:
    """Refuse, among what environments are to take, what making them takes itself."""
    for name in _NOT_KWARGS:
        if name in kwargs:
            rule = "must be set without kwargs: it is not the environment's own"
            raise ConfigError(f"kwargs.{name}={kwargs[name]!r} {rule}.")
