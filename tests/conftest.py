"""What several test files need: a small environment whose numbers can be foretold, small nets, identifiable data."""

from __future__ import annotations

import math
import os
import signal

import gymnasium as gym
import numpy as np
import pytest
import torch

from twostep import AgentConfig, PPOTrainer, RolloutBuffer, make_env, make_policy
from twostep.collect.collector import RolloutCollector
from twostep.compiled import Compiled

# Programs that are started in the background ignore some signals, and so would the tests of what signals do.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# Small nets on few cores: more threads only wait for one another.
torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def compiled_code(tmp_path_factory):
    """Keep what is compiled in the tests' own folder, for all of their processes."""
    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if os.environ.get("PYTEST_XDIST_WORKER") else folder
    os.environ["XDG_CACHE_HOME"] = str(shared / "compiled")


@pytest.fixture
def machine_code_at_once(monkeypatch):
    """Act and learn in machine code from the first call on, instead of once a run has proved to be long."""

    def at_once(module, fn, generator=None, *, after):
        return Compiled(module, fn, generator, after=after if after == math.inf else 1)

    monkeypatch.setattr("twostep.compiled.FIRST_CALLS", 1)
    monkeypatch.setattr("twostep.learn.ppo.Compiled", at_once)
    monkeypatch.setattr("twostep.collect.acting.Compiled", at_once)


class CountingEnv(gym.Env):
    """Shows the step of the episode and how many episodes there were; action 1 is worth 1, and every step 0.5."""

    observation_space = gym.spaces.Box(-1e6, 1e6, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length=5, ending="terminated"):
        self.length, self.ending = length, ending
        self.num_steps = self.num_episodes = self.total_steps = 0
        self.on_step = None
        self.difficulty = 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.num_steps = 0
        self.num_episodes += 1
        return self._obs(), {}

    def step(self, action):
        if self.on_step is not None:
            self.on_step(self)
        self.num_steps += 1
        self.total_steps += 1
        over = self.num_steps >= self.length
        ends = {"terminated": (over, False), "truncated": (False, over)}[self.ending]
        return self._obs(), 0.5 + float(action), *ends, {}

    def _obs(self):
        return np.array([self.num_steps, self.num_episodes], dtype=np.float32)

    def set_difficulty(self, level):
        self.difficulty = level


@pytest.fixture(scope="session")
def counting_env():
    """The class, to make environments from."""
    return CountingEnv


@pytest.fixture(scope="session")
def small_policy():
    """A function: an environment to a small net."""

    def build(env, seed=0, **agent):
        return make_policy(env, AgentConfig(**{"hidden_size": 8, "memory_size": 4, **agent}), seed=seed)

    return build


@pytest.fixture(scope="session")
def collected(small_policy):
    """A function: what a small net did in CartPole, and the net."""

    def collect(num_steps=32, num_envs=4, seed=0, policy=None, bptt_length=8, **agent):
        env = make_env("CartPole-v1", num_envs)
        policy = small_policy(env, seed=seed, **agent) if policy is None else policy
        collector = RolloutCollector(
            env, policy, num_steps=num_steps, bptt_length=bptt_length, seed=seed, env_seed=seed
        )
        rollout = collector.rollout()
        env.close()
        return rollout, policy

    return collect


@pytest.fixture(scope="session")
def small_trainer(small_policy):
    """A function: a trainer of a small net in CartPole, with everything seeded."""

    def build(trainer=PPOTrainer, env=None, num_envs=2, seed=0, agent=None, **settings):
        env = make_env("CartPole-v1", num_envs) if env is None else env
        settings = {"device": "cpu", "minibatch_size": 32, "update_epochs": 2, "rollout_steps": 32, **settings}
        return trainer(small_policy(env, seed=seed, **(agent or {})), env, seed=seed, **settings)

    return build


@pytest.fixture(scope="session")
def identifiable():
    """A function: a rollout in which every number tells its step t and row b, mostly as 100 t + b."""

    def build(num_steps, num_rows, length=1, valid=None, starts=None):
        where = 100.0 * torch.arange(num_steps)[:, None] + torch.arange(num_rows)
        pairs = torch.stack(torch.meshgrid(torch.arange(num_steps), torch.arange(num_rows), indexing="ij"), dim=-1)
        none = torch.zeros(num_steps, num_rows, dtype=torch.bool)
        return RolloutBuffer(
            obs={"where": pairs.float(), "picture": pairs.to(torch.uint8)[..., None, None]},
            actions=(where.long(), {"push": where[..., None] + 0.5}),
            logprobs=-where,
            values=where.clone(),
            rewards=where + 0.25,
            next_values=where + 100.0,
            terminated=none.clone(),
            truncated=none.clone(),
            episode_starts=none.clone() if starts is None else starts,
            valid=~none if valid is None else valid,
            states=(where[::length, :, None].clone(), {"cell": where[::length, :, None, None] + 0.75}),
            sequence_length=length,
            action_masks=(pairs.sum(-1, keepdim=True) % 2 == torch.arange(2)),
            context={"task": torch.arange(num_rows).float().expand(num_steps, num_rows)},
            advantages=where + 1000.0,
            returns=where + 2000.0,
        )

    return build
