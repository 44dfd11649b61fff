"""Settings under which the family of trainers that twostep unites was run, and runs of three sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from twostep.config.tree import EnvironmentConfig, TrainerConfig, TrainingConfig, resolve_ppo_settings
from twostep.errors import ConfigError
from twostep.learn.settings import PPOConfig
from twostep.policies.settings import AgentConfig


def small_fast_config() -> TrainingConfig:
    """Return a run of seconds, to see that everything works."""
    return TrainingConfig(
        experiment_name="small_fast",
        env=EnvironmentConfig(id="CartPole-v1", num_envs=4),
        agent=AgentConfig(hidden_size=128),
        ppo=replace(metta(), rollout_steps=128, minibatch_size=64, update_epochs=2),
        trainer=TrainerConfig(total_timesteps=10_000),
    )


def medium_config() -> TrainingConfig:
    """Return a run of minutes to hours on one machine: teams with memory, seen again four times."""
    return TrainingConfig(
        experiment_name="medium",
        env=EnvironmentConfig(id="skirmish", num_envs=32),
        agent=AgentConfig(hidden_size=256, memory="lstm", memory_size=128),
        ppo=replace(metta(), rollout_steps=64, minibatch_size=1024),
        trainer=TrainerConfig(total_timesteps=10_000_000, checkpoint_every=500_000, eval_every=500_000),
    )


def large_distributed_config() -> TrainingConfig:
    """Return a run of many cores and a GPU: 327,680 steps by 5,120 agents per update, each seen once."""
    return TrainingConfig(
        experiment_name="large_distributed",
        env=EnvironmentConfig(id="skirmish", num_envs=1024, num_workers=16),
        agent=AgentConfig(hidden_size=512, memory="lstm", memory_size=512),
        ppo=replace(metta(), lr=4.6e-4, rollout_steps=64, bptt_length=64, minibatch_size=16_384, update_epochs=1),
        trainer=TrainerConfig(
            total_timesteps=50_000_000_000, log_interval=10, checkpoint_every=100_000_000, eval_every=1_000_000_000
        ),
    )


def janus() -> PPOConfig:
    """Return the settings of a bare `PPOTrainer(policy, env)`: ten epochs of small minibatches, for one environment."""
    return PPOConfig(rollout_steps=2048, update_epochs=10, minibatch_size=64, adam_eps=1e-8, value_loss_scale=1.0)


def ppo_settings(config: Any, changes: Mapping[str, Any]) -> PPOConfig:
    """Return the settings of PPO from whatever a trainer may be given, with changes by any of their names.

    That is a `PPOConfig`, a whole `TrainingConfig`, a mapping of settings that are not the default, or nothing.
    """
    if isinstance(config, TrainingConfig):
        config = config.ppo
    elif isinstance(config, Mapping):
        config = replace(janus(), **resolve_ppo_settings(cast("Mapping[str, Any]", config)))
    elif config is not None and not isinstance(config, PPOConfig):
        raise ConfigError(
            f"The settings are {type(config).__name__}; they must be a PPOConfig, a TrainingConfig or a dict such as "
            "{'lr': 1e-3}."
        )
    return replace(config or janus(), **resolve_ppo_settings(changes))


def require_own_rewards(config: TrainingConfig) -> None:
    """Refuse settings for which a policy and an environment are not enough: those of imitation and of self-play."""
    if config.imitation.teacher:
        raise ConfigError(
            f"imitation.teacher={config.imitation.teacher!r} is not for this trainer, which learns by rewards: take "
            "'twostep train', or Distiller(student, teacher, env, config.ppo, imitation=config.imitation)."
        )
    if config.self_play.snapshot_every:
        raise ConfigError(
            f"self_play.snapshot_every={config.self_play.snapshot_every} is not for this trainer, which plays in the "
            "environment as it is: take 'twostep train', or PPOTrainer(policy, SelfPlay(env, League(policy), ...))."
        )


def echelon() -> PPOConfig:
    """Return settings for teams with memory: four epochs over long rollouts."""
    return PPOConfig()


def metta() -> PPOConfig:
    """Return settings for many agents with small, careful updates, values clipped too."""
    return PPOConfig(clip_coef=0.1, clip_vloss=True, vf_clip_coef=0.1, norm_adv="minibatch", minibatch_size=256)


def locomotion() -> PPOConfig:
    """Return settings for walking with memory: 64 sequences of 24 steps per minibatch, AdamW, cosine to a tenth."""
    return PPOConfig(
        rollout_steps=240,
        update_epochs=10,
        minibatch_size=64 * 24,
        bptt_length=24,
        max_grad_norm=1.0,
        clip_vloss=True,
        value_loss_scale=1.0,
        optimizer="adamw",
        weight_decay=0.01,
        lr_schedule="cosine",
    )
