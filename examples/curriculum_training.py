"""Opens a lock of eight dials by way of shorter ones, and shows that the long one alone teaches nothing.

python examples/curriculum_training.py
"""

from __future__ import annotations

from typing import Any

from twostep import AgentConfig, PPOTrainer, SuccessRateCurriculum, evaluate, make_env, make_policy

LOCK, DIALS = "twostep.worlds.lock:CombinationLock", 8
SETTINGS = {"rollout_steps": 32, "minibatch_size": 128, "update_epochs": 4, "lr": 1e-2, "gamma": 1.0, "ent_coef": 0.02}


def train(curriculum: Any, steps: int) -> float:
    """Train, and return how often the policy then opens the whole lock."""
    env = make_env(LOCK, num_envs=16, seed=0, length=DIALS)
    policy = make_policy(env, AgentConfig(num_layers=1, hidden_size=32), seed=0)
    trainer = PPOTrainer(policy, env, seed=0, device="cpu", curriculum=curriculum, **SETTINGS)
    trainer.train(steps)
    return evaluate(trainer.policy, make_env(LOCK, num_envs=16, length=DIALS), episodes=32, seed=1).mean_return


def main(steps: int = 20_000) -> dict[str, float]:
    """Train with a curriculum and without one."""
    shorter_first = {f"{length} dials": {"length": length} for length in range(1, DIALS + 1)}
    curriculum = SuccessRateCurriculum(shorter_first, history=20)
    opened = {"short locks first": train(curriculum, steps), "the whole lock at once": train(None, steps)}
    for name, success in opened.items():
        print(f"{name:24} opens {success:.0%} of {DIALS}-dial locks after {steps:,} steps")
    print({name: record.attempts for name, record in curriculum.tally.records.items()})
    return opened


if __name__ == "__main__":
    main()
