"""What a worker's failure is to learning: nothing before it changes, nothing after it knows of it."""

from __future__ import annotations

import os
import signal
import sys

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from twostep import PPOConfig, PPOOptimizer, RolloutCollector, gae
from twostep.protocols import Step
from twostep.vector import VectorEnv

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Fragile(gym.Env):
    """Its process dies in the steps of its life that are listed; observations are drawn, rewards are 1."""

    observation_space = spaces.Box(-9, 9, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, deaths=()):
        self.deaths, self.life, self.t = deaths, 0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {}

    def _obs(self):
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

    def step(self, action):
        self.t += 1
        self.life += 1
        if self.life in self.deaths:
            os.kill(os.getpid(), signal.SIGKILL)
        return self._obs(), 1.0, self.t == 9, self.t == 7 and action == 0, {}


def test_gru_training_goes_on_through_failures(small_policy):
    """A1, D19, L18: the ratio is 1 in every update, bootstraps are those of the last real observations."""
    makers = [lambda: Fragile(deaths=(6, 19)), Fragile, lambda: Fragile(deaths=(11,))]
    with VectorEnv(3, makers, num_workers=3, restarts=1, start_method="forkserver", check=False) as env:
        policy = small_policy(env, memory="gru")
        collector = RolloutCollector(env, policy, num_steps=16, bptt_length=4, seed=0, env_seed=0)
        optimizer = PPOOptimizer(policy, config=PPOConfig(minibatch_size=16, update_epochs=2))
        num_broken = 0
        for _ in range(4):
            rollout = collector.rollout()
            broken = rollout.truncated & ~rollout.valid
            num_broken += int(broken.sum())
            check_breaks(rollout, broken)
            optimizer.update(rollout)  # raises RatioError where a ratio is not 1 before the first step
        assert num_broken == env.failures >= 3


def check_breaks(rollout, broken):
    assert torch.equal(broken, ~rollout.valid)
    assert not rollout.terminated[broken].any()
    assert not rollout.rewards[broken].any()
    rollout.compute_gae(gamma=0.99, gae_lambda=0.95)
    for t, row in broken.nonzero().tolist():
        assert not any((episode.step, episode.row) == (t, row) for episode in rollout.episodes)
        if t + 1 < rollout.num_steps:
            assert rollout.episode_starts[t + 1, row]
        if t > 0 and not rollout.episode_starts[t, row]:
            last = rollout.values[t, row]
            expected = 1 + 0.99 * last - rollout.values[t - 1, row]
            assert rollout.next_values[t - 1, row] == last
            assert rollout.advantages[t - 1, row] == pytest.approx(float(expected), abs=1e-5)


class Scripted:
    """Two rows that say what a list of steps says; the second shows the same steps with the failure cut out."""

    observation_space, action_space = Fragile.observation_space, Fragile.action_space
    num_rows = 1

    def __init__(self, steps):
        self.steps = list(steps)

    def reset(self, seed=None):
        return Step(np.zeros((1, 3), dtype=np.float32), np.ones(1, dtype=bool))

    def step(self, actions):
        obs, broken = self.steps.pop(0)
        flags = np.array([broken])
        return Step(
            np.full((1, 3), obs, dtype=np.float32),
            flags,
            np.array([0.0 if broken else 1.0], dtype=np.float32),
            np.zeros(1, dtype=bool),
            flags,
            valid=~flags,
        )

    def close(self):
        pass


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_what_came_before_a_failure_is_worth_the_same_as_if_the_rollout_had_ended_there(small_policy, memory):
    """A1, JB2: the broken step gives its transition's predecessor a value to bootstrap from, and nothing else."""
    steps = [(0.1, False), (0.2, False), (0.3, False), (0.9, True), (0.8, False), (0.7, False)]
    whole, before = Scripted(steps), Scripted(steps[:3])
    policy = small_policy(whole, memory=memory)
    long = RolloutCollector(whole, policy, num_steps=6, bptt_length=3, seed=0).rollout()
    short = RolloutCollector(before, policy, num_steps=3, bptt_length=3, seed=0).rollout()
    for rollout in (long, short):
        rollout.compute_gae(gamma=0.99, gae_lambda=0.95)
    for name in ("advantages", "returns", "next_values"):
        torch.testing.assert_close(getattr(long, name)[:3], getattr(short, name))
    assert long.valid.squeeze(1).tolist() == [True, True, True, False, True, True]
    assert long.episode_starts.squeeze(1).tolist() == [True, False, False, False, True, False]
    fresh, _ = gae(
        *(getattr(long, name)[4:] for name in ("rewards", "values", "next_values", "terminated", "truncated")),
        gamma=0.99,
        gae_lambda=0.95,
    )
    torch.testing.assert_close(long.advantages[4:], fresh)
