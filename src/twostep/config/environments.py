"""From settings to environments, with the other side of a match where there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twostep.config.tree import TrainingConfig
from twostep.vector import make_env

if TYPE_CHECKING:
    from twostep.protocols import RowEnv


def make_configured(
    config: TrainingConfig,
    num_envs: int | None = None,
    seed: int | None = None,
    agent_ids: tuple[str, ...] | None = None,
) -> RowEnv:
    """Make the environments that a configuration describes, or so many of them, from another seed, for other agents."""
    settings = config.env
    count = num_envs or settings.num_envs
    return make_env(
        settings.id,
        count,
        config.seed if seed is None else seed,
        vectorization=settings.vectorization,
        num_workers=min(settings.num_workers, count),
        restarts=settings.restarts,
        step_timeout=settings.step_timeout,
        start_method=settings.start_method,
        agent_ids=agent_ids or settings.agent_ids or None,
        **settings.kwargs,
    )
