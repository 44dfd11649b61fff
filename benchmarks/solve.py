"""How long CartPole takes: from the start of the process until the last 100 training episodes average 475."""

from __future__ import annotations

import time
from collections import deque

SOLVED = 475.0
WINDOW = 100


def run(library: str, seed: int, started: float) -> dict[str, float]:
    """Solve CartPole once with one library's tuned settings."""
    solved_after = {"twostep": solve_with_twostep, "sb3": solve_with_sb3}[library](seed)
    return {"seconds": time.time() - started, "steps": solved_after or float("nan"), "solved": float(solved_after > 0)}


def is_solved(returns: deque[float]) -> bool:
    """Say whether enough episodes have ended, and well enough."""
    return len(returns) >= WINDOW and sum(returns) / len(returns) >= SOLVED


def solve_with_twostep(seed: int) -> int:
    """Train with the configuration that ships for CartPole; return the steps it took, 0 for never."""
    import torch
    from learning import build_trainer

    from twostep.config import shipped_config

    torch.set_num_threads(1)
    config = shipped_config("cartpole")
    assert config is not None
    trainer = build_trainer(config, seed)
    trainer.train(
        config.trainer.total_timesteps, callback=lambda trainer, _metrics: not is_solved(trainer.episode_rewards)
    )
    return trainer.total_timesteps if is_solved(trainer.episode_rewards) else 0


def solve_with_sb3(seed: int) -> int:
    """Train with the settings of SB3's zoo; return the steps it took, 0 for never."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    class StopWhenSolved(BaseCallback):
        """Looks at every step, which is sooner than once per update."""

        def __init__(self) -> None:
            super().__init__()
            self.returns: deque[float] = deque(maxlen=WINDOW)

        def _on_step(self) -> bool:
            ended = [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
            self.returns.extend(ended)
            return not (ended and is_solved(self.returns))

    torch.set_num_threads(1)
    zoo_steps = 100_000
    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=8, seed=seed),
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gamma=0.98,
        gae_lambda=0.8,
        ent_coef=0.0,
        learning_rate=lambda left: 1e-3 * left,
        clip_range=lambda left: 0.2 * left,
        seed=seed,
        device="cpu",
    )
    callback = StopWhenSolved()
    model.learn(zoo_steps, callback=callback)
    return model.num_timesteps if is_solved(callback.returns) else 0
