"""Any environment a user may pass, as the one kind that both collecting and evaluating step."""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium as gym

from twostep.protocols import RowEnv
from twostep.tensors import TensorEnv
from twostep.vector import as_env


def adapted(env: Any) -> RowEnv:
    """Return `env` as a `RowEnv`, itself where it is one already; a simulator of tensors keeps its tensors."""
    known = isinstance(env, (gym.Env, gym.vector.VectorEnv)) or hasattr(env, "num_rows")
    if not known and hasattr(env, "num_envs"):
        return TensorEnv(env)
    return as_env(env)


def action_space_of(env: Any) -> Any:
    """Return the action space of one row, asking the environment without stepping it where it tells."""
    for name in ("single_action_space", "action_space"):
        space = getattr(env, name, None)
        if space is not None and not inspect.ismethod(space):  # many agents have a method that tells each one's
            return space
    return None if env is None else adapted(env).action_space
