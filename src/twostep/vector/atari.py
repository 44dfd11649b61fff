"""Atari games, run and preprocessed by the Arcade Learning Environment's own vector."""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium as gym

from twostep.errors import EnvError

_OLD_SUFFIX = "NoFrameskip-v4"
_IGNORED_BY_VECTOR = ("frameskip", "mode", "difficulty", "obs_type", "render_mode")


def atari_spec(env_id: str) -> Any | None:
    """Return the registered spec of an Atari id (`ALE/Pong-v5`, `PongNoFrameskip-v4`), or None for other ids."""
    if not env_id.startswith("ALE/") and not env_id.endswith(_OLD_SUFFIX):
        return None
    try:
        gym.register_envs(importlib.import_module("ale_py"))
    except ModuleNotFoundError as error:
        raise EnvError(
            f"{env_id!r} needs the module ale_py, which cannot be found. To mend it: pip install ale-py."
        ) from error
    if env_id not in gym.registry:
        name = env_id.removeprefix("ALE/").removesuffix(_OLD_SUFFIX).partition("-")[0]
        near = [known for known in gym.registry if name.lower() in known.lower()]
        hint = f"Did you mean {', '.join(near[:3])}?" if near else "Ids look like ALE/Pong-v5 or PongNoFrameskip-v4."
        raise EnvError(f"There is no Atari environment {env_id!r}. {hint}")
    return gym.registry[env_id]


def make_atari(spec: Any, num_envs: int, env_kwargs: dict[str, Any]) -> gym.vector.VectorEnv[Any, Any, Any]:
    """Make a vector of one game, preprocessed the usual way.

    Up to 30 no-ops and a press of fire start an episode; each action lasts 4 frames, of which the last two are
    max-pooled; frames are gray, 84 x 84, stacked by 4; rewards are clipped to [-1, 1]; losing a life does not end an
    episode. The stickiness of actions is that of the id: 0.25 for v5, 0 for NoFrameskip-v4. Every part can be set by a
    keyword of `ale_py.vector_env.AtariVectorEnv`, for example `reward_clipping=False` to evaluate.
    """
    vector = importlib.import_module("ale_py.vector_env")
    settings = {key: value for key, value in spec.kwargs.items() if key not in _IGNORED_BY_VECTOR}
    settings |= {"autoreset_mode": "SameStep", **env_kwargs}
    return vector.AtariVectorEnv(num_envs=num_envs, **settings)
