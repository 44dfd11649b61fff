"""Many agents learn: together what none could alone, beside those that die, and in environments of others."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from twostep import AgentConfig, PPOConfig, PPOTrainer, make_env, make_policy
from twostep.collect.collector import RolloutCollector

NUM_ENVS, SEED = 16, 0
QUICK = {"lr": 1e-2, "gamma": 0.9, "rollout_steps": 16, "num_minibatches": 2, "update_epochs": 4, "ent_coef": 0.0}
COORDINATED = {"lr": 5e-3, "ent_coef": 0.05}
"""Where a reward takes both, one must keep trying while the other has not found its part."""


class Handshake:
    """Two agents see who they are and a sign; both are paid only where the first names it and the second the next."""

    possible_agents = ("left", "right")
    num_signs, length = 3, 4

    def __init__(self):
        self.agents = []
        self.steps = 0

    def observation_space(self, agent):
        return spaces.Box(0, 1, (2 + self.num_signs,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(self.num_signs)

    def reset(self, seed=None, options=None):
        if seed is not None or not hasattr(self, "rng"):
            self.rng = np.random.default_rng(seed)
        self.steps, self.agents = 0, list(self.possible_agents)
        self.sign = int(self.rng.integers(self.num_signs))
        return self._obs(), {agent: {} for agent in self.agents}

    def step(self, actions):
        wanted = {"left": self.sign, "right": (self.sign + 1) % self.num_signs}
        rewards = self.rewards({agent: actions[agent] == wanted[agent] for agent in self.agents})
        self.steps += 1
        acting, over = self.agents, self.steps >= self.length
        self.sign = self._next_sign()
        self.agents = [] if over else list(acting)
        everyone = dict.fromkeys
        obs = self._obs(acting)
        return obs, rewards, everyone(acting, over), everyone(acting, False), everyone(acting, {})

    def rewards(self, right):
        return dict.fromkeys(right, float(all(right.values())))

    def _next_sign(self):
        return int(self.rng.integers(self.num_signs))

    def _obs(self, agents=None):
        return {agent: self._seen(agent) for agent in agents or self.agents}

    def _seen(self, agent):
        obs = np.zeros(2 + self.num_signs, dtype=np.float32)
        obs[self.possible_agents.index(agent)] = 1
        if self.shows_sign(agent):
            obs[2 + self.sign] = 1
        return obs

    def shows_sign(self, agent):
        return True


class Recall(Handshake):
    """The sign of an episode is shown at its start only; each is paid for its own part."""

    def rewards(self, right):
        return {agent: float(named) for agent, named in right.items()}

    def _next_sign(self):
        return self.sign

    def shows_sign(self, agent):
        return self.steps == 0


class Falling(Handshake):
    """`left` is paid 1 a step and falls after two; `right` walks on alone for eight and is cut."""

    num_signs, length = 2, 10

    def step(self, actions):
        self.steps += 1
        acting = list(self.agents)
        falls, cut = self.steps == 2, self.steps == self.length
        ends = {"left": falls, "right": False}
        terminations = {agent: ends[agent] for agent in acting}
        truncations = dict.fromkeys(acting, cut)
        self.agents = [agent for agent in acting if not (terminations[agent] or truncations[agent])]
        return self._obs(acting), dict.fromkeys(acting, 1.0), terminations, truncations, {agent: {} for agent in acting}

    def shows_sign(self, agent):
        return False


def trained(make, updates, agent=None, **settings):
    env = make_env(make, NUM_ENVS)
    policy = make_policy(env, AgentConfig(**{"hidden_size": 32, "memory_size": 16, **(agent or {})}), seed=SEED)
    trainer = PPOTrainer(policy, env, PPOConfig(**(QUICK | settings)), seed=SEED, device="cpu")
    trainer.train(10**9, callback=lambda trainer, _: trainer.n_updates < updates)
    return trainer


@pytest.mark.slow
def test_two_agents_learn_what_takes_both():
    """Chance is one ninth; one policy must tell its two places apart and meet itself."""
    trainer = trained(Handshake, 100, **COORDINATED)
    assert np.mean(trainer.episode_rewards) > 0.95 * Handshake.length


@pytest.mark.slow
def test_agents_with_memory_each_remember_their_own():
    """MB2: rows of one environment share neither memory nor its resets; without memory most is guessed."""
    remembering = trained(Recall, 60, agent={"memory": "gru"}, bptt_length=4)
    assert np.mean(remembering.episode_rewards) > 0.95 * Recall.length
    forgetful = trained(Recall, 40)
    assert np.mean(forgetful.episode_rewards) < 0.7 * Recall.length


@pytest.mark.slow
def test_values_of_agents_that_end_by_different_endings():
    """EB3, EB4: who falls is worth its two steps, who is cut is worth walking for ever, beside each other."""
    trainer = trained(Falling, 120, gamma=0.8, gae_lambda=0.9, lr=2e-2)
    obs = torch.tensor([[[1.0, 0, 0, 0], [0, 1, 0, 0]]])
    with torch.no_grad():
        left, right = trainer.policy(obs, (), torch.ones(1, 2, dtype=torch.bool)).values[0].tolist()
    assert right == pytest.approx(1 / (1 - 0.8), abs=0.3)
    assert left == pytest.approx((1.8 + 1) / 2, abs=0.3), "the mean of its two steps, which look alike"
    episodes = {8.0, 2.0} | {float(length) for length in trainer.episode_lengths}
    assert episodes == {2.0, 8.0, 10.0}


@pytest.mark.slow
def test_simple_spread_is_learned():
    """E11, E31: a real environment of PettingZoo's family, two agents that spread over two landmarks."""
    pytest.importorskip("mpe2")
    env = make_env("mpe2.simple_spread_v3:parallel_env", NUM_ENVS, N=2, max_cycles=25)
    policy = make_policy(env, AgentConfig(hidden_size=64), seed=SEED)
    config = PPOConfig(lr=2e-3, rollout_steps=50, update_epochs=8, gamma=0.95, normalize_returns=True)
    trainer = PPOTrainer(policy, env, config, seed=SEED, device="cpu")
    history = trainer.train(40_000)
    env.close()
    assert history["mean_reward"][0] < -18, "what chance brings"
    assert history["mean_reward"][-1] > -17
    assert trainer.total_timesteps == 40_000, "every agent counts"


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["none", "gru"])
def test_knights_archers_zombies_trains_end_to_end(memory):
    """EB4: agents of a Butterfly game die one by one while the others go on; each update checks its ratio."""
    pytest.importorskip("pettingzoo")
    env = make_env("pettingzoo:make", 4, env_type="parallel", id="butterfly/knights_archers_zombies-v11", spawn_delay=3)
    policy = make_policy(env, AgentConfig(hidden_size=16, memory=memory, memory_size=8), seed=SEED)
    trainer = PPOTrainer(policy, env, PPOConfig(rollout_steps=128, update_epochs=2), seed=SEED, device="cpu")
    history = trainer.train(4_000)
    collector = RolloutCollector(env, trainer.policy, num_steps=256, seed=SEED, env_seed=SEED)
    rollout = collector.rollout()
    env.close()
    assert all(math.isfinite(loss) for loss in history["loss"])
    assert max(history["ratio_error"]) < 1e-4
    nobody = ~rollout.valid
    assert nobody.any()
    assert not rollout.obs[nobody].any()
    assert not rollout.rewards[nobody].any()
    assert trainer.n_episodes > 0
