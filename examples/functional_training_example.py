"""The training loop as a function, with a step and losses of your own.

python examples/functional_training_example.py --steps 20000
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

from twostep import (
    PolicyStore,
    PPOConfig,
    Progress,
    TrainerConfig,
    TrainingState,
    default_training_step,
    functional_training_loop,
    make_env,
    make_policy,
)


def curiosity_loss(policy: Any, obs: Any, actions: Any, rewards: Any, values: Any, advantages: Any) -> torch.Tensor:
    """Ask the critic to tell states apart: any term may be added whose gradient reaches the network."""
    return -0.01 * (values - values.mean()).abs().mean()


def careful_step(state: Any, components: Any, config: Any, experience: Any, custom_losses: Any) -> dict[str, float]:
    """Do one collection and one update, and stop for good once the policy has become certain."""
    metrics = default_training_step(state, components, config, experience, custom_losses)
    state.should_stop = metrics["entropy"] < 0.05
    return metrics | {"certainty": 1.0 - metrics["entropy"] / torch.log(torch.tensor(2.0)).item()}


def train(steps: int) -> tuple[TrainingState, PolicyStore]:
    """Train on CartPole; the policies of the way are in the store."""
    vecenv = make_env("CartPole-v1", num_envs=8, seed=0)
    policy_store = PolicyStore()
    state = functional_training_loop(
        config=TrainerConfig(total_timesteps=steps, checkpoint_every=max(1, steps // 2)),
        ppo_config=PPOConfig(rollout_steps=128, lr=1e-3, update_epochs=8),
        policy=make_policy(vecenv, seed=0),
        policy_store=policy_store,
        vecenv=vecenv,
        step_fn=careful_step,
        custom_losses=[curiosity_loss],
        sinks=[Progress("CartPole-v1", steps)],
        seed=0,
    )
    return state, policy_store


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    state, store = train(parser.parse_args().steps)
    print(f"{state.epoch} updates, mean return {state.metrics()['mean_reward']:.1f}")
    print(f"best policy kept: {store.policy(selector='best').name}")
