"""Losses of your own beside PPO's: any function of six arguments, which may report what it measured.

    python examples/custom_losses.py --steps 20000

A loss gets what counts of a minibatch, `[1, N, ...]`. Gradients flow through `values` and through whatever you compute
with `policy`. One that always does the same operations may say so by `RecordableLoss`:
small networks then replay it together with PPO's own loss.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor

from twostep import PPOTrainer, RecordableLoss, make_env, make_policy


def calm_loss(
    policy: Any, obs: Tensor, actions: Tensor, rewards: Tensor, values: Tensor, advantages: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Keep the policy from changing its mind when what it sees is only a little different."""
    starts = torch.ones(rewards.shape, dtype=torch.bool)
    memory = policy.initial_state(rewards.shape[1])
    here = policy(obs, memory, starts).distribution.log_prob(actions)
    beside = policy(obs + 0.01 * torch.randn_like(obs), memory, starts).distribution.log_prob(actions)
    jump = (here - beside).square().mean()
    return 0.1 * jump, {"jump": jump}


@RecordableLoss
def upright_loss(
    policy: Any, obs: Tensor, actions: Tensor, rewards: Tensor, values: Tensor, advantages: Tensor
) -> Tensor:
    """Teach the critic what we know: a pole that leans far is worth little."""
    leans_far = obs[..., 2].abs() > 0.15
    return 1e-4 * (torch.relu(values) * leans_far).square().mean()


def train(steps: int) -> dict[str, list[float]]:
    """Train CartPole with both, and return the history: losses appear in it under their functions' names."""
    env = make_env("CartPole-v1", num_envs=8, seed=0)
    trainer = PPOTrainer(
        make_policy(env, seed=0),
        env,
        seed=0,
        device="cpu",
        rollout_steps=128,
        minibatch_size=256,
        custom_losses=[calm_loss, upright_loss],
    )
    return trainer.train(steps)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    history = train(parser.parse_args().steps)
    for name in ("mean_reward", "calm_loss", "jump", "upright_loss"):
        print(f"{name:12}  {history[name][0]:9.5f} -> {history[name][-1]:9.5f}")
