"""Teachers whom students imitate: runs and saved policies, by their names in settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twostep.config import TrainingConfig
from twostep.errors import ConfigError

if TYPE_CHECKING:
    from twostep.policies.actor_critic import ActorCritic
    from twostep.protocols import RowEnv
    from twostep.trainer import PPOTrainer


def make_distiller(config: TrainingConfig, env: RowEnv, student: ActorCritic, **taught: Any) -> PPOTrainer:
    """Make a trainer that imitates the teacher of the settings."""
    from twostep.distill import Distiller

    if config.replay.kept or config.self_play.snapshot_every:
        raise ConfigError("imitation.teacher leaves no room for replay or self_play: leave these out.")
    teacher = find_teacher(config.imitation.teacher, student)
    return Distiller(student, teacher, env, config.ppo, imitation=config.imitation, seed=config.seed, **taught)


def find_teacher(name: str, student: ActorCritic) -> ActorCritic:
    """Return the newest policy of a run, or a saved one, as a teacher of this student."""
    from twostep.distill import teacher_for
    from twostep.store import PolicyStore

    return teacher_for(student, PolicyStore().policy(name if "://" in name else f"run://{name}").policy(), name)
