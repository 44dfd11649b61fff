"""Seed 002, the training package of a team game: buffer, trainer and normalisation, with only the import root changed.

Its own vector environment, evaluation and script are not covered here; docs/seeds.md tells what is.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal

from twostep import PPOConfig, PPOTrainer, ReturnNormalizer, RolloutBuffer, RunningMeanStd
from twostep.vector import SerialVectorEnv

OBS, ACTIONS, HIDDEN = 3, 2, 8
device = torch.device("cpu")
blue_ids = ["blue_0", "blue_1"]


class LSTMState(NamedTuple):
    h: Tensor
    c: Tensor


class ActorCriticLSTM(nn.Module):
    """As in the seed's package: memory `[1, batch, hidden]`, masked by `done` before the step."""

    def __init__(self, obs_dim: int, action_dim: int) -> None:
        super().__init__()
        self.lstm, self.actor, self.critic = (
            nn.LSTM(obs_dim, HIDDEN),
            nn.Linear(HIDDEN, action_dim),
            nn.Linear(HIDDEN, 1),
        )
        self.log_std = nn.Parameter(torch.zeros(action_dim))

    def initial_state(self, batch_size: int, device: torch.device) -> LSTMState:
        return LSTMState(*(torch.zeros(1, batch_size, HIDDEN, device=device) for _ in range(2)))

    init_state = initial_state

    def get_action_and_value(
        self, obs: Tensor, lstm_state: LSTMState, done: Tensor, action: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, LSTMState]:
        keep = (1.0 - done).view(1, -1, 1)
        features, state = self.lstm(obs[None], (lstm_state.h * keep, lstm_state.c * keep))
        distribution = Normal(self.actor(features[0]), self.log_std.exp())
        action = distribution.sample() if action is None else action
        logprob, entropy = distribution.log_prob(action).sum(-1), distribution.entropy().sum(-1)
        return action, logprob, entropy, self.critic(features[0]).squeeze(-1), LSTMState(*state)


class Mech(gym.Env[np.ndarray, np.ndarray]):
    """Moves a number around; ends or is cut after a few steps."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-10, 10, (OBS,), np.float32)
        self.action_space = gym.spaces.Box(-1, 1, (ACTIONS,), np.float32)
        self.episode = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.episode = 0, self.episode + 1
        return self._obs(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.t += 1
        over = self.t >= 4 + self.episode % 3
        return self._obs(), float(action.sum()), over and self.episode % 2 == 0, over and self.episode % 2 == 1, {}

    def _obs(self) -> np.ndarray:
        return self.np_random.normal(size=OBS).astype(np.float32)


@pytest.fixture
def vec_env() -> SerialVectorEnv:
    return SerialVectorEnv([Mech() for _ in range(4)], check=False)


@pytest.fixture
def model() -> ActorCriticLSTM:
    torch.manual_seed(0)
    return ActorCriticLSTM(OBS, ACTIONS).to(device)


# ---------------------------------------------------------------------- RolloutBuffer


def synthetic(num_steps: int = 4, num_agents: int = 1) -> RolloutBuffer:
    return RolloutBuffer.create(num_steps, num_agents, OBS, ACTIONS, device)


def test_buffer_is_a_plain_dataclass_of_tensors() -> None:
    """E4, E5, E7: the fields, their shapes and their defaults; preallocated, on the device, inspectable."""
    buffer = RolloutBuffer.create(num_steps=5, num_agents=3, obs_dim=OBS, action_dim=ACTIONS, device=device)
    assert dataclasses.is_dataclass(buffer)
    assert buffer.obs.shape == (5, 3, OBS)
    assert buffer.actions.shape == (5, 3, ACTIONS)
    for name in ("logprobs", "rewards", "dones", "values"):
        tensor = getattr(buffer, name)
        assert tensor.shape == (5, 3)
        assert tensor.device == device
    assert buffer.advantages is None
    assert buffer.returns is None
    before = buffer.rewards.data_ptr()
    buffer.rewards[2, 1] = 7.0
    assert buffer.rewards.data_ptr() == before
    assert "rewards=tensor" in repr(buffer)


def test_compute_gae_with_synthetic_rewards_and_values() -> None:
    """E6, E8, E32: `dones[t]` belongs to the start of step t, `next_done` to the end of the last; by hand."""
    buffer = synthetic()
    buffer.rewards[:, 0] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    buffer.values[:, 0] = torch.tensor([0.5, 0.4, 0.3, 0.2])
    buffer.dones[2, 0] = True  # step 1 ended an episode
    gamma, gae_lambda = 0.9, 0.8
    result = buffer.compute_gae(torch.tensor([10.0]), torch.tensor([False]), gamma, gae_lambda)
    assert result is None
    last = 4.0 + 0.9 * 10.0 - 0.2
    third = 3.0 + 0.9 * 0.2 - 0.3 + 0.9 * 0.8 * last
    second = 2.0 - 0.4
    first = 1.0 + 0.9 * 0.4 - 0.5 + 0.9 * 0.8 * second
    torch.testing.assert_close(buffer.advantages[:, 0], torch.tensor([first, second, third, last]))
    torch.testing.assert_close(buffer.returns, buffer.advantages + buffer.values)
    buffer.compute_gae(next_value=torch.tensor([10.0]), next_done=torch.tensor([True]), gamma=gamma, gae_lambda=0.0)
    assert buffer.advantages[3, 0].item() == pytest.approx(4.0 - 0.2)


# ---------------------------------------------------------------------- PPOConfig, PPOTrainer


def test_config_defaults_are_the_seeds() -> None:
    """E9, C5, C25: exactly these, and easy to log."""
    config = PPOConfig()
    expected = {
        "lr": 3e-4,
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "clip_coef": 0.2,
        "ent_coef": 0.01,
        "vf_coef": 0.5,
        "max_grad_norm": 0.5,
        "update_epochs": 4,
        "rollout_steps": 512,
    }
    assert {name: getattr(config, name) for name in expected} == expected
    assert PPOConfig(**json.loads(json.dumps(dataclasses.asdict(config)))) == config


def test_trainer_form_and_attributes(model: ActorCriticLSTM) -> None:
    """E10, C1: `PPOTrainer(model, config, device)`; a plain Adam at the configured rate."""
    config = PPOConfig(lr=1e-3)
    trainer = PPOTrainer(model, config, device)
    assert trainer.config == config
    assert trainer.device == device
    assert isinstance(trainer.optimizer, torch.optim.Adam)
    assert trainer.optimizer.param_groups[0]["lr"] == 1e-3
    learned = {id(parameter) for parameter in trainer.optimizer.param_groups[0]["params"]}
    assert learned == {id(parameter) for parameter in model.parameters()}
    assert {id(parameter) for parameter in trainer.model.parameters()} == learned
    assert isinstance(trainer.return_normalizer, ReturnNormalizer)


def test_the_docstrings_loop(model: ActorCriticLSTM, vec_env: SerialVectorEnv) -> None:
    """E12, E13, E15: collect without a state, update, and metrics that are the caller's to log."""
    num_updates, config = 3, PPOConfig(rollout_steps=16, bptt_length=8)

    trainer = PPOTrainer(model, config, device)
    for _update in range(num_updates):
        buffer = trainer.collect_rollout(vec_env, blue_ids)
        metrics = trainer.update(buffer)

        assert isinstance(buffer, RolloutBuffer)
        assert buffer.rewards.shape == (16, 4)
        assert {"pg_loss", "vf_loss", "entropy", "grad_norm"} <= metrics.keys()
        assert all(type(value) is float for value in metrics.values())
        assert metrics["ratio_error"] < 1e-5
    assert trainer.n_updates == 3
    assert trainer.total_timesteps == 3 * 16 * 4


def test_the_scripts_loop(model: ActorCriticLSTM, vec_env: SerialVectorEnv) -> None:
    """E11, C12, C20: the memory is the caller's, handed in and out as the model keeps it."""
    ppo_cfg = PPOConfig(rollout_steps=6, bptt_length=3)
    num_agents = 4  # environments by agents
    trainer = PPOTrainer(model, ppo_cfg, device)

    lstm_state = model.init_state(num_agents, device)
    for _update in range(3):
        buffer, lstm_state = trainer.collect_rollout(vec_env, blue_ids, lstm_state)
        metrics = trainer.update(buffer)

        assert isinstance(lstm_state, LSTMState)
        assert lstm_state.h.shape == (1, num_agents, HIDDEN)
        assert metrics["ratio_error"] < 1e-5
    assert lstm_state.h.abs().sum() > 0
    buffer, _ = trainer.collect_rollout(vec_env, blue_ids, lstm_state)
    torch.testing.assert_close(buffer.states[0][0].squeeze(1), lstm_state.h[0])


def test_update_learns_from_a_synthetic_buffer() -> None:
    """E15, E32: no environment, no collector; what was rewarded becomes likelier."""

    class Bandit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean, self.value = nn.Parameter(torch.zeros(1)), nn.Linear(OBS, 1)

        def get_action_and_value(self, obs: Tensor, action: Tensor | None = None) -> tuple[Tensor, ...]:
            distribution = Normal(self.mean.expand(len(obs), 1), 1.0)
            action = distribution.sample() if action is None else action
            return action, distribution.log_prob(action).sum(-1), distribution.entropy().sum(-1), self.value(obs)

    model = Bandit()
    buffer = RolloutBuffer.create(64, 2, OBS, 1, device)
    buffer.obs.normal_()
    buffer.actions.normal_()
    buffer.logprobs.copy_(Normal(0.0, 1.0).log_prob(buffer.actions).squeeze(-1))
    buffer.rewards.copy_(buffer.actions.squeeze(-1))
    buffer.compute_gae(torch.zeros(2), torch.ones(2), 0.0, 0.0)
    metrics = PPOTrainer(model, PPOConfig(lr=0.05), device).update(buffer)
    assert model.mean.item() > 0.05
    assert metrics["ratio_error"] < 1e-5


def test_compute_losses_with_known_inputs(model: ActorCriticLSTM) -> None:
    """E14, C13: the clipped objective, the value loss and the entropy bonus, by hand."""
    config = PPOConfig(clip_coef=0.2, vf_coef=0.5, ent_coef=0.01)
    trainer = PPOTrainer(model, config, device)
    buffer = synthetic(num_steps=2, num_agents=2)
    buffer.advantages = torch.tensor([[1.0, -1.0], [2.0, -2.0]])
    buffer.returns = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    ratios = torch.tensor([[1.5, 0.5], [1.1, 1.5]])
    new_values = torch.zeros(2, 2)
    new_entropies = torch.full((2, 2), 3.0)
    loss, metrics = trainer._compute_losses(buffer, ratios.log(), new_values, new_entropies)
    surrogate = [1.2 * 1.0, 0.8 * -1.0, 1.1 * 2.0, 1.5 * -2.0]
    pg_loss, vf_loss = -sum(surrogate) / 4, 0.5 * (1 + 4 + 9 + 16) / 4
    assert metrics["pg_loss"].item() == pytest.approx(pg_loss)
    assert metrics["vf_loss"].item() == pytest.approx(vf_loss)
    assert metrics["entropy"].item() == pytest.approx(3.0)
    assert metrics["clipfrac"].item() == pytest.approx(0.75)
    assert loss.item() == pytest.approx(pg_loss + 0.5 * vf_loss - 0.01 * 3.0)
    assert {*metrics} == {"pg_loss", "vf_loss", "entropy", "approx_kl", "clipfrac", "loss"}
    assert list(inspect.signature(trainer._compute_losses).parameters) == [
        *("buffer", "new_logprobs", "new_values", "new_entropies"),
    ]


# ---------------------------------------------------------------------- normalisation


def test_running_statistics_are_accurate() -> None:
    """E21, E23: mean, var, count; numpy or torch; also far from 0."""
    rng = np.random.default_rng(0)
    rms = RunningMeanStd()
    assert (rms.mean.shape, rms.var.shape, rms.count) == ((), (), 0.0)
    samples = 1e6 + rng.normal(size=1000)
    for part in np.split(samples, [1, 10, 500]):
        rms.update(part)
    assert rms.count == 1000
    assert float(rms.mean) == pytest.approx(samples.mean(), rel=1e-12)
    assert float(rms.var) == pytest.approx(samples.var(), rel=1e-9)
    wide = RunningMeanStd(shape=(3,))
    rows = torch.from_numpy(rng.normal(2.0, 5.0, size=(200, 3)))
    wide.update(rows)
    normal = wide.normalize(rows)
    torch.testing.assert_close(normal.mean(0), torch.zeros(3, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(normal.var(0, correction=0), torch.ones(3, dtype=torch.float64), atol=1e-6, rtol=0)


def test_return_normalizer_divides_by_std_only() -> None:
    """E22, EB2, C34: as the seed says; 0 stays 0."""
    normalizer = ReturnNormalizer()
    returns = torch.tensor([10.0, 20.0, 30.0])
    normalizer.update(returns)
    assert isinstance(normalizer.rms, RunningMeanStd)
    deviation = math.sqrt(200 / 3)
    torch.testing.assert_close(normalizer.normalize(returns), returns / deviation)
    assert normalizer.normalize(torch.zeros(1)).item() == 0.0
