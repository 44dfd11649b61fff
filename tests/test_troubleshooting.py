"""Advice in words where an update's measures leave the healthy range, with settings to try."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from twostep import PPOConfig
from twostep.cli import main
from twostep.config.presets import locomotion
from twostep.stats.troubleshooting import GRACE, PATIENCE, Troubleshooter, out_of_memory, where_time_went

HEALTHY = {"approx_kl": 0.01, "explained_variance": 0.9, "entropy": 0.6, "clipfrac": 0.1, "loss": 1.0}
SEED = vars(locomotion())


def said(watch, updates, settings=SEED, **measures):
    return [words for _ in range(updates) for words in watch.take_in(HEALTHY | measures, settings)]


@pytest.mark.parametrize(
    ("measures", "advice"),
    [
        ({"approx_kl": 0.08}, ["policy moves too fast", "KL 0.080", "lr=0.0001 instead of 0.0003", "clip_coef=0.1"]),
        (
            {"explained_variance": 0.2},
            ["value estimate poor", "vf_coef=1 instead of 0.5", "rewards make sense"],
        ),
        ({"entropy": 0.01}, ["exploration gone", "ent_coef=0.02 instead of 0.01", "deviation of actions"]),
        ({"clipfrac": 0.5}, ["clipping heavy", "update_epochs=5"]),
        ({"explained_variance": np.nan}, ["All returns are alike", "simulator", "rewards"]),
    ],
)
def test_troubles_are_told_once_with_the_seeds_remedies(measures, advice):
    """L16, L17, L24: the troubleshooting table, by itself; not for a single bad update, and not again and again."""
    watch = Troubleshooter(gym.spaces.Discrete(2))
    assert said(watch, GRACE) == []
    assert said(watch, PATIENCE - 1, **measures) == []
    (words,) = said(watch, 3 * PATIENCE, **measures)
    assert all(part in words for part in advice), words
    assert list(watch.present.values()) == [words]


def test_what_was_over_can_come_again():
    """L17."""
    watch = Troubleshooter()
    assert len(said(watch, PATIENCE, approx_kl=0.2)) == 1
    assert said(watch, PATIENCE) == []
    assert watch.present == {}
    assert len(said(watch, PATIENCE, approx_kl=0.2)) == 1


def test_a_critic_is_given_time():
    """L16: poor at first is normal."""
    assert said(Troubleshooter(), GRACE + PATIENCE - 1, explained_variance=0.1) == []


@given(st.lists(st.booleans(), max_size=200))
def test_healthy_updates_are_never_bothered(moves):
    """L16, L17: nor are those that are poor now and then, less often than not."""
    watch = Troubleshooter()
    for poor in moves:
        assert said(watch, 1, approx_kl=0.2 if poor else 0.01) + said(watch, 1) == []


def test_remedies_that_are_taken_already_are_not_named():
    """L24."""
    settings = vars(PPOConfig(clip_coef=0.1, target_kl=0.03, normalize_returns=True))
    (words,) = said(Troubleshooter(), PATIENCE, settings, approx_kl=0.2)
    assert "clip_coef" not in words
    assert "target_kl" not in words


@pytest.mark.parametrize("measures", [{"approx_kl": 0.2}, {"clipfrac": 0.5}])
def test_a_rate_that_follows_the_kl_is_told_another_kl(measures):
    """L24: another lr would be overridden at once."""
    settings = vars(PPOConfig(lr_schedule="adaptive_kl"))
    (words,) = said(Troubleshooter(), PATIENCE, settings, **measures)
    assert "desired_kl=0.003 instead of 0.01" in words
    assert "lr=" not in words


def test_memory_and_time_have_their_levers():
    """L24, J46: fewer environments, shorter sequences, pieces; and which phase is worth making faster."""
    words = out_of_memory(4096, SEED)
    assert all(part in words for part in ("num_envs=2048", "bptt_length=16", "accumulate=2", "minibatch_size"))
    words = out_of_memory(4096, vars(PPOConfig()), lessons=4)
    assert all(part in words for part in ("num_envs=2048", "num_minibatches=8", "keep=2", "bf16"))
    assert not any(refused in words for refused in ("accumulate", "minibatch_size"))
    assert where_time_went(2.0, 7.5, 10.0) == "20% of the time collecting, 75% learning"
    assert where_time_went(3.0, 4.0, 10.0).endswith("40% learning, 30% beginning and saving")
    assert "update_epochs" in where_time_went(0.5, 9.0, 10.0)
    assert "num_workers" in where_time_went(9.0, 0.5, 10.0)


class Nothing(gym.Env):
    """What is left of an environment whose simulator is not there: noise, no reward, and no end."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return self.np_random.random(2, np.float32), 0.0, False, False, {}


@pytest.fixture
def run(tmp_path, capsys):
    """A function: train in `Nothing` for some updates and return the exit code and what was said."""
    gym.register("Nothing-v0", Nothing)

    def train(*words):
        common = ["--num_envs=1", "--rollout_steps=8", "--num_minibatches=1", "--update_epochs=1", "--no_tensorboard"]
        code = main(["train", "Nothing-v0", *common, f"--run_dir={tmp_path}", "--device=cpu", *words])
        return code, capsys.readouterr()

    yield train
    del gym.registry["Nothing-v0"]


def test_an_environment_that_gives_nothing_is_noticed(run):
    """LB14: zero rewards and episodes without end do not pass for training."""
    code, said = run("--total_timesteps=96")
    assert code == 0
    assert "no episode has ended yet" in said.out
    assert said.out.count("Every reward was 0 so far") == 2, "when it is noticed, and at the end"
    assert "of the time collecting" in said.out


def test_a_device_without_memory_is_told_in_words(run, monkeypatch):
    """L24: with what needs less, instead of a traceback."""

    def fail(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr("twostep.learn.ppo.PPOOptimizer.update", fail)
    code, said = run("--total_timesteps=96")
    assert code == 1
    assert "training failed: The device has not enough memory. Try accumulate=2" in said.err
