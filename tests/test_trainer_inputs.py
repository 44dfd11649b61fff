"""What a trainer is given: settings, optimizers, data and context in every form, each used or refused in one line."""

from __future__ import annotations

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch

from twostep import (
    ConfigError,
    PolicyError,
    PPOConfig,
    PPOTrainer,
    RolloutBuffer,
    RolloutError,
    TrainingConfig,
    combine_rollouts,
    make_env,
)
from twostep.policies.adapters import as_policy


class Halves(gym.Env):
    """Observations of half precision."""

    observation_space = gym.spaces.Dict({"near": gym.spaces.Box(-1, 1, (3,), np.float16)})
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 5
        return self.observation_space.sample(), {}

    def step(self, action):
        self.left -= 1
        return self.observation_space.sample(), 1.0, False, self.left == 0, {}


class Plain(torch.nn.Module):
    """Logits and a value."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, obs):
        out = self.linear(obs)
        return out[..., :2], out[..., 2]


# ------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    "config", [{"learning_rate": 2e-3}, PPOConfig(lr=2e-3), TrainingConfig.from_dict({"lr": 2e-3})], ids=type
)
def test_settings_come_in_every_form(small_policy, counting_env, config):
    """J2: a dict by any of their names, PPO's own or those of a whole run."""
    env = counting_env()
    trainer = PPOTrainer(small_policy(env), env, config, optimizer="adamw", device="cpu")
    assert (trainer.config.lr, trainer.config.optimizer) == (2e-3, "adamw")
    assert isinstance(trainer.optimizer, torch.optim.AdamW)
    assert trainer.optimizer.param_groups[0]["lr"] == 2e-3


def test_settings_of_no_form_are_refused(small_policy, counting_env):
    env = counting_env()
    with pytest.raises(ConfigError, match="settings are int"):
        PPOTrainer(small_policy(env), env, 3)


def test_assigned_settings_take_effect(small_trainer):
    """The one that learns and the trainer go by the same settings."""
    trainer = small_trainer()
    trainer.config = replace(trainer.config, lr=5e-3, clip_coef=0.3)
    assert trainer.learner.config is trainer.config
    assert trainer.optimizer.param_groups[0]["lr"] == 5e-3
    trainer.learner.config = replace(trainer.config, lr=6e-3)
    assert trainer.config.lr == trainer.optimizer.param_groups[0]["lr"] == 6e-3
    with pytest.raises(ConfigError, match="precision cannot change"):
        trainer.config = replace(trainer.config, precision="bf16")
    assert trainer.config.lr == 6e-3


@pytest.mark.parametrize("schedule", ["linear", "adaptive_kl"])
def test_a_schedule_scales_the_rates_of_an_optimizer_from_outside(small_policy, counting_env, schedule):
    """L15: each group keeps its own."""
    env = counting_env()
    policy = small_policy(env)
    critic = set(policy.value_head.parameters())
    groups = [
        {"params": [parameter for parameter in policy.parameters() if parameter not in critic], "lr": 0.1},
        {"params": list(critic), "lr": 0.4},
    ]
    optimizer = torch.optim.SGD(groups)
    trainer = PPOTrainer(policy, env, PPOConfig(lr_schedule=schedule), optimizer=optimizer, device="cpu")
    trainer.learner.set_progress(0.5)
    expected = (0.05, 0.2) if schedule == "linear" else (0.1, 0.4)
    assert tuple(group["lr"] for group in optimizer.param_groups) == pytest.approx(expected)


# ------------------------------------------------------------------ data


@pytest.mark.parametrize("data", [None, [], [{}], 3])
def test_what_is_no_rollout_is_refused(small_trainer, data):
    """J12: one error that says what it must be."""
    with pytest.raises(RolloutError, match="Rollout data is"):
        small_trainer().learn(data)
    with pytest.raises(RolloutError, match="Rollout data is"):
        combine_rollouts([data])


def test_data_of_other_precisions_are_converted(small_trainer):
    """J12: doubles and short integers, as numpy gives them."""
    trainer = small_trainer()
    data = trainer.collect_rollouts(20)
    other = data | {"observations": data["observations"].double().numpy(), "actions": data["actions"].to(torch.uint8)}
    buffer = RolloutBuffer.from_dict(other)
    assert (buffer.obs.dtype, buffer.actions.dtype) == (torch.float32, torch.int64)
    assert trainer.learn(other)["ratio_error"] < 1e-5


def test_data_of_another_form_are_refused(small_trainer):
    """J12: memory that is missing or of another size, floats for a choice."""
    trainer = small_trainer(agent={"memory": "gru"})
    data = {name: value for name, value in trainer.collect_rollouts(16).items() if name != "policy_version"}
    without = {name: value for name, value in data.items() if name != "states"}
    with pytest.raises(RolloutError, match="states of the rollout is"):
        trainer.learn(without)
    with pytest.raises(RolloutError, match="states of the rollout has shape"):
        trainer.learn(data | {"states": data["states"][..., :2]})
    with pytest.raises(RolloutError, match=r"actions of the rollout is torch.float32"):
        trainer.learn(data | {"actions": data["actions"].float()})


def test_changed_rewards_are_learned_from(small_trainer):
    """J12, L10: advantages of other rewards are computed anew; those that were given anew are used."""
    data = small_trainer().collect_rollouts(20)
    kept = RolloutBuffer.from_dict(data)
    assert torch.equal(kept.advantages.flatten(), data["advantages"])
    changed = data | {"rewards": data["rewards"] + 1.0}
    assert RolloutBuffer.from_dict(changed).advantages is None
    own = RolloutBuffer.from_dict(changed | {"advantages": 2 * data["advantages"]})
    assert torch.equal(own.advantages.flatten(), 2 * data["advantages"])
    moved = torch.roll(data["rewards"] + torch.arange(40.0), 1)
    assert RolloutBuffer.from_dict(data | {"rewards": moved}).advantages is None


def test_returns_follow_from_advantages(small_trainer):
    """L10: returns are advantages and values."""
    data = small_trainer().collect_rollouts(20)
    foreign = {name: value for name, value in data.items() if name not in ("returns", "advantages_of")}
    torch.testing.assert_close(RolloutBuffer.from_dict(foreign).returns.flatten(), data["returns"])


# ------------------------------------------------------------------ environments and networks


def test_observations_of_half_precision(small_policy):
    """J3."""
    env = make_env(Halves, 2)
    trainer = PPOTrainer(small_policy(env), env, device="cpu", rollout_steps=12, minibatch_size=8)
    assert max(trainer.train(24)["ratio_error"]) < 1e-5
    assert trainer.collect_rollouts(3)["observations"]["near"].dtype == torch.float32


def test_a_policy_for_other_spaces_is_refused(small_policy, counting_env):
    """C34: named before anything is computed."""
    policy = small_policy(make_env("CartPole-v1", 1))
    trainer = PPOTrainer(policy, counting_env(), device="cpu")
    with pytest.raises(PolicyError, match=r"built for observations in .*4,.* are in .*2,"):
        trainer.collect_rollouts(4)


def test_the_number_of_steps_is_an_int(small_trainer):
    with pytest.raises(RolloutError, match=r"num_steps=10\.0 must be an int"):
        small_trainer().collect_rollouts(10.0)


def test_context_that_does_not_fit_is_refused(small_trainer):
    """E5: an unknown name, or no numbers; arrays are as good as tensors."""
    trainer = small_trainer(agent={"context_size": 2})
    with pytest.raises(PolicyError, match=r"no argument for context named 'goal'. It takes: context"):
        trainer.collect_rollouts(4, goal=torch.zeros(2, 2))
    with pytest.raises(RolloutError, match="context is str"):
        trainer.collect_rollouts(4, context="left")
    data = trainer.collect_rollouts(4, context=np.ones((2, 2)))
    assert data["context"]["context"].dtype == torch.float32


def test_networks_of_other_precisions_are_refused():
    """C21: said when the network comes, not by the first product."""
    with pytest.raises(PolicyError, match=r"parameters of torch.float64.*network.float\(\)"):
        as_policy(Plain().double(), gym.spaces.Discrete(2))


def test_compiled_networks_are_called_as_they_are():
    """C21: torch.compile hides how a network is called."""
    policy = as_policy(torch.compile(Plain(), backend="eager"), gym.spaces.Discrete(2))
    output = policy(torch.zeros(1, 3, 4), (), torch.ones(1, 3, dtype=torch.bool))
    assert output.values.shape == (1, 3)


def test_losses_called_by_hand_are_in_the_units_of_the_critic(small_trainer):
    """EB1: `_compute_losses` says what learning says."""
    trainer = small_trainer(normalize_returns=True)
    trainer.policy.set_value_scale(10.0)
    rollout = trainer.collect_rollout()
    rollout.compute_gae()
    _, metrics = trainer._compute_losses(rollout, rollout.logprobs, rollout.values, torch.zeros_like(rollout.values))
    expected = ((rollout.returns - rollout.values) / 10.0).square().mean() * trainer.config.value_loss_scale
    torch.testing.assert_close(metrics["vf_loss"], expected)
