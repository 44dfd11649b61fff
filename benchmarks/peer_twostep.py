"""twostep on the workloads."""

from __future__ import annotations

from typing import Any

import torch
from meter import Meter
from workloads import (
    CLIP,
    GAE_LAMBDA,
    GAMMA,
    MAX_GRADIENT_NORM,
    VALUE_WEIGHT,
    Workload,
    make_gym_env,
    make_gym_vector_env,
)

from twostep import AgentConfig, PPOConfig, PPOTrainer, make_policy


def train(_name: str, workload: Workload, meter: Meter, seed: int) -> None:
    """Train until the meter has enough."""
    torch.set_num_threads(workload.threads)
    torch.set_float32_matmul_precision(workload.matmul)
    env = build_env(workload, seed)
    policy = make_policy(env, agent_config(workload), seed=seed)
    trainer = PPOTrainer(policy, env, ppo_config(workload), device="cpu", seed=seed)
    trainer.train(10**9, callback=lambda _trainer, _metrics: meter.update_done())


def ppo_config(workload: Workload) -> PPOConfig:
    """Write the workload in twostep's words."""
    return PPOConfig(
        lr=workload.lr,
        gamma=GAMMA,
        gae_lambda=GAE_LAMBDA,
        clip_coef=CLIP,
        ent_coef=workload.entropy,
        vf_coef=VALUE_WEIGHT,
        max_grad_norm=MAX_GRADIENT_NORM,
        update_epochs=workload.epochs,
        rollout_steps=workload.steps,
        num_minibatches=workload.minibatches,
        bptt_length=workload.bptt_length or workload.steps,
        norm_adv="minibatch",
    )


def agent_config(workload: Workload) -> AgentConfig:
    """Choose the same network that the peers get."""
    if workload.env == "pong":
        return AgentConfig(name="nature_cnn")
    if workload.memory == "none":
        width, *_ = workload.hidden
        return AgentConfig(hidden_size=width, num_layers=len(workload.hidden), activation=workload.activation)
    return AgentConfig(
        num_layers=0,
        memory=workload.memory,
        memory_size=workload.memory_size,
        action_hidden=workload.hidden,
        value_hidden=workload.hidden,
        activation=workload.activation,
    )


def build_env(workload: Workload, seed: int) -> Any:
    """Vectorise the envs by twostep's own means, in this process."""
    if workload.env == "locomotion":
        return build_locomotion(workload)
    from twostep import as_env, make_env

    if workload.env in ("cartpole-vector", "pong"):
        return as_env(make_gym_vector_env(workload))
    return make_env(lambda: make_gym_env(workload.env), workload.rows, seed)


def build_locomotion(workload: Workload) -> Any:
    """Wrap the synthetic simulator."""
    from synthetic import SyntheticLocomotion

    from twostep import TensorEnv

    return TensorEnv(SyntheticLocomotion(workload.rows))
