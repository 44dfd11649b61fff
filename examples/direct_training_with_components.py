"""Collect, then learn, with the two components themselves: everything between them is your own code.

python examples/direct_training_with_components.py --steps 20000
"""

from __future__ import annotations

import argparse

from twostep import PPOConfig, PPOOptimizer, RolloutCollector, evaluate, make_env, make_policy


def train(steps: int) -> float:
    """Train on CartPole for so many steps, and return the mean return of ten episodes afterwards."""
    config = PPOConfig(rollout_steps=128, lr=1e-3, update_epochs=8)
    vecenv = make_env("CartPole-v1", num_envs=8, seed=0)
    policy = make_policy(vecenv, seed=0)

    collector = RolloutCollector(vecenv, policy, num_steps=config.rollout_steps, seed=1)
    ppo = PPOOptimizer(policy, config=config)

    collected = 0
    while collected < steps:
        rollout = collector.rollout()
        collected += int(rollout.valid.sum())

        ppo.set_progress(collected / steps)
        losses = ppo.update(rollout)

        # Your own logic: here, a line whenever episodes ended.
        returns = [episode.ret for episode in rollout.episodes]
        if returns:
            print(f"{collected:7,} steps  return {sum(returns) / len(returns):6.1f}  KL {losses['approx_kl']:.3f}")

    return evaluate(policy, vecenv, episodes=10, seed=2).mean_return


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    print(f"evaluated at {train(parser.parse_args().steps):.1f}")
