"""Collectors in threads gather the next rollout while the learner learns from this one.

    python examples/overlapped_collection.py --steps 20000

Each has an environment, a copy of the policy and random numbers of its own, so the run can be repeated. What is
learned from was collected by the policy before its last update; PPO's ratio knows, because log-probabilities are kept
with the data.
"""

from __future__ import annotations

import argparse

from twostep import CollectorTeam, OverlappedCollector, PPOConfig, PPOOptimizer, evaluate, make_env, make_policy


def train(steps: int) -> float:
    """Train on CartPole, and return the mean return of ten episodes afterwards."""
    envs = [make_env("CartPole-v1", num_envs=4, seed=number) for number in range(3)]
    policy = make_policy(envs[0], seed=0)
    learner = PPOOptimizer(policy, config=PPOConfig(lr=1e-3, update_epochs=8))

    collected = 0
    with CollectorTeam(envs, policy, num_steps=128, seed=0) as team:
        overlapped = OverlappedCollector(team)
        while collected < steps:
            rollout = overlapped.rollout()  # the next one begins before this returns
            metrics = learner.update(rollout)
            collected += int(rollout.valid.sum())
            print(f"{collected:7,} steps  {overlapped.lag} update behind  KL {metrics['approx_kl']:.4f}")
    return evaluate(policy, envs[0], episodes=10, seed=1).mean_return


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    print(f"evaluated at {train(parser.parse_args().steps):.1f}")
