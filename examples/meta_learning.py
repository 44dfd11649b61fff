"""One policy for many tasks, told apart by what random actions meet in each: it does well at tasks it has never seen.

    python examples/meta_learning.py

Which direction is paid for is in no observation; only the trajectories that `get_task_trajectories` collects beforehand
show it. A policy that is not told them can do nothing but stand still on average.
"""

from typing import Any

import gymnasium as gym
import numpy as np
import torch

from twostep import ActorCritic, AgentConfig, PPOConfig, PPOTrainer, TaskActorCritic, combine_rollouts, make_env

Array = np.ndarray[Any, Any]
TASKS, UNSEEN = (np.deg2rad(degrees).tolist() for degrees in (range(0, 360, 45), (20, 110, 200, 290)))


class Walk(gym.Env[Array, Array]):
    """A walker on a plane, paid for every step in a direction that it does not see."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    task = 0.0

    def set_task(self, task: float) -> None:
        """Pay for another direction, an angle."""
        self.task = task

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        """Begin somewhere."""
        super().reset(seed=seed)
        self.position, self.left = self.np_random.normal(size=2), 10
        return self.position.astype(np.float32), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Walk."""
        self.position, self.left = self.position + 0.1 * action, self.left - 1
        paid = float(action @ (np.cos(self.task), np.sin(self.task)))
        return self.position.astype(np.float32), paid, False, self.left == 0, {}


class MetaLearningPPOTrainer(PPOTrainer):
    """Learns from all tasks at once, each told by its trajectories, or not told."""

    def collect_task_specific_rollouts(self, task: float, n_steps: int) -> dict[str, Any]:
        """Look around at random, then act on the task."""
        told = {"task_trajectories": self.get_task_trajectories(task)}
        return self.collect_rollouts(n_steps, **(told if isinstance(self.policy, TaskActorCritic) else {}))

    def meta_train(self, tasks: list[float], steps_per_task: int, epochs: int) -> None:
        """Collect from every task, and learn from all that together."""
        for _ in range(epochs):
            rollouts = [self.collect_task_specific_rollouts(task, steps_per_task) for task in tasks]
            self.learn(combine_rollouts(rollouts))


def compare(seed: int, epochs: int = 15) -> dict[str, float]:
    """Train a policy that is told and one that is not, on as many steps, and return how they do at unseen tasks."""
    scores: dict[str, float] = {}
    for name in ("told", "not told"):
        env, config = make_env(Walk, num_envs=8, seed=seed), AgentConfig(hidden_size=32)
        torch.manual_seed(seed)
        kind = TaskActorCritic if name == "told" else ActorCritic
        policy = kind(env.observation_space, env.action_space, config)
        config = PPOConfig(lr=3e-3, update_epochs=4, minibatch_size=320, gamma=0.5, ent_coef=0.0)
        trainer = MetaLearningPPOTrainer(policy, env, config, seed=seed, device="cpu")
        trainer.meta_train(TASKS, steps_per_task=20, epochs=epochs)
        rewards = [trainer.collect_task_specific_rollouts(task, 20)["rewards"].mean() for task in UNSEEN]
        scores[name] = float(torch.stack(rewards).mean())
    return scores


if __name__ == "__main__":
    for seed, scores in enumerate(map(compare, range(3))):
        print(
            f"seed {seed}: mean reward at unseen tasks {scores['told']:+.2f} told, {scores['not told']:+.2f} not told"
        )
