"""What a GPU must not change: the ratio, where data lie, how often the host waits. Left out where there is none."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from twostep import (
    AgentConfig,
    PPOConfig,
    PPOTrainer,
    ReplayBuffer,
    RolloutBuffer,
    TensorEnv,
    evaluate,
    make_env,
    make_policy,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can see")

MEMORIES = ("none", "gru", "lstm")
BOX = gym.spaces.Box(-1, 1, (3,), np.float32)
ACTIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "categorical": (gym.spaces.Discrete(4), {}),
    "gaussian": (BOX, {"std": "state"}),
    "squashed": (BOX, {"action_dist": "squashed"}),
    "beta": (BOX, {"action_dist": "beta"}),
    "mixed": (gym.spaces.Dict({"gear": gym.spaces.MultiDiscrete([3, 2]), "steer": BOX}), {}),
}


class NumpyEnv(gym.Env[Any, Any]):
    """Random pictures and speeds; half of the episodes are cut, half are over; some actions are forbidden."""

    observation_space = gym.spaces.Dict(
        {"speed": gym.spaces.Box(-2, 2, (5,), np.float32), "view": gym.spaces.Box(0, 255, (1, 12, 12), np.uint8)}
    )

    def __init__(self, action_space: Any = ACTIONS["categorical"][0]) -> None:
        self.action_space = action_space

    def _obs(self) -> dict[str, Any]:
        picture = self.np_random.integers(0, 256, (1, 12, 12), np.uint8)
        return {"speed": self.np_random.uniform(-2, 2, 5).astype(np.float32), "view": picture}

    def _info(self) -> dict[str, Any]:
        if not isinstance(self.action_space, gym.spaces.Discrete):
            return {}
        return {"action_mask": np.array([True, *(self.np_random.random(3) < 0.5)])}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 9))
        return self._obs(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.left -= 1
        over = bool(self.left <= 0 and self.np_random.random() < 0.5)
        return self._obs(), float(self.np_random.normal()), over, self.left <= 0 and not over, self._info()


class DeviceEnv:
    """A simulator of 32 rows whose tensors never leave the GPU."""

    num_envs, num_actions = 32, 3
    device = "cuda"

    def __init__(self) -> None:
        self._generator = torch.Generator("cuda").manual_seed(0)

    def _obs(self) -> torch.Tensor:
        return torch.randn(32, 6, device="cuda", generator=self._generator)

    def reset(self) -> torch.Tensor:
        return self._obs()

    def step(self, actions: torch.Tensor) -> tuple[torch.Tensor, ...]:
        assert actions.is_cuda
        chance = torch.rand(32, device="cuda", generator=self._generator)
        return self._obs(), actions.sum(-1), chance < 0.1, chance > 0.9, {"final_obs": self._obs()}


def _trainer(env: Any, memory: str = "none", agent: dict[str, Any] | None = None, **settings: Any) -> PPOTrainer:
    config = AgentConfig(memory=memory, hidden_size=16, memory_size=16, **(agent or {}))
    chosen = {"rollout_steps": 21, "bptt_length": 8, "num_minibatches": 2, "lr": 3e-3, **settings}
    return PPOTrainer(make_policy(env, config, seed=0), env, PPOConfig(**chosen), device="cuda", seed=0)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("action", ACTIONS)
def test_the_first_ratio_is_one(action: str, memory: str) -> None:
    """Other kernels serve one step than whole sequences; what they compute must be the same."""
    space, options = ACTIONS[action]
    env = make_env(lambda: NumpyEnv(space), num_envs=3, seed=1)
    history = _trainer(env, memory, options).train(3 * 21 * 3)
    assert max(history["ratio_error"]) < 1e-4


@pytest.mark.parametrize("memory", MEMORIES)
def test_bf16_stays_near_one(memory: str) -> None:
    env = TensorEnv(DeviceEnv())
    assert max(_trainer(env, memory, precision="bf16").train(3 * 21 * 32)["ratio_error"]) < 0.1


@pytest.mark.parametrize("memory", MEMORIES)
def test_data_of_a_simulator_stay_on_the_gpu(memory: str) -> None:
    trainer = _trainer(TensorEnv(DeviceEnv()), memory, normalize_obs=True, normalize_returns=True)
    rollout = trainer.collect_rollout()
    assert isinstance(rollout, RolloutBuffer)
    for name in ("obs", "actions", "rewards", "values", "next_values", "valid"):
        assert getattr(rollout, name).is_cuda, name
    assert trainer.update(rollout)["ratio_error"] < 1e-4


@pytest.mark.parametrize("memory", MEMORIES)
def test_the_host_does_not_wait_for_minibatches(memory: str) -> None:
    """How often the host waits for the GPU in an update does not grow with the number of optimizer steps."""

    def waits(epochs: int) -> int:
        trainer = _trainer(TensorEnv(DeviceEnv()), memory, update_epochs=epochs, num_minibatches=4)
        trainer.train(2 * 21 * 32)
        rollout = trainer.collect_rollout()
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                trainer.update(rollout)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        return sum("synchroniz" in str(warning.message) for warning in found)

    few, many = waits(1), waits(6)
    print(f"{memory}: the host waits {few} times in an update of 4 optimizer steps, {many} times in one of 24")
    assert many - few <= 1, "20 more steps wait no more often; what the rollouts hold may differ by one"


@pytest.mark.parametrize("memory", MEMORIES)
def test_past_experience_waits_on_the_host(memory: str) -> None:
    """J12: it is kept on the CPU and learned from on the GPU; the fresh part's ratio is still 1."""
    trainer = _trainer(TensorEnv(DeviceEnv()), memory)
    trainer.use_replay(ReplayBuffer(ratio=0.5, keep=2))
    history = trainer.train(4 * 21 * 32)
    assert history["replay_share"][1:] == pytest.approx([0.5] * 3, abs=0.05)
    assert max(history["ratio_error"]) < 1e-4


@pytest.mark.parametrize("memory", MEMORIES)
def test_both_devices_learn_the_same(memory: str) -> None:
    """One rollout and the same weights: the update ends within rounding of where it ends on the CPU."""
    env = make_env("CartPole-v1", num_envs=4, seed=0)
    ends: dict[str, torch.Tensor] = {}
    rollout = None
    for device in ("cpu", "cuda"):
        config = AgentConfig(memory=memory, hidden_size=16, memory_size=16)
        settings = PPOConfig(rollout_steps=32, bptt_length=8, update_epochs=2)
        trainer = PPOTrainer(make_policy(env, config, seed=0), env, settings, device=device, seed=0)
        rollout = trainer.collect_rollout() if rollout is None else rollout
        assert isinstance(rollout, RolloutBuffer)
        rollout.policy_version = None
        trainer.update(rollout)
        ends[device] = torch.cat([parameter.detach().cpu().flatten() for parameter in trainer.policy.parameters()])
    torch.testing.assert_close(ends["cpu"], ends["cuda"], rtol=1e-3, atol=1e-4)


def test_checkpoints_move_between_devices(tmp_path: Any) -> None:
    env = make_env("CartPole-v1", num_envs=4, seed=0)
    trainer = _trainer(env, "gru", normalize_obs=True, normalize_returns=True)
    trainer.train(3 * 21 * 4)
    path = trainer.save_checkpoint(tmp_path / "saved")
    for device in ("cpu", "cuda"):
        config = AgentConfig(memory="gru", hidden_size=16, memory_size=16)
        settings = PPOConfig(rollout_steps=21, bptt_length=8, normalize_obs=True, normalize_returns=True)
        again = PPOTrainer(make_policy(env, config, seed=1), env, settings, device=device, seed=1)
        again.load_checkpoint(path)
        for old, new in zip(trainer.policy.parameters(), again.policy.parameters(), strict=True):
            assert torch.equal(old.cpu(), new.cpu())
        again.train(again.total_timesteps + 84)


def test_cartpole_is_learned() -> None:
    env = make_env("CartPole-v1", num_envs=8, seed=0)
    policy = make_policy(env, seed=0)
    settings = {"rollout_steps": 32, "lr": 1e-3, "minibatch_size": 256, "update_epochs": 20}
    config = PPOConfig(**settings, gamma=0.98, gae_lambda=0.8, ent_coef=0.0)
    trainer = PPOTrainer(policy, env, config, device="cuda", seed=0)
    trainer.train(30_000)
    assert evaluate(policy, make_env("CartPole-v1", num_envs=4), 8, seed=1).mean_return > 150
