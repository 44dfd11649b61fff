"""Faults that such systems had, seen from outside: through a whole collection or update of this library.

Each fault also has a test beside the part that could bring it back; docs/seeds.md lists them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from twostep import (
    AgentConfig,
    EnvError,
    PPOConfig,
    PPOOptimizer,
    PPOTrainer,
    RolloutBuffer,
    RolloutCollector,
    combine_rollouts,
    make_policy,
)
from twostep.config import TrainingConfig
from twostep.every import Every
from twostep.group import ALONE
from twostep.learn.revaluing import judged
from twostep.sequences import Sequences
from twostep.training_state import TrainingState
from twostep.vector import SerialVectorEnv, as_env

GAMMA, LAMBDA = 0.9, 0.8


class Corridor(gym.Env[np.ndarray, int]):
    """Shows where it is: cells 0, 1, 2, ...; ends or is cut after `length` steps, then starts at cell 0 again."""

    def __init__(self, length: int = 3, ending: str = "terminated") -> None:
        self.observation_space = gym.spaces.Box(0, 100, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.length, self.ending, self.cell = length, ending, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.cell = 0
        return np.array([0.0], np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.cell += 1
        over = self.cell == self.length
        ends = (over, False) if self.ending == "terminated" else (False, over)
        return np.array([self.cell], np.float32), 1.0, *ends, {}


class TellsTheCell(nn.Module):
    """Values a state by ten times its cell plus 5."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(2))

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return self.logits.expand(len(obs), 2), 10.0 * obs[:, 0] + 5.0


def collected(env: Any, steps: int) -> RolloutBuffer:
    rollout = RolloutCollector(as_env(env), TellsTheCell(), num_steps=steps).rollout()
    rollout.compute_gae(gamma=GAMMA, gae_lambda=LAMBDA)
    return rollout


def test_values_never_cross_an_episodes_end() -> None:
    """JB1, LB5: advantages of two episodes are those of each alone, and the flag is that of the same step."""
    rollout = collected(Corridor(), 6)
    assert rollout.advantages is not None
    assert rollout.terminated[:, 0].tolist() == [False, False, True, False, False, True]
    last = 1.0 - 25.0
    middle = 1.0 + GAMMA * 25.0 - 15.0 + GAMMA * LAMBDA * last
    first = 1.0 + GAMMA * 15.0 - 5.0 + GAMMA * LAMBDA * middle
    torch.testing.assert_close(rollout.advantages[:, 0], torch.tensor([first, middle, last] * 2))


def test_rollout_is_bootstrapped_with_the_state_after_its_last_action() -> None:
    """JB2: V(s_T), which is not among the stored observations."""
    rollout = collected(Corridor(length=50), 4)
    assert rollout.obs[-1].item() == 3.0
    assert rollout.next_values[-1].item() == 45.0


def test_a_cut_is_bootstrapped_with_the_state_it_cut() -> None:
    """JB3, EB3, MB5, LB6: the last observation is neither lost nor replaced by that of the reset."""
    rollout = collected(Corridor(ending="truncated"), 4)
    assert rollout.truncated[:, 0].tolist() == [False, False, True, False]
    assert rollout.next_values[:, 0].tolist() == [15.0, 25.0, 35.0, 15.0]
    assert rollout.advantages is not None
    assert rollout.advantages[2].item() == pytest.approx(1.0 + GAMMA * 35.0 - 25.0)


def test_differently_scaled_rollouts_are_normalised_together() -> None:
    """JB4: joined rollouts keep their raw scale until they are learned from."""
    rollouts = [collected(Corridor(), 6).to_dict() for _ in range(2)]
    rollouts[1]["advantages"] = rollouts[1]["advantages"] * 1000
    combined = combine_rollouts(rollouts)
    assert combined["advantages"].abs().max() == pytest.approx(rollouts[1]["advantages"].abs().max())


def test_dropout_does_not_make_old_probabilities_wrong() -> None:
    """JB8: the same mode in both phases, said once."""

    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 3))

        def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
            out = self.body(obs)
            return out[:, :2], out[:, 2]

    network = Dropping()
    env = gym.make("CartPole-v1")
    with pytest.warns(UserWarning, match=r"body\.1"):
        trainer = PPOTrainer(network, env, n_epochs=1)
    for _ in range(2):
        trainer.policy.train()
        assert trainer.learn(trainer.collect_rollouts(32))["ratio_error"] < 1e-5


def test_measuring_the_noise_of_the_gradient_changes_nothing(collected: Any) -> None:
    """JB12: with bounds that leave no choice, adaptive minibatches learn exactly what fixed ones do."""
    states = []
    for adaptive in (None, (16, 16)):
        rollout, policy = collected(num_steps=16)
        config = PPOConfig(minibatch_size=16, adaptive_minibatch=adaptive, update_epochs=2)
        PPOOptimizer(policy, None, "cpu", config).update(rollout)
        states.append(policy.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_collectors_share_nothing_but_the_policy(counting_env: Any, small_policy: Any) -> None:
    """JB13: two collectors in turn give what each gives alone; neither uses up the global random numbers."""
    policy = small_policy(counting_env())

    def collector(seed: int) -> RolloutCollector:
        return RolloutCollector(as_env(counting_env()), policy, num_steps=30, seed=seed)

    alone = [[one.rollout() for _ in range(3)] for one in (collector(1), collector(2))]
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    one, other = collector(1), collector(2)
    together = list(zip(*[(one.rollout(), other.rollout()) for _ in range(3)], strict=True))
    assert torch.equal(torch.get_rng_state(), before)
    assert (np.random.get_state()[1] == numpy_before).all()
    for expected, found in zip(alone, together, strict=True):
        for rollout, again in zip(expected, found, strict=True):
            assert torch.equal(rollout.actions, again.actions)
            assert torch.equal(rollout.obs, again.obs)
    assert not torch.equal(alone[0][0].actions, alone[1][0].actions)


def test_an_observation_that_changes_its_length_is_refused() -> None:
    """JB14: where a feature is left out while there is nothing to show, the environment is told so."""

    class Growing(Corridor):
        def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
            obs, *rest = super().step(action)
            return np.concatenate((obs, obs)) if self.cell > 1 else obs, *rest

    with pytest.raises(EnvError, match="shape"):
        RolloutCollector(SerialVectorEnv([Growing()]), TellsTheCell(), num_steps=8).rollout()


def test_the_same_seed_gives_the_same_run(small_trainer: Any) -> None:
    """JB14: nothing depends on the time or on global random numbers; for hashes see the test of the world symbolic."""
    runs = []
    for disturbance in (0, 1):
        torch.manual_seed(disturbance)
        np.random.seed(disturbance)
        trainer = small_trainer(seed=7)
        trainer.train(256)
        runs.append(trainer.policy.state_dict())
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])


def test_a_critic_of_scaled_returns_is_read_in_raw_units(counting_env: Any, small_policy: Any) -> None:
    """EB1, R5: returns of thousands; what stands in the rollout beside raw rewards is raw."""

    class Rich(counting_env):
        def step(self, action: Any) -> Any:
            obs, _, *rest = super().step(action)
            return obs, 1000.0, *rest

    trainer = PPOTrainer(
        small_policy(Rich(), hidden_size=32), Rich(), normalize_returns=True, gamma=0.9, lr=3e-3, batch_size=32, seed=0
    )
    for _ in range(25):
        trainer.learn(trainer.collect_rollouts(100))
    data = trainer.collect_rollouts(100)
    ends = [sum(1000.0 * 0.9**n for n in range(left)) for left in (5, 4, 3, 2, 1)]
    predicted = data["values"].view(-1, 5).mean(0)
    torch.testing.assert_close(predicted, torch.tensor(ends), rtol=0.15, atol=100.0)
    assert float(trainer.return_normalizer.rms.std) > 100
    assert trainer.learn(data)["ratio_error"] < 1e-5


def test_sequences_carry_the_memory_they_began_with(collected: Any) -> None:
    """MB2, EB5: not zeros, not the memory of a policy learned since; also in the last of several epochs."""
    rollout, policy = collected(num_steps=24, bptt_length=6, memory="lstm")
    leaves = rollout.states
    assert all(leaf[1:].abs().sum() > 0 for leaf in leaves)
    kept = [leaf.clone() for leaf in leaves]
    metrics = PPOOptimizer(policy, None, "cpu", PPOConfig(update_epochs=3)).update(rollout)
    assert metrics["ratio_error"] < 1e-5
    assert all(torch.equal(now, before) for now, before in zip(rollout.states, kept, strict=True))


def test_the_policy_explores() -> None:
    """LB1: actions are drawn, and their log-probabilities are those of what was drawn."""

    class Still(Corridor):
        def __init__(self) -> None:
            super().__init__(length=100)
            self.action_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    policy = make_policy(Still(), AgentConfig(init_std=0.5), seed=0)
    rollout = RolloutCollector(as_env(Still()), policy, num_steps=400, seed=0).rollout()
    starts = torch.ones(400, 1, dtype=torch.bool)
    distribution = policy(rollout.obs, (), starts).distribution
    noise = rollout.actions - distribution.mode()
    assert noise.std().item() == pytest.approx(0.5, rel=0.1)
    torch.testing.assert_close(rollout.logprobs, distribution.log_prob(rollout.actions))
    assert (rollout.logprobs < distribution.log_prob(distribution.mode())).all()


def test_entropy_and_discount_are_no_placeholders(collected: Any) -> None:
    """LB3: the entropy is measured and rewarded; gamma and lambda of the settings are the ones in use."""
    results = {}
    for name, settings in {"plain": {}, "entropy": {"ent_coef": 1.0}, "gamma": {"gamma": 0.5}}.items():
        rollout, policy = collected(num_steps=32)
        ppo = PPOOptimizer(policy, None, "cpu", replace(PPOConfig(update_epochs=1), **settings))
        results[name] = (ppo.update(rollout), rollout.advantages)
    assert results["plain"][0]["entropy"] == pytest.approx(math.log(2), abs=0.05)
    lost = results["plain"][0]["loss"] - results["entropy"][0]["loss"]
    assert lost == pytest.approx(0.99 * math.log(2), abs=0.05)
    assert not torch.allclose(results["plain"][1], results["gamma"][1])


def test_a_value_of_one_column_never_becomes_a_square() -> None:
    """LB4: values `(N, 1)` from the network, rewards `(N,)` from the environment, columns `[T, B]` in the rollout."""

    class Column(TellsTheCell):
        def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
            logits, value = super().forward(obs)
            return logits, value[:, None]

    envs = SerialVectorEnv([Corridor() for _ in range(3)])
    rollout = RolloutCollector(envs, Column(), num_steps=4).rollout()
    rollout.compute_gae()
    shapes = {tuple(part.shape) for part in (rollout.values, rollout.rewards, rollout.advantages, rollout.logprobs)}
    assert shapes == {(4, 3)}


@pytest.mark.parametrize(("per_rollout", "every"), [(983_040, 1_000_000), (300_000, 1_000_000), (2_500_000, 1_000_000)])
def test_checkpoints_come_where_a_threshold_is_crossed(per_rollout: int, every: int, tmp_path: Any) -> None:
    """LB10, N8, C35: not by a remainder; at most one per rollout, and no threshold is passed without one."""
    from twostep.cli.training import Run

    class Stub:
        env = gym.make("CartPole-v1")
        device = "cpu"
        group = ALONE
        config = PPOConfig()
        state = TrainingState()
        total_timesteps = 0

        def state_dict(self) -> dict[str, Any]:
            return {}

        manifest = state_dict

    trainer, saved = Stub(), []
    config = TrainingConfig.from_dict({"checkpoint_every": every, "progress": False, "env": "CartPole-v1"})
    run = Run(config, trainer, tmp_path)
    run.checkpointer.try_save = lambda step, *_: saved.append(step)
    total = 20_000_000
    metrics = dict.fromkeys(("episodes", "collect_time", "learn_time"), 0.0) | {"mean_reward": math.nan}
    while trainer.total_timesteps < total:
        trainer.total_timesteps += per_rollout
        run._after_update(trainer, metrics)
    crossed = range(every, trainer.total_timesteps + 1, every)
    expected = sorted({math.ceil(threshold / per_rollout) * per_rollout for threshold in crossed})
    assert saved == expected
    assert len(saved) == trainer.total_timesteps // every or per_rollout > every


@given(
    per_rollout=st.integers(1, 1000),
    every=st.integers(1000, 5000),
    rollouts=st.integers(1, 200),
    resumed_after=st.integers(0, 200),
)
def test_there_are_as_many_checkpoints_as_thresholds(
    per_rollout: int, every: int, rollouts: int, resumed_after: int
) -> None:
    """LB10, L22: floor(steps / frequency), wherever a run was cut and went on."""
    due, saved = Every(every), 0
    for number in range(1, rollouts + 1):
        saved += due.due(number * per_rollout)
        if number == resumed_after:
            due = Every(every, number * per_rollout)
    assert saved == rollouts * per_rollout // every


def test_a_critic_with_memory_learns_with_the_memory_that_it_acted_with(collected: Any) -> None:
    """LB16: its values are the same in both phases, in the middle of episodes and after their ends."""
    rollout, policy = collected(num_steps=48, memory="lstm")
    assert rollout.episode_starts[1:].any()
    torch.testing.assert_close(judged(policy, rollout).values, rollout.values, rtol=1e-5, atol=1e-5)
    spoilt = replace(rollout, states=tuple(leaf.flip(-1) for leaf in rollout.states))
    first = Sequences(spoilt, spoilt.rewards, spoilt.rewards).epoch(1, torch.Generator().manual_seed(0))
    learned = next(first)
    output = policy(learned.obs, learned.states, learned.episode_starts)
    assert not torch.allclose(output.values, learned.values, atol=1e-5), "another memory would be noticed"


def test_every_epoch_has_an_order_of_its_own(collected: Any) -> None:
    """LB16: not one permutation for all epochs."""
    rollout, _ = collected(memory="gru")
    rollout.compute_gae()
    sequences, generator = Sequences(rollout, rollout.advantages, rollout.returns), torch.Generator()
    first, second = (torch.cat([one.returns for one in sequences.epoch(4, generator)], 1) for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(first.flatten().sort()[0], second.flatten().sort()[0])


def test_nothing_is_dropped_where_sizes_do_not_divide(counting_env: Any, small_policy: Any) -> None:
    """LB11: 13 steps, sequences of 4, minibatches larger than the rollout: still learned from, metrics defined."""
    policy = small_policy(counting_env(), memory="gru")
    trainer = PPOTrainer(policy, counting_env(), rollout_steps=13, bptt_length=4, batch_size=1000, n_epochs=1)
    metrics = trainer.update(trainer.collect_rollout())
    assert math.isfinite(metrics["loss"])
    assert metrics["ratio_error"] < 1e-5


def test_resuming_begins_the_environment_anew(small_trainer: Any, tmp_path: Any) -> None:
    """LB9: a trainer that has counted steps but never touched its environment can go on."""
    first = small_trainer()
    first.train(64)
    second = small_trainer()
    second.load_checkpoint(first.save_checkpoint(tmp_path / "here"))
    second.train(128)
    assert second.total_timesteps == 128


def test_settings_written_as_text_are_numbers() -> None:
    """LB13: what a YAML reader takes for text."""
    config = TrainingConfig.from_dict({"learning_rate": "3e-4", "n_epochs": "10"})
    assert (config.ppo.lr, config.ppo.update_epochs) == (3e-4, 10)


def test_metrics_are_plain_numbers(small_trainer: Any) -> None:
    """JB16: no numpy scalars; a loss below zero is possible and no error."""
    trainer = small_trainer(vf_coef=0.0, ent_coef=1.0)
    metrics = trainer.learn(trainer.collect_rollouts(64))
    assert all(type(value) is float for value in metrics.values())
    assert metrics["loss"] < 0
