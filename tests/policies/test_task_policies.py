"""Policies that are told their task by trajectories."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from twostep.errors import EnvError, PolicyError
from twostep.learn.settings import PPOConfig
from twostep.policies.settings import AgentConfig
from twostep.policies.tasks import TaskActorCritic, TaskEncoder
from twostep.trainer import PPOTrainer
from twostep.vector import make_env


class Paid(gym.Env):
    """One action is paid for, which no observation shows; episodes of random length, half of them cut."""

    observation_space = gym.spaces.Dict({"at": gym.spaces.Box(-1, 1, (2,), np.float32), "kind": gym.spaces.Discrete(3)})
    action_space = gym.spaces.Discrete(4)
    task = 0

    def set_task(self, task):
        self.task = task

    def _seen(self):
        return {"at": self.np_random.uniform(-1, 1, 2).astype(np.float32), "kind": self.np_random.integers(3)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(2, 9))
        return self._seen(), {"action_mask": np.array([1, 1, 1, 0], bool)}

    def step(self, action):
        self.left -= 1
        over = self.left <= 0
        cut = bool(over and self.np_random.random() < 0.5)
        return self._seen(), float(action == self.task), over and not cut, cut, {"action_mask": np.array([1, 1, 1, 0])}


FEATURES = 2 + 3 + 4 + 2


def made(memory="none", workers=0, seed=0, **ppo):
    env = make_env(Paid, 3, seed=1, num_workers=workers)
    torch.manual_seed(0)
    config = AgentConfig(hidden_size=16, memory=memory, memory_size=8)
    policy = TaskActorCritic(env.observation_space, env.action_space, config, embedding_size=4)
    settings = PPOConfig(**({"rollout_steps": 21, "bptt_length": 8, "num_minibatches": 2, "lr": 3e-3} | ppo))
    return PPOTrainer(policy, env, settings, seed=seed, device="cpu")


@pytest.mark.parametrize("memory", ["none", "gru", "lstm"])
def test_the_first_ratio_is_one(memory):
    """JB6, J20: trajectories are kept with the data, so learning, which is not told them, sees what acted."""
    trainer = made(memory)
    before = [parameter.clone() for parameter in trainer.policy.task_encoder.parameters()]
    for task in (0, 1, 2):
        told = trainer.get_task_trajectories(task, count=4, length=6)
        metrics = trainer.learn(trainer.collect_rollouts(21, task_trajectories=told))
        assert metrics["ratio_error"] < 1e-6
    assert all(not torch.equal(a, b) for a, b in zip(before, trainer.policy.task_encoder.parameters(), strict=True))


def test_rows_may_have_tasks_of_their_own():
    """The embedding belongs to its row; joined rollouts of several tasks learn together."""
    from twostep.experience import combine_rollouts

    trainer = made()
    told = torch.cat([trainer.get_task_trajectories(task, 4, 6) for task in (0, 1, 2)])
    assert trainer.learn(trainer.collect_rollouts(21, task_trajectories=told))["ratio_error"] < 1e-6
    data = [trainer.collect_rollouts(21, task_trajectories=told[row : row + 1]) for row in range(3)]
    assert trainer.learn(combine_rollouts(data))["ratio_error"] < 1e-6


def test_sets_are_read_once_and_in_any_order():
    """Against the plain reading of every row by itself; gradients are the same too."""
    encoder = TaskEncoder(5, size=3, hidden_size=8)
    sets = torch.randn(4, 6, 7, 5)
    rows = sets[[0, 2, 2, 1, 3, 0, 0]]
    plain = torch.stack([encoder.summary(encoder.reader(row)[0].mean(1).mean(0)).tanh() for row in rows])
    assert torch.allclose(encoder(rows), plain, atol=1e-6)
    assert torch.allclose(encoder(rows[:, torch.randperm(6)]), plain, atol=1e-6)
    weights = torch.randn_like(plain)
    expected = torch.autograd.grad((plain * weights).sum(), list(encoder.parameters()))
    found = torch.autograd.grad((encoder(rows) * weights).sum(), list(encoder.parameters()))
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(expected, found, strict=True))


def test_calls_without_trajectories_are_refused():
    trainer = made()
    with pytest.raises(PolicyError, match="get_task_trajectories"):
        trainer.collect_rollouts(5)
    with pytest.raises(PolicyError, match=f"{FEATURES} numbers per transition"):
        trainer.collect_rollouts(5, task_trajectories=torch.zeros(1, 2, 3, FEATURES - 1))


def test_trajectories_show_what_the_task_pays():
    """J20: observations, one-hot actions within the mask, rewards and ends, of this task and no other."""
    trainer = made()
    told = trainer.get_task_trajectories(2, count=5, length=9)
    assert told.shape == (1, 5, 9, FEATURES)
    at, kind, action, reward, ended = told[0].split((2, 3, 4, 1, 1), dim=-1)
    assert (at.abs() <= 1).all()
    assert (kind.sum(-1) == 1).all()
    assert (action.sum(-1) == 1).all()
    assert not action[..., 3].any(), "masked"
    assert torch.equal(reward[..., 0], action[..., 2])
    assert 0 < ended.mean() < 0.6
    assert trainer.total_timesteps == 2 * 3 * 9, "two rounds of three rows"
    assert not torch.equal(told, trainer.get_task_trajectories(2, 5, 9)), "other steps each time"
    assert torch.equal(told, made().get_task_trajectories(2, 5, 9)), "the same ones from the same seed"
    assert torch.equal(told, made(workers=2).get_task_trajectories(2, 5, 9)), "in any process"


def test_the_next_rollout_begins_anew_on_the_task():
    trainer = made()
    trainer.collect_rollouts(4, task_trajectories=trainer.get_task_trajectories(0, 2, 3))
    data = trainer.collect_rollouts(8, task_trajectories=trainer.get_task_trajectories(1, 2, 3))
    starts = data["episode_starts"].view(8, 3)
    assert starts[0].all()
    assert torch.equal(data["rewards"], (data["actions"] == 1).float())


def test_environments_that_take_no_task_are_refused():
    with pytest.raises(EnvError, match="must be 1 or more"):
        made().get_task_trajectories(0, count=0)
    env = make_env("CartPole-v1", 1)
    trainer = PPOTrainer(TaskActorCritic(env.observation_space, env.action_space), env, device="cpu")
    with pytest.raises(AttributeError, match="set_task"):
        trainer.get_task_trajectories(0)
