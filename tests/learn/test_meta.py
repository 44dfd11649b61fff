"""Reptile moves the very weights that it began with, towards what tasks have in common."""

from __future__ import annotations

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch

from twostep.errors import ConfigError
from twostep.learn.meta import reptile
from twostep.learn.settings import PPOConfig
from twostep.policies.actor_critic import make_policy
from twostep.policies.settings import AgentConfig
from twostep.trainer import PPOTrainer
from twostep.vector import make_env


class Levers(gym.Env):
    """One step, four levers: each task pays for its own, and none for lever 3."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(4)
    task = 0

    def set_task(self, task):
        self.task = task

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action):
        return np.ones(1, np.float32), float(action == self.task), True, False, {}


def made():
    env = make_env(Levers, 8, seed=0)
    return env, make_policy(env, AgentConfig(hidden_size=8), seed=0)


def adapter(policy, env, task, updates=2):
    """Return what learns a task with an optimizer of its own."""

    def adapt():
        env.call("set_task", task)
        trainer = PPOTrainer(policy, env, PPOConfig(rollout_steps=16, lr=3e-3), seed=task, device="cpu")
        for _ in range(updates):
            trainer.learn(trainer.collect_rollouts(16))

    return adapt


def weights(policy):
    return torch.cat([parameter.detach().flatten().clone() for parameter in policy.parameters()])


def chances(policy):
    with torch.no_grad():
        said = policy(torch.ones(1, 1, 1), (), torch.ones(1, 1, dtype=torch.bool)).distribution
    return torch.stack([said.log_prob(torch.full((1, 1), lever)).exp().squeeze() for lever in range(4)])


def test_the_meta_update_goes_where_learning_the_task_goes():
    """JB17: the un-adapted weights themselves move, all of them, a part of the way to the adapted ones."""
    env, policy = made()
    start, adapted = weights(policy), copy.deepcopy(policy)
    adapter(adapted, env, 1)()
    version = policy.version
    before = [parameter.clone() for parameter in policy.parameters()]
    moved = reptile(policy, adapter(policy, env, 1), rate=0.25)
    assert torch.allclose(weights(policy), start + 0.25 * (weights(adapted) - start), atol=1e-6)
    assert moved == pytest.approx(float((weights(policy) - start).norm()), rel=1e-4)
    assert all(not torch.equal(old, new) for old, new in zip(before, policy.parameters(), strict=True))
    assert policy.version > version


def test_weights_end_where_all_tasks_are_near():
    """JB17: what no task pays for becomes rare, no task is preferred, and each is then learned faster than before."""
    env, policy = made()
    beginning = copy.deepcopy(policy)
    for _ in range(8):
        for task in (0, 1, 2):
            reptile(policy, adapter(policy, env, task), rate=0.3)
    said = chances(policy)
    assert said[3] < 0.6 * chances(beginning)[3]
    assert said[:3].max() < 2 * said[:3].min()
    for task in (0, 1, 2):
        adapted, from_scratch = copy.deepcopy(policy), copy.deepcopy(beginning)
        for one in (adapted, from_scratch):
            adapter(one, env, task)()
        assert chances(adapted)[task] > chances(from_scratch)[task]


def test_learning_a_copy_is_noticed():
    """JB17: the fault itself, where the weights that are meant never move, is an error."""
    env, policy = made()
    with pytest.raises(ConfigError, match="not a copy"):
        reptile(policy, adapter(copy.deepcopy(policy), env, 1))
    with pytest.raises(ConfigError, match="rate=0"):
        reptile(policy, lambda: None, rate=0)
