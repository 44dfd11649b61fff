"""The loop as functions: the same algorithm as the trainer, each part replaceable."""

from __future__ import annotations

import math

import pytest
import torch

from twostep import (
    ConfigError,
    EnvError,
    PPOConfig,
    PPOTrainer,
    RolloutBuffer,
    TrainingConfig,
    TrainingState,
    create_training_components,
    default_training_step,
    functional_training_loop,
    make_env,
)
from twostep.checkpoint import TrainingCheckpointer
from twostep.config import TrainerConfig
from twostep.curriculum import SuccessRateCurriculum
from twostep.worlds.lock import CombinationLock

CPU = {"device": "cpu", "seed": 0}


def weights(policy):
    return torch.cat([parameter.detach().reshape(-1) for parameter in policy.parameters()]).clone()


@pytest.fixture
def setup(small_policy):
    """A function: an environment, a small net and settings."""

    def build(agent=None, num_envs=2, **settings):
        env = make_env("CartPole-v1", num_envs)
        ppo = PPOConfig(**{"rollout_steps": 32, "minibatch_size": 32, "update_epochs": 2, **settings})
        return env, small_policy(env, **(agent or {})), ppo

    return build


class Shelf:
    """Where policies are kept."""

    def __init__(self):
        self.kept = []

    def save(self, name, policy, metadata):
        self.kept.append((name, weights(policy), metadata))


class Rows:
    """Keeps rows of metrics."""

    def __init__(self):
        self.rows, self.closed = [], False

    def log(self, metrics, step):
        self.rows.append((step, metrics))

    def close(self):
        self.closed = True


@pytest.mark.parametrize(
    ("agent", "settings"),
    [
        ({}, {"lr_schedule": "linear", "normalize_obs": True}),
        ({"memory": "gru"}, {"bptt_length": 8, "normalize_returns": True}),
        ({"memory": "lstm"}, {"adaptive_minibatch": (16, 64), "lr_schedule": "adaptive_kl"}),
    ],
)
def test_the_functions_are_the_trainer_bit_for_bit(setup, small_trainer, agent, settings):
    """M3, M12, M15: six updates give the same weights, the same rows, the same counters."""
    trainer = small_trainer(agent=agent, **settings)
    history = trainer.train(6 * 64)
    env, policy, ppo = setup(agent, **(vars_of(trainer.config) | settings))
    rows = Rows()
    state = functional_training_loop(
        TrainerConfig(total_timesteps=6 * 64), ppo, policy, vecenv=env, sinks=[rows], **CPU
    )
    assert torch.equal(weights(policy), weights(trainer.policy))
    assert (state.agent_steps, state.epoch, state.episodes) == (384, 6, trainer.n_episodes)
    assert state.episode_rewards == trainer.episode_rewards
    assert [row.keys() for _, row in rows.rows] == [history.keys()] * 6
    for name in history.keys() - {"collect_time", "learn_time", "steps_per_second"}:
        assert [row[name] for _, row in rows.rows] == pytest.approx(history[name], rel=0, abs=0, nan_ok=True), name


def vars_of(config):
    return {name: getattr(config, name) for name in type(config).names()}


def test_a_loop_of_ones_own_from_the_components(setup):
    """M12: what seed 003 calls full control; the experience may be made elsewhere."""
    env, policy, ppo = setup()
    other_env, other, _ = setup()
    config, state = TrainerConfig(total_timesteps=200), TrainingState()
    experience = RolloutBuffer.create(32, 2, 4, 0)
    components = create_training_components(config, ppo, policy, env, experience, None, **CPU)
    while state.agent_steps < config.total_timesteps:
        metrics = default_training_step(state, components, config, experience)
    assert metrics["ratio_error"] < 1e-5
    assert (state.agent_steps, state.epoch) == (256, 4)
    functional_training_loop(config, ppo, other, vecenv=other_env, **CPU)
    assert torch.equal(weights(policy), weights(other))


def test_components_are_a_mapping_with_attributes(setup):
    """M1, M12."""
    env, policy, ppo = setup()
    components = create_training_components(TrainerConfig(), ppo, policy, env, **CPU)
    assert {"collector", "ppo", "optimizer", "evaluator", "checkpointer", "stats_logger", "experience"} <= {*components}
    assert all(components[name] is getattr(components, name) for name in components)
    assert components["optimizer"] is components.ppo.optimizer
    assert components.experience is components.collector.experience
    assert components.experience.obs.shape == (32, 2, 4)
    assert dict(**components).keys() == {*components}
    with pytest.raises(KeyError, match="'learner' is no component; there are collector, "):
        components["learner"]


def test_a_step_function_gets_what_the_default_gets(setup):
    """M16: with the custom losses; what it does instead is what happens."""
    env, policy, ppo = setup()
    calls = []

    def central(policy, obs, actions, rewards, values, advantages):
        return 10.0 * values.square().mean()

    def twice(state, components, config, experience, custom_losses):
        """Learn twice from what was collected once."""
        calls.append((config.total_timesteps, experience is components.experience, custom_losses))
        metrics = default_training_step(state, components, config, experience, custom_losses)
        components.ppo.update(experience, custom_losses)
        return metrics | {"again": 1.0}

    rows = Rows()
    config = TrainingConfig(trainer=TrainerConfig(total_timesteps=128), ppo=ppo)
    functional_training_loop(
        config, None, policy, vecenv=env, step_fn=twice, custom_losses=[central], sinks=[rows], **CPU
    )
    assert calls == [(128, True, [central])] * 2
    assert all(row["again"] == 1.0 and row["central"] > 0 for _, row in rows.rows)
    once = functional_training_loop(config, None, setup()[1], vecenv=setup()[0], **CPU)
    assert once.agent_steps == 128


def test_a_step_that_counts_nothing_is_found_at_once(setup):
    """MB3: a loop that cannot end says so."""
    env, policy, ppo = setup()

    def lazy(state, components, config, experience, custom_losses):
        return {}

    with pytest.raises(ConfigError, match=r"lazy left state.agent_steps=0 and state.epoch=0 .* call state.count"):
        functional_training_loop(TrainerConfig(), ppo, policy, vecenv=env, step_fn=lazy)


def test_work_on_the_way_happens_at_thresholds(setup):
    """MB6: whatever a rollout's length, once per threshold and at the end; evaluations are part of their row."""
    env, policy, ppo = setup()
    shelf, rows, seen = Shelf(), Rows(), []

    class Evaluator:
        def evaluate(self, policy):
            seen.append(weights(policy))
            return {"mean_return": 7.0}

    config = TrainerConfig(total_timesteps=500, checkpoint_every=150, eval_every=200, log_interval=3)
    functional_training_loop(config, ppo, policy, None, shelf, vecenv=env, evaluator=Evaluator(), sinks=[rows], **CPU)
    assert [name for name, _, _ in shelf.kept] == [f"step_{step:012d}" for step in (192, 320, 512)]
    assert torch.equal(shelf.kept[-1][1], weights(policy))
    assert shelf.kept[-1][2].keys() == {"agent_step", "epoch", "score"}
    assert len(seen) == 2
    assert [step for step, _ in rows.rows] == [192, 384, 512]
    assert rows.closed
    with pytest.raises(ConfigError, match="eval_every asks for evaluations, but nobody does them"):
        functional_training_loop(config, ppo, policy, vecenv=env, **CPU)


def test_it_stops_when_solved_or_told(setup):
    env, policy, ppo = setup(num_envs=8)
    state = functional_training_loop(TrainerConfig(solved_at=1.0), ppo, policy, vecenv=env, **CPU)
    assert len(state.episode_rewards) == 100
    assert state.agent_steps < 10_000

    def once(state, *rest):
        state.should_stop = True
        return default_training_step(state, *rest)

    env, policy, ppo = setup()
    assert functional_training_loop(TrainerConfig(), ppo, policy, vecenv=env, step_fn=once).epoch == 1


def test_where_the_environment_comes_from(setup):
    """M3: from the caller or the settings; only what was made here is closed here."""
    _, policy, ppo = setup()
    with pytest.raises(EnvError, match=r"no environment to collect from. Pass vecenv="):
        functional_training_loop(TrainerConfig(total_timesteps=64), ppo, policy)
    with pytest.raises(EnvError, match=r"no environment to collect from. Pass vecenv="):
        functional_training_loop(TrainingConfig(), ppo, policy)
    whole = TrainingConfig.from_dict({"env": "CartPole-v1", "num_envs": 2, "total_timesteps": 64, "n_steps": 32})
    assert functional_training_loop(whole, None, policy).agent_steps == 64


def test_a_curriculum_teaches_as_it_does_under_the_trainer(small_policy):
    """M3: tasks reach the episodes, their scores come back, its metrics are part of the row."""

    def parts():
        env = make_env(lambda: CombinationLock(length=4, choices=2), 4)
        tasks = {"short": {"length": 1}, "long": {"length": 4}}
        return env, small_policy(env), SuccessRateCurriculum(tasks, history=5)

    env, policy, curriculum = parts()
    rows, ppo = Rows(), PPOConfig(rollout_steps=32, minibatch_size=32)
    config = TrainerConfig(total_timesteps=512)
    functional_training_loop(config, ppo, policy, curriculum, vecenv=env, sinks=[rows], **CPU)
    env, other, same = parts()
    history = PPOTrainer(other, env, ppo, curriculum=same, **CPU).train(512)
    assert torch.equal(weights(policy), weights(other))
    assert [row["curriculum/level"] for _, row in rows.rows] == history["curriculum/level"]
    assert history["curriculum/attempts/short"][-1] > 0
    whole = {"env": "twostep.worlds.lock:CombinationLock", "num_envs": 2, "total_timesteps": 64, "n_steps": 32}
    whole |= {"curriculum": {"kind": "staged", "tasks": {"short": {"length": 1}, "whole": {}}, "stages": [0.5]}}
    env = make_env(CombinationLock, 2)
    functional_training_loop(TrainingConfig.from_dict(whole), None, small_policy(env), sinks=[rows])
    assert rows.rows[-1][1]["curriculum/attempts/short"] > 0


@pytest.mark.parametrize("agent", [{}, {"memory": "gru"}])
def test_a_loop_that_was_stopped_goes_on_as_if_it_had_not(setup, tmp_path, agent):
    """M1, MB4: checkpoints hold all that the rest depends on; the same call goes on from the newest, bit for bit."""
    config = TrainerConfig(total_timesteps=384)
    settings = {"lr_schedule": "linear", "normalize_obs": True, "bptt_length": 8}

    def stop_halfway(state, *rest):
        metrics = default_training_step(state, *rest)
        state.should_stop = state.agent_steps >= 192
        return metrics

    env, whole, ppo = setup(agent, **settings)
    straight = functional_training_loop(config, ppo, whole, vecenv=env, **CPU)
    for step_fn in (stop_halfway, default_training_step):
        env, policy, ppo = setup(agent, **settings)
        checkpointer = TrainingCheckpointer(tmp_path)
        state = functional_training_loop(
            config, ppo, policy, vecenv=env, step_fn=step_fn, checkpointer=checkpointer, **CPU
        )
    assert checkpointer.steps() == [192, 384]
    assert torch.equal(weights(policy), weights(whole))
    assert state.metrics() == straight.metrics()
    trainer = PPOTrainer(setup(agent)[1], setup(agent)[0], ppo, **CPU)
    trainer.load_checkpoint(checkpointer.path(384))
    assert torch.equal(weights(trainer.policy), weights(whole))
    assert trainer.n_episodes == state.episodes


def test_a_state_is_kept_and_goes_on():
    """Counters and windows come back as they were."""
    state = TrainingState(agent_steps=5, epoch=2, episodes=200)
    assert math.isnan(state.metrics()["mean_reward"])
    state.episode_rewards.extend(range(200))
    state.episode_lengths.extend([3] * 200)
    again = TrainingState()
    again.load_state_dict(state.state_dict())
    assert again == state
    assert again.metrics() == {"mean_reward": 149.5, "mean_length": 3.0, "timesteps": 5, "updates": 2, "episodes": 200}
    assert again.reached(149.5)
    assert not again.reached(150.0)
    assert not again.reached(None)
