"""Which environments there are, what makes each, which worker steps it, and what it may take."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from twostep.errors import EnvError
from twostep.vector.failures import worker_name
from twostep.vector.makers import Registered
from twostep.vector.members import Member
from twostep.vector.missing import did_you_mean
from twostep.vector.worker import Made


def env_sources(num_envs: int, env_cfg: Any) -> list[Any]:
    """Return what makes each environment, from one for all or one for each."""
    if num_envs < 1:
        raise EnvError(f"num_envs={num_envs}, but must be 1 or more. Use num_envs=1 for a single environment.")
    if not isinstance(env_cfg, Sequence) or isinstance(env_cfg, str):
        return [_source(env_cfg)] * num_envs
    if len(env_cfg) != num_envs:
        raise EnvError(
            f"{len(env_cfg)} environments were listed, but num_envs={num_envs}. Make the two agree, or pass one "
            f"function, which is called once per environment."
        )
    return [_source(one) for one in env_cfg]


def _source(env_cfg: Any) -> Any:
    if isinstance(env_cfg, str):
        # The specification travels, not the name: what the main module has registered is unknown to a new process.
        return Registered(_spec(env_cfg), env_cfg)
    if not callable(env_cfg) and not callable(getattr(env_cfg, "make", None)):
        raise EnvError(
            f"{env_cfg!r} makes no environment in another process. Pass a function without arguments, such as "
            f"lambda: MyEnv(), an object with a method make(), a Gymnasium id, or a list of these."
        )
    return env_cfg


def _spec(env_id: str) -> Any:
    try:
        return gym.spec(env_id)
    except (gym.error.UnregisteredEnv, ModuleNotFoundError) as error:
        raise EnvError(f"There is no environment {env_id!r}.{did_you_mean(env_id, list(gym.registry))}") from error


def own_seed(env_cfg: Any) -> int | None:
    """Return the seed that a config has, if it has one."""
    seed = getattr(env_cfg, "seed", None)
    return int(seed) if isinstance(seed, (int, np.integer)) else None


def first_envs(num_envs: int, num_workers: int | None) -> list[int]:
    """Return the first environment of each worker: parts as equal as can be; None takes a worker per usable core."""
    if num_workers is not None and not 1 <= num_workers <= num_envs:
        raise EnvError(
            f"num_workers={num_workers}, but must be between 1 and num_envs={num_envs}. None takes one per core."
        )
    workers = min(num_envs, usable_cores()) if num_workers is None else num_workers
    return [number * num_envs // workers for number in range(workers)]


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def one_kind(members: Sequence[Member]) -> Made:
    """Return what the environments are like, and refuse workers whose environments differ from those of the first."""
    first = members[0].made
    assert first is not None
    for member in members:
        assert member.made is not None
        for name, value, expected in zip(Made._fields[:-1], member.made, first, strict=False):
            if value != expected:
                raise EnvError(
                    f"{worker_name(member)} has {name} {value}, but env 0 has {expected}: all must have the same. "
                    f"Make them with the same arguments, or pad them to one space by a wrapper."
                )
    return first


def require_limits(step_timeout: float, start_timeout: float, restarts: int) -> None:
    """Refuse limits that cannot be kept."""
    for name, value in (("step_timeout", step_timeout), ("start_timeout", start_timeout)):
        if not 0 < value <= 1e6:
            raise EnvError(
                f"{name}={value}, but must be above 0 and at most 1e6 seconds. 60.0 suits most environments."
            )
    if restarts < 0:
        raise EnvError(f"restarts={restarts}, but must be 0 or more. 0 raises the first failure of a worker.")
