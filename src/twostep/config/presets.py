"""Settings under which the family of trainers that twostep unites was run, and one for trying things out."""

from __future__ import annotations

from dataclasses import replace

from twostep.config.tree import EnvironmentConfig, TrainerConfig, TrainingConfig
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


def janus() -> PPOConfig:
    """Return the settings of a bare `PPOTrainer(policy, env)`: ten epochs of small minibatches, for one environment."""
    return PPOConfig(rollout_steps=2048, update_epochs=10, minibatch_size=64, adam_eps=1e-8, value_loss_scale=1.0)


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
