"""Any environment a user may pass, as the one kind that both collecting and evaluating step."""

from __future__ import annotations

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
