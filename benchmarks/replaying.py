"""Whether past experience helps: the same seeds with and without it, at the same number of environment steps.

python benchmarks/replaying.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from twostep import Comparison, PPOConfig, PPOTrainer, ReplayBuffer, compare, make_env, make_policy, plot_comparison

History = dict[str, list[float]]
FEW = PPOConfig(rollout_steps=128, minibatch_size=64, update_epochs=4, lr=1e-3)
"""Little fresh experience per update, and more optimizer steps where past experience is beside it."""
ENVIRONMENTS = 2


def trained(ratio: float, total_timesteps: int, epochs: int = FEW.update_epochs) -> Callable[[int], History]:
    """Return a strategy: train by so much past experience."""

    def train(seed: int) -> History:
        env = make_env("CartPole-v1", num_envs=ENVIRONMENTS, seed=seed)
        replay = ReplayBuffer(ratio=ratio, keep=10, seed=seed) if ratio else None
        settings = {"update_epochs": epochs}
        trainer = PPOTrainer(make_policy(env, seed=seed), env, FEW, seed=seed, device="cpu", replay=replay, **settings)
        history = trainer.train(total_timesteps)
        env.close()
        return history

    return train


def measure(seeds: Iterable[int], total_timesteps: int) -> Comparison:
    """Compare fresh experience alone, gone through twice as often, and mixed with as much past experience."""
    return compare(
        {
            "fresh": trained(0.0, total_timesteps),
            "fresh, twice the epochs": trained(0.0, total_timesteps, 2 * FEW.update_epochs),
            "half past": trained(0.5, total_timesteps),
        },
        seeds,
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    comparison = measure(range(6), 10_000)
    print(comparison)
    Path("runs").mkdir(exist_ok=True)
    print(plot_comparison(comparison, "runs/replaying.png", title="CartPole-v1, 2 environments: past experience"))
