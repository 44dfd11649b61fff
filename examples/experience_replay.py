"""Experience is kept: collected into files, learned from later, and mixed with what is new.

python examples/experience_replay.py
"""

from __future__ import annotations

from pathlib import Path

from twostep import PPOTrainer, ReplayBuffer, load_rollouts, make_env, make_policy, save_rollouts


def make_trainer(seed: int, replay: ReplayBuffer | None = None) -> PPOTrainer:
    """Make a small trainer of its own."""
    env = make_env("CartPole-v1", num_envs=8, seed=seed)
    return PPOTrainer(make_policy(env, seed=seed), env, rollout_steps=128, device="cpu", seed=seed, replay=replay)


def collect_files(trainer: PPOTrainer, folder: Path, count: int) -> list[Path]:
    """Phase one alone: no learning. `twostep inspect FILE` shows what is in one."""
    return [save_rollouts(trainer.collect_rollouts(128), folder / f"rollout_{i}.safetensors") for i in range(count)]


def learn_from_files(trainer: PPOTrainer, files: list[Path], epochs: int) -> None:
    """Phase two alone: no environment. The further the policy moves from the one that acted, the staler the files."""
    for epoch in range(epochs):
        measured = [trainer.learn(load_rollouts(file), recompute=True) for file in files]
        kl, clipped = (sum(one[name] for one in measured) / len(files) for name in ("approx_kl", "clipfrac"))
        print(f"epoch {epoch}: loss {measured[-1]['loss']:.4f}, KL {kl:.4f}, {clipped:.0%} clipped")


def train_with_replay(folder: Path, total_timesteps: int) -> PPOTrainer:
    """Both in turn, every update on half new and half past experience, recent files drawn more often."""
    replay = ReplayBuffer(folder, keep=50, ratio=0.5, recency=2.0)
    trainer = make_trainer(seed=1, replay=replay)
    history = trainer.train(total_timesteps)
    stale = {name: round(values[-1], 3) for name, values in history.items() if name.startswith("replay_")}
    print(f"{len(replay)} files; return {history['mean_reward'][-1]:.1f}; {stale}")
    return trainer


def main(folder: str = "runs/experience", files: int = 10, epochs: int = 5, total_timesteps: int = 20_000) -> None:
    """Collect files, learn from them, then train with replay."""
    trainer = make_trainer(seed=0)
    learn_from_files(trainer, collect_files(trainer, Path(folder) / "collected", files), epochs)
    train_with_replay(Path(folder) / "replayed", total_timesteps)


if __name__ == "__main__":
    main()
