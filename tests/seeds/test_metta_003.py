"""Seed 003, modular components: its snippets, with only the import root changed."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from twostep import (
    AgentConfig,
    PolicyStore,
    PPOConfig,
    PPOOptimizer,
    RolloutBuffer,
    RolloutCollector,
    TrainerConfig,
    TrainingConfig,
    TrainingState,
    UniformCurriculum,
    create_training_components,
    default_training_step,
    functional_training_loop,
    make_policy,
    small_fast_config,
)
from twostep.vector import SerialVectorEnv

device = torch.device("cpu")


class Grid(gym.Env[np.ndarray, np.ndarray]):
    """A picture of three features and an action of a type and an argument; cut after 7 steps."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(0, 255, (11, 11, 3), np.uint8)
        self.action_space = gym.spaces.MultiDiscrete([3, 2])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self._obs(), float(action[0] == 2), False, self.t >= 7, {}

    def _obs(self) -> np.ndarray:
        return self.np_random.integers(0, 256, (11, 11, 3), dtype=np.uint8)


@pytest.fixture
def vecenv() -> SerialVectorEnv:
    return SerialVectorEnv([Grid() for _ in range(3)], check=False)


@pytest.fixture
def experience(vecenv: SerialVectorEnv) -> RolloutBuffer:
    obs, actions = torch.zeros(3, 11, 11, 3, dtype=torch.uint8), torch.zeros(3, 2, dtype=torch.int64)
    return RolloutBuffer.create(20, 3, obs, actions, device)


def curiosity_loss(policy, obs, actions, rewards, values, advantages):
    """Custom loss for exploration."""
    starts = torch.zeros(rewards.shape, dtype=torch.bool)
    return -0.1 * policy(obs, policy.initial_state(rewards.shape[1]), starts).distribution.entropy().mean()


def diversity_loss(policy, obs, actions, rewards, values, advantages):
    shapes = {tuple(part.shape) for part in (rewards, values, advantages)}
    assert len(shapes) == 1
    return (values - rewards).square().mean(), {"seen": torch.tensor(1.0)}


def test_direct_component_usage(vecenv: SerialVectorEnv, experience: RolloutBuffer) -> None:
    """M5, M6, M7: a collector fills the experience, an optimizer learns from it, and the loop is the user's."""
    policy, config = make_policy(vecenv, seed=0), PPOConfig(update_epochs=2)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)

    # Create components
    collector = RolloutCollector(vecenv, policy, experience, device)
    ppo = PPOOptimizer(policy, optimizer, device, config)

    # Training loop
    for _epoch in range(3):
        # Collect data
        stats, steps = collector.collect()

        # Update policy
        losses = ppo.update(experience)

        # Your custom logic here
        assert steps == 60
        assert stats["episodes"] > 0
        assert stats["mean_length"] == 7.0
        assert losses["ratio_error"] < 1e-5
        assert experience.advantages is not None
    assert ppo.optimizer is optimizer
    assert len(optimizer.state) == len(list(policy.parameters()))


def test_custom_losses_change_what_is_learned(vecenv: SerialVectorEnv, experience: RolloutBuffer) -> None:
    """M4, M8, MB10: the README's six arguments; several losses at once; a tensor, or a tensor and metrics."""
    policies = [make_policy(vecenv, seed=0) for _ in range(2)]
    RolloutCollector(vecenv, policies[0], experience, device, seed=0).collect()
    experience.policy_version = None
    experience.compute_gae()
    plain = PPOOptimizer(policies[0], None, device, PPOConfig(update_epochs=1)).update(experience)

    ppo_optimizer = PPOOptimizer(policies[1], None, device, PPOConfig(update_epochs=1))
    losses = ppo_optimizer.update(experience, custom_loss_fns=[curiosity_loss, diversity_loss])

    assert losses["curiosity_loss"] == pytest.approx(-0.1 * losses["entropy"], rel=1e-3)
    assert losses["seen"] == pytest.approx(1.0)
    extra = losses["curiosity_loss"] + losses["diversity_loss"]
    assert losses["loss"] - plain["loss"] == pytest.approx(extra, rel=0.2)
    assert any(not torch.equal(a, b) for a, b in zip(policies[0].parameters(), policies[1].parameters(), strict=True))


def test_individual_loss_components(vecenv: SerialVectorEnv, experience: RolloutBuffer) -> None:
    """M6, M9: the parts by name, with gradients; they add up."""
    policy = make_policy(vecenv, seed=0)
    optimizer = torch.optim.Adam(policy.parameters())
    RolloutCollector(vecenv, policy, experience, device).collect()
    experience.compute_gae()
    assert experience.advantages is not None
    assert experience.returns is not None
    columns = (experience.logprobs, experience.advantages, experience.returns, experience.values)
    old_logprobs, advantages, returns, values = (column.flatten() for column in columns)
    obs, actions = experience.obs.flatten(0, 1), experience.actions.flatten(0, 1)

    ppo = PPOOptimizer(policy, optimizer, device, PPOConfig())

    # Get individual loss components
    losses = ppo.compute_ppo_loss(obs, actions, old_logprobs, advantages, returns, values)
    # Returns: policy_loss, value_loss, entropy_loss, total_loss, approx_kl, clipfrac

    names = {"policy_loss", "value_loss", "entropy_loss", "total_loss", "approx_kl", "clipfrac"}
    assert names <= losses.keys()
    assert losses["approx_kl"].item() == pytest.approx(0.0, abs=1e-6)
    assert losses["clipfrac"].item() == 0.0
    assert losses["policy_loss"].item() == pytest.approx(-advantages.mean().item(), abs=1e-5)
    total = losses["policy_loss"] + 0.5 * losses["value_loss"] + 0.01 * losses["entropy_loss"]
    assert losses["total_loss"].item() == pytest.approx(total.item(), rel=1e-5)
    losses["total_loss"].backward()
    assert all(parameter.grad is not None for parameter in policy.parameters())


def test_one_custom_loss_alone(vecenv: SerialVectorEnv, experience: RolloutBuffer) -> None:
    """M8, M4: a loss that wants nothing but one action gets it."""

    def my_custom_loss(policy: Any, obs: Tensor, actions: Tensor, rewards: Tensor, values: Tensor, _: Tensor) -> Tensor:
        starts = torch.zeros(rewards.shape, dtype=torch.bool)
        return -10 * policy(obs, (), starts).distribution.log_prob(torch.zeros_like(actions)).mean()

    policy = make_policy(vecenv, seed=0)
    collector = RolloutCollector(vecenv, policy, experience, device, seed=0)
    ppo = PPOOptimizer(policy, None, device, PPOConfig(lr=3e-3))
    for _ in range(5):
        collector.collect()
        stats = ppo.update(experience, custom_loss_fns=[my_custom_loss])
    assert stats["my_custom_loss"] < 10
    assert (experience.actions == 0).float().mean() > 0.75


def test_structured_configs() -> None:
    """M2, M10, MB7: typed dataclasses; old nested dicts are read into them and stay as they were."""
    # Use preset
    config = small_fast_config()
    assert config.trainer.total_timesteps == 10_000

    # Or create custom
    config = TrainingConfig(
        experiment_name="my_experiment",
        agent=AgentConfig(name="simple_cnn", hidden_size=512),
        trainer=TrainerConfig(total_timesteps=1_000_000),
    )
    assert config.agent.hidden_size == 512

    # Old YAML config
    yaml_config = {
        "agent": {"name": "simple_cnn"},
        "trainer": {"total_timesteps": 10_000_000},
    }

    # Convert to structured config
    config = TrainingConfig.from_dict(yaml_config)

    assert (config.agent.name, config.trainer.total_timesteps) == ("simple_cnn", 10_000_000)
    assert yaml_config == {"agent": {"name": "simple_cnn"}, "trainer": {"total_timesteps": 10_000_000}}


def test_functional_training_loop() -> None:
    """M3, M11, M15, M16: an explicit loop, with one's own step and losses, or with the interface of a trainer."""
    trainer_config = TrainingConfig.from_dict({"env": "CartPole-v1", "num_envs": 2, "total_timesteps": 200})
    ppo_config = PPOConfig(rollout_steps=32, update_epochs=1)
    curriculum = UniformCurriculum({"narrow": {"low": -0.01, "high": 0.01}, "wide": {"low": -0.1, "high": 0.1}}, seed=0)
    policy_store = PolicyStore()
    agent = make_policy(gym.make("CartPole-v1"), AgentConfig(hidden_size=8))

    def custom_training_step(state: Any, components: Any, config: Any, experience: Any, custom_losses: Any) -> Any:
        metrics = default_training_step(state, components, config, experience, custom_losses)
        assert metrics["curiosity_loss"] < 0
        assert metrics["curriculum/attempts/wide"] >= 0
        assert metrics["seen"] == pytest.approx(1.0)
        return metrics

    state = functional_training_loop(
        config=trainer_config,
        ppo_config=ppo_config,
        policy=agent,
        curriculum=curriculum,
        policy_store=policy_store,
        step_fn=custom_training_step,  # Optional custom step
        custom_losses=[curiosity_loss, diversity_loss],  # Optional custom losses
    )
    assert (state.agent_steps, state.epoch) == (256, 4)
    assert [record.name for record in policy_store.records()] == ["step_000000000256"]

    # Option 1: Use functional trainer with same interface
    config, policy = trainer_config, agent
    state = functional_training_loop(config, ppo_config, policy, curriculum, policy_store)
    assert state.agent_steps == 256


def test_components_directly_for_full_control(vecenv: SerialVectorEnv, experience: RolloutBuffer) -> None:
    """M1, M11, M12, MB3: what the loop is made of."""
    config, ppo_config, policy_store = TrainerConfig(total_timesteps=120), PPOConfig(update_epochs=1), PolicyStore()
    policy, state = make_policy(vecenv, seed=0), TrainingState()

    # Option 2: Use components directly for full control
    components = create_training_components(config, ppo_config, policy, vecenv, experience, policy_store)
    while state.agent_steps < config.total_timesteps:
        metrics = default_training_step(state, components, config, experience)

    assert (state.agent_steps, state.epoch) == (120, 2)
    assert metrics["ratio_error"] < 1e-5
