"""A locomotion-shaped simulator without physics: it costs next to nothing, so that learning is what is measured."""

from __future__ import annotations

import torch


class SyntheticLocomotion:
    """Batched tensors of a legged robot's shape: 183 floats in, 12 actions out, episodes of 1,000 steps.

    Observations and rewards come from a pool drawn once. Episodes start at different ages, so that about one of
    1,024 rows ends in each step, as in a real run.
    """

    num_observations = 183
    num_actions = 12
    max_episode_length = 1000

    def __init__(self, num_envs: int, seed: int = 0, device: str = "cpu") -> None:
        self.num_envs = num_envs
        self._generator = torch.Generator(device).manual_seed(seed)
        self._obs_pool = torch.randn(16, num_envs, self.num_observations, generator=self._generator, device=device)
        self._reward_pool = torch.rand(16, num_envs, generator=self._generator, device=device)
        self._never = torch.zeros(num_envs, dtype=torch.bool, device=device)
        self._time = 0
        self._ages = torch.zeros(num_envs, dtype=torch.long, device=device)

    def reset(self) -> torch.Tensor:
        """Start all rows at random ages."""
        self._ages = torch.randint(
            self.max_episode_length, (self.num_envs,), generator=self._generator, device=self._generator.device
        )
        return self._obs_pool[0]

    def step(
        self, actions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        """Return observations (of the next episode where one ended), rewards, terminated, truncated and infos."""
        self._time = (self._time + 1) % len(self._obs_pool)
        self._ages += 1
        truncated = self._ages >= self.max_episode_length
        self._ages[truncated] = 0
        rewards = self._reward_pool[self._time] - 0.01 * actions.square().mean(-1)
        infos = {"final_obs": self._obs_pool[self._time - 1]}
        return self._obs_pool[self._time], rewards, self._never, truncated, infos
