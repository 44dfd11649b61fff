"""Two ways of collecting, compared over the same seeds: short rollouts and many updates, or long ones and few.

python examples/ab_comparison.py
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from twostep import Comparison, PPOTrainer, compare, make_env, make_policy, plot_comparison


def train(seed: int, rollout_steps: int, total_timesteps: int) -> dict[str, list[float]]:
    """Train once; both ways begin with the same weights and the same number of environments."""
    env = make_env("CartPole-v1", num_envs=8, seed=seed)
    policy = make_policy(env, seed=seed)
    settings = {"learning_rate": 1e-3, "n_epochs": 4, "batch_size": 256}
    trainer = PPOTrainer(policy, env, rollout_steps=rollout_steps, seed=seed, device="cpu", **settings)
    history = trainer.train(total_timesteps)
    env.close()
    return history


def main(
    seeds: Sequence[int] = range(5), total_timesteps: int = 30_000, out: str = "runs/ab_comparison.png"
) -> Comparison:
    """Compare, print, draw."""
    comparison = compare(
        {
            "32 steps": lambda seed: train(seed, 32, total_timesteps),
            "256 steps": lambda seed: train(seed, 256, total_timesteps),
        },
        seeds,
    )
    print(comparison)
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    print(plot_comparison(comparison, out, title=f"CartPole-v1, {len(list(seeds))} seeds, steps per rollout"))
    return comparison


if __name__ == "__main__":
    main()
