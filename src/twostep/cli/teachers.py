"""Teachers whom students imitate: runs and saved policies, by their names in settings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from twostep.config import TrainingConfig
from twostep.errors import ConfigError

if TYPE_CHECKING:
    from twostep.policies.actor_critic import ActorCritic
    from twostep.protocols import RowEnv
    from twostep.store import PolicyRecord
    from twostep.trainer import PPOTrainer


def make_distiller(config: TrainingConfig, env: RowEnv, student: ActorCritic, **taught: Any) -> PPOTrainer:
    """Make a trainer that imitates the teacher of the settings."""
    from twostep.distill import Distiller

    if config.replay.kept or config.self_play.snapshot_every:
        raise ConfigError("imitation.teacher leaves no room for replay or self_play: leave these out.")
    teacher = find_teacher(config.imitation.teacher, student)
    return Distiller(student, teacher, env, config.ppo, imitation=config.imitation, seed=config.seed, **taught)


def with_teacher_named(config: TrainingConfig) -> TrainingConfig:
    """Return settings that name the very policy that teaches: the newest run in a folder is soon the student's."""
    if not config.imitation.teacher:
        return config
    return replace(config, imitation=replace(config.imitation, teacher=_record(config.imitation.teacher).uri))


def find_teacher(name: str, student: ActorCritic) -> ActorCritic:
    """Return the newest policy of a run, or a saved one, as a teacher of this student."""
    from twostep.distill import teacher_for

    return teacher_for(student, _record(name).policy(), name)


def _record(name: str) -> PolicyRecord:
    from twostep.store import PolicyStore

    return PolicyStore().policy(name if "://" in name else f"run://{name}")
