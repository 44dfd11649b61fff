"""Environments so small that what must be learned is known exactly: each fails for one kind of mistake.

A constant reward needs only a critic, then observations tell states apart, then a second step discounts, and so on: the
first probe that fails says where to look.
"""

from __future__ import annotations

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from twostep import AgentConfig, PPOConfig, PPOTrainer, make_policy
from twostep import rollout as rollout_module
from twostep.environments import adapted
from twostep.evaluation import evaluate
from twostep.vector import SerialVectorEnv

NUM_ROWS, SEED = 8, 0
MODES = ("serial", "next_step", "same_step", "disabled")


class Probe(gym.Env):
    """A chain of observations, one per step; `reward` pays for an action, `sign` is what an episode is about."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    length = 1
    cut = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        self.sign = 2 * int(self.np_random.integers(2)) - 1
        return self.obs(), self.info()

    def step(self, action):
        reward = float(self.reward(action))
        self.steps += 1
        over = self.steps >= self.length
        return self.obs(), reward, over and not self.cut, over and self.cut, self.info()

    def obs(self):
        return np.array([0, 0], dtype=np.float32)

    def info(self):
        return {}

    def reward(self, action):
        return 1.0


def vector_of(make, mode="serial", rows=NUM_ROWS):
    if mode == "serial":
        return SerialVectorEnv([make] * rows, check=False)
    return SyncVectorEnv([make] * rows, autoreset_mode=AutoresetMode[mode.upper()])


def trained(make, updates=25, mode="serial", agent=None, **settings):
    """Train for so many updates; return the trainer."""
    env = vector_of(make, mode)
    policy = make_policy(env, AgentConfig(**{"hidden_size": 16, "memory_size": 16, **(agent or {})}), seed=SEED)
    quick = {"lr": 2e-2, "gamma": 0.9, "rollout_steps": 16, "num_minibatches": 2, "update_epochs": 4, "ent_coef": 0.0}
    trainer = PPOTrainer(policy, env, PPOConfig(**(quick | settings)), seed=SEED, device="cpu")
    trainer.train(10**9, callback=lambda trainer, _: trainer.n_updates < updates)
    env.close()
    return trainer


def values_of(trainer, *observations):
    """Return what the critic says of single observations, without memory."""
    obs = torch.tensor([observations], dtype=torch.float32)
    with torch.no_grad():
        return trainer.policy(obs, (), torch.ones(1, len(observations), dtype=torch.bool)).values[0].tolist()


def mean_return(trainer, make, episodes=200):
    """Return what the policy earns when it acts as it believes best."""
    env = vector_of(make)
    stats = evaluate(trainer.policy, adapted(env), episodes=episodes, seed=1)
    env.close()
    return stats.mean_return


# ------------------------------------------------------------------------------------------------ the critic alone


def test_a_constant_reward():
    """Probe 1: one step, one reward. Only the value loss and the optimizer are needed."""
    trainer = trained(Probe, updates=20)
    assert values_of(trainer, [0, 0]) == pytest.approx([1.0], abs=0.05)


class SignSeen(Probe):
    def obs(self):
        return np.array([self.sign, 0], dtype=np.float32)

    def reward(self, action):
        return self.sign


def test_a_reward_that_depends_on_what_is_seen():
    """Probe 2: observations and rewards of the same step belong together, row by row."""
    trainer = trained(SignSeen, updates=20)
    assert values_of(trainer, [1, 0], [-1, 0]) == pytest.approx([1.0, -1.0], abs=0.05)


class TwoSteps(Probe):
    length = 2

    def obs(self):
        return np.array([self.steps, 0], dtype=np.float32)

    def reward(self, action):
        return self.steps


@pytest.mark.parametrize("gae_lambda", [0.0, 0.95, 1.0])
def test_a_reward_one_step_later_is_discounted(gae_lambda):
    """Probe 3: V(0) = gamma * 1 and V(1) = 1, whatever lambda says."""
    trainer = trained(TwoSteps, updates=20, gamma=0.5, gae_lambda=gae_lambda)
    assert values_of(trainer, [0, 0], [1, 0]) == pytest.approx([0.5, 1.0], abs=0.05)


# ------------------------------------------------------------------------------------------------ the actor too


class ActionPays(Probe):
    def reward(self, action):
        return 1.0 if action == 1 else -1.0


def test_a_reward_that_depends_on_the_action():
    """Probe 4: the advantage has the right sign and reaches the right action."""
    trainer = trained(ActionPays, updates=10)
    assert values_of(trainer, [0, 0]) == pytest.approx([1.0], abs=0.1)
    assert mean_return(trainer, ActionPays) == 1.0


class AnswerSign(SignSeen):
    def reward(self, action):
        return 1.0 if (action == 1) == (self.sign == 1) else -1.0


def test_a_reward_that_depends_on_both():
    """Probe 5: what is seen decides what to do."""
    trainer = trained(AnswerSign, updates=10)
    assert values_of(trainer, [1, 0], [-1, 0]) == pytest.approx([1.0, 1.0], abs=0.1)
    assert mean_return(trainer, AnswerSign) == 1.0


# ------------------------------------------------------------------------------------------------ ends of episodes


class Endless(Probe):
    """Pays the same for ever; only a time limit cuts it, which nobody can see."""

    length, cut, pay = 5, True, 1.0

    def reward(self, action):
        return self.pay


class EndlessLarge(Endless):
    pay = 100.0


@pytest.mark.parametrize(("make", "normalized"), [(Endless, False), (Endless, True), (EndlessLarge, True)])
def test_a_time_limit_does_not_end_what_a_state_is_worth(make, normalized):
    """Probe 6; EB1, JB3, EB3, MB5, LB6: V = r / (1 - gamma) in raw units, however returns are normalised."""
    trainer = trained(make, updates=50, normalize_returns=normalized)
    expected = make.pay / (1 - 0.9)
    assert values_of(trainer, [0, 0]) == pytest.approx([expected], rel=0.02)


def test_the_truncation_probe_can_fail(monkeypatch):
    """The same training with cuts taken for ends comes to another value: the probe above would notice."""
    right = rollout_module.gae

    def wrong(rewards, values, next_values, terminated, truncated, **settings):
        return right(rewards, values, next_values, terminated | truncated, truncated, **settings)

    monkeypatch.setattr(rollout_module, "gae", wrong)
    trainer = trained(Endless, updates=50)
    assert values_of(trainer, [0, 0])[0] < 5.0


class Finite(Probe):
    length = 4

    def obs(self):
        return np.eye(4, dtype=np.float32)[min(self.steps, 3), :2] + (self.steps == 3) * np.float32(0.5)


@pytest.mark.parametrize("normalized", [False, True])
def test_an_end_is_an_end(normalized):
    """Probe 6: under termination only what is left to come counts: 1 + gamma + ... until the end."""
    trainer = trained(Finite, updates=40, normalize_returns=normalized)
    expected = [(1 - 0.9**left) / (1 - 0.9) for left in (4, 3, 2, 1)]
    found = values_of(trainer, [1, 0], [0, 1], [0, 0], [0.5, 0.5])
    assert found == pytest.approx(expected, rel=0.05)


class RichBehindTheCut(Probe):
    """From a poor first state to a rich one, where a time limit cuts: the next episode begins poor again."""

    length, cut = 2, True

    def obs(self):
        return np.array([self.steps == 0, self.steps > 0], dtype=np.float32)

    def reward(self, action):
        return self.steps > 0


@pytest.mark.parametrize("mode", MODES)
def test_the_last_observation_is_not_the_next_first_one(mode):
    """Probe 9: V(rich) = 1 / (1 - gamma) = 10. Taking the reset's observation for the last one gives 5.3."""
    trainer = trained(RichBehindTheCut, updates=60, mode=mode)
    assert values_of(trainer, [0, 1], [1, 0]) == pytest.approx([10.0, 9.0], rel=0.05)


class PhantomTrap(Probe):
    """Action 1 is worth 1 in the first step; if a reset's ignored action counted, action 0 would look as good."""

    length = 1

    def reward(self, action):
        return action == 1


@pytest.mark.parametrize("mode", MODES)
def test_ignored_actions_teach_nothing(mode):
    """JB1, EB4: half of all steps only reset; values and returns are those of the other half."""
    trainer = trained(PhantomTrap, updates=15, mode=mode)
    assert values_of(trainer, [0, 0]) == pytest.approx([1.0], abs=0.1)
    assert trainer.episode_lengths[-1] == 1
    assert np.mean(trainer.episode_rewards) > 0.9


# ------------------------------------------------------------------------------------------------ memory and masks


class Recall(Probe):
    """The sign is shown once; after some blank steps it must be told."""

    length = 5

    def obs(self):
        return np.array([self.sign if self.steps == 0 else 0, self.steps == self.length - 1], dtype=np.float32)

    def reward(self, action):
        if self.steps < self.length - 1:
            return 0.0
        return 1.0 if (action == 1) == (self.sign == 1) else 0.0


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_memory_recalls_what_it_saw(memory):
    """Probe 7; L9, L15, MB2, LB7: cue and answer often lie in two sequences: stored memory must be right."""
    agent = {"memory": memory, "num_layers": 1}
    trainer = trained(Recall, updates=25, agent=agent, lr=1e-2, rollout_steps=40, bptt_length=8)
    assert mean_return(trainer, Recall) > 0.97


def test_without_memory_there_is_nothing_to_recall():
    trainer = trained(Recall, updates=15, rollout_steps=40)
    assert mean_return(trainer, Recall, episodes=400) < 0.65


class Forbidden(Probe):
    """The best-paying action is never allowed; which of the others is best can be seen."""

    action_space = gym.spaces.Discrete(4)

    def obs(self):
        return np.array([self.sign, 0], dtype=np.float32)

    def info(self):
        return {"action_mask": np.array([True, True, False, self.sign > 0])}

    def reward(self, action):
        assert action != 2
        return {0: 0.0, 1: 0.5, 3: 1.0}[int(action)]


def test_forbidden_actions_are_never_taken():
    """Probe 8: with probability 0, not just seldom; and learning goes on over what is allowed."""
    trainer = trained(Forbidden, updates=20)
    assert values_of(trainer, [1, 0], [-1, 0]) == pytest.approx([1.0, 0.5], abs=0.1)
    assert mean_return(trainer, Forbidden) == pytest.approx(0.75, abs=0.12)


# ------------------------------------------------------------------------------------------------ every distribution

BOX = gym.spaces.Box(-2, 2, (2,), np.float32)
IDENTITIES = {
    "discrete": (gym.spaces.Discrete(3), {}, 0.97),
    "multidiscrete": (gym.spaces.MultiDiscrete([2, 3]), {}, 0.97),
    "multibinary": (gym.spaces.MultiBinary(3), {}, 0.97),
    "gaussian": (BOX, {"init_std": 0.6}, 0.75),
    "state_std": (BOX, {"init_std": 0.6, "std": "state"}, 0.75),
    "squashed": (BOX, {"action_dist": "squashed"}, 0.7),
    "beta": (BOX, {"action_dist": "beta"}, 0.7),
    "dict": (gym.spaces.Dict({"a": BOX, "b": gym.spaces.Discrete(3)}), {"init_std": 0.6}, 0.8),
}


class Identity(gym.Env):
    """Do what you see: one step, 1 for a perfect answer, less the further away it is."""

    def __init__(self, space):
        self.observation_space = self.action_space = space
        self.targets = copy.deepcopy(space)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.targets.seed(seed)
        self.target = self.targets.sample()
        return self.target, {}

    def step(self, action):
        assert self.action_space.contains(action)
        answer, target = (gym.spaces.flatten(self.action_space, tree).astype(float) for tree in (action, self.target))
        return self.target, 1.0 - float(np.abs(answer - target).mean()), True, False, {}


@pytest.mark.parametrize("kind", IDENTITIES)
def test_every_distribution_learns_to_copy(kind):
    """The sampled actions, their probabilities and what the environment gets mean the same thing."""
    space, agent, enough = IDENTITIES[kind]
    settings = {"lr": 5e-3, "ent_coef": 0.003, "rollout_steps": 32, "num_minibatches": 4}
    trainer = trained(lambda: Identity(space), agent={"hidden_size": 32, **agent}, **settings)
    assert mean_return(trainer, lambda: Identity(space), episodes=100) > enough
