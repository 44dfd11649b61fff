"""The minibatch grows where the gradient is noisy and shrinks where it is calm; measuring takes no optimizer step.

python examples/adaptive_batch.py
"""

from __future__ import annotations

from twostep import PPOTrainer, make_env, make_policy


def main(total_timesteps: int = 30_000, smallest: int = 32, largest: int = 512) -> list[int]:
    """Train, and return the size of the minibatch after every update."""
    env = make_env("CartPole-v1", num_envs=8, seed=0)
    trainer = PPOTrainer(
        make_policy(env, seed=0),
        env,
        rollout_steps=128,
        minibatch_size=64,
        adaptive_minibatch=(smallest, largest),
        device="cpu",
        seed=0,
    )
    sizes: list[int] = []

    def note(trainer: PPOTrainer, metrics: dict[str, float]) -> None:
        sizes.append(trainer.learner.minibatch_size or 0)
        print(
            f"update {trainer.n_updates:3}: minibatches of {sizes[-1]:3}, return {metrics['mean_reward']:6.1f}, "
            f"gradient {metrics['grad_norm']:.3f}"
        )

    trainer.train(total_timesteps, callback=note)
    env.close()
    return sizes


if __name__ == "__main__":
    main()
