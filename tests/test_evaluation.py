"""Evaluation with a scripted policy in a scripted environment, where every episode is known beforehand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from twostep.errors import ConfigError
from twostep.evaluation import EpisodeStats, evaluate
from twostep.protocols import PolicyOutput, Step


class ScriptedEnv:
    """Row r plays episodes of the scripted lengths, again and again; each step pays what the action says.

    An observation is `[row, steps so far in the episode]`. With `next_step`, the step after an end is a phantom: its
    reward and flags are nonsense, its action is ignored, and the next episode starts after it.
    """

    def __init__(self, lengths, next_step=False, masks=False, tensors=False):
        self.lengths, self.next_step, self.masks, self.tensors = lengths, next_step, masks, tensors
        self.num_rows = len(lengths)
        self.action_space = None
        self.seeds, self.actions = [], []

    def reset(self, seed=None):
        self.seeds.append(seed)
        self.episode = [0] * self.num_rows
        self.time = [0] * self.num_rows
        self.over = [False] * self.num_rows
        return self._step([True] * self.num_rows)

    def step(self, actions):
        self.actions.append(actions)
        rows = range(self.num_rows)
        valid = [not (self.next_step and self.over[row]) for row in rows]
        rewards = [float(actions[row]) if valid[row] else math.nan for row in rows]
        ended, starts, infos = [False] * self.num_rows, [False] * self.num_rows, {}
        for row in rows:
            if not valid[row]:
                self._start(row)
                starts[row], ended[row] = True, True
                continue
            self.time[row] += 1
            if self.time[row] == self.lengths[row][self.episode[row] % len(self.lengths[row])]:
                self.over[row] = ended[row] = True
                infos[row] = {"row": row, "episode": self.episode[row]}
                if not self.next_step:
                    self._start(row)
                    starts[row] = True
        return self._step(starts, rewards, ended, valid if self.next_step else None, infos)

    def _start(self, row):
        self.episode[row] += 1
        self.time[row], self.over[row] = 0, False

    def _step(self, starts, rewards=None, ended=None, valid=None, infos=None):
        convert = torch.tensor if self.tensors else np.array
        flags = None if ended is None else convert(ended)
        odd = None if ended is None else convert([row % 2 == 1 for row in range(self.num_rows)])
        return Step(
            obs={"place": convert([[row, self.time[row]] for row in range(self.num_rows)], dtype=convert([0.5]).dtype)},
            episode_starts=convert(starts),
            rewards=None if rewards is None else convert(rewards),
            terminated=None if flags is None else flags & odd,
            truncated=None if flags is None else flags & ~odd,
            valid=None if valid is None else convert(valid),
            action_masks=convert([[True, row % 2 == 0] for row in range(self.num_rows)]) if self.masks else None,
            infos=infos or {},
        )

    def close(self):
        pass


class ScriptedDistribution:
    def __init__(self, actions):
        self.actions = actions

    def sample(self, generator=None):
        return self.actions + torch.randn(self.actions.shape, generator=generator)

    def mode(self):
        return self.actions


class CountingPolicy:
    """Remembers how often it was called since the episode began, and acts by that number, 1 at first."""

    def __init__(self):
        self.calls = []

    def __call__(self, obs, state, episode_starts, **conditions):
        assert torch.is_inference_mode_enabled()
        self.calls.append((obs, episode_starts, conditions))
        memory = torch.where(episode_starts[0], 0.0, state) + 1
        return PolicyOutput(ScriptedDistribution(memory[None]), memory[None], memory)

    def initial_state(self, batch):
        return torch.full((batch,), 1000.0)

    def to_env(self, actions):
        assert actions.dim() == 1
        return actions


def triangle(length):
    return length * (length + 1) / 2


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=4),
    episodes=st.integers(1, 9),
    next_step=st.booleans(),
)
def test_every_row_plays_its_share_of_whole_episodes(lengths, episodes, next_step):
    """E26, MB9: exactly that many, each from its start, memory forgotten between, phantom steps not counted."""
    stats = evaluate(CountingPolicy(), ScriptedEnv(lengths, next_step), episodes)
    expected = []
    for row, script in enumerate(lengths):
        share = episodes // len(lengths) + (row < episodes % len(lengths))
        expected += [script[number % len(script)] for number in range(share)]
    assert stats.lengths == expected
    assert stats.returns == [triangle(length) for length in expected]
    assert len(stats) == len(stats.infos) == episodes


class BrokenOff(ScriptedEnv):
    """A worker fails in the third step of the first row, whose next episode begins in it."""

    def step(self, actions):
        step = super().step(actions)
        fails = len(self.actions) == 3
        if fails:
            self._start(0)
            step.obs["place"][0] = [0, 0]
        step.valid = np.array([not fails] + [True] * (self.num_rows - 1))
        if fails:
            step.rewards[0], step.truncated[0], step.episode_starts[0] = 0.0, True, True
        return step


def test_an_episode_that_a_failure_broke_off_is_no_part_of_the_next():
    """A1, E26: what it had earned until then counts nowhere."""
    stats = evaluate(CountingPolicy(), BrokenOff([[4], [3]]), episodes=4)
    assert stats.lengths == [4, 4, 3, 3]
    assert stats.returns == [triangle(4), triangle(4), triangle(3), triangle(3)]


def test_short_episodes_are_not_favoured():
    """The first ten ends of these rows are all of length 1; the mean must see both rows alike."""
    stats = evaluate(CountingPolicy(), ScriptedEnv([[1], [30]]), episodes=10)
    assert stats.lengths == [1] * 5 + [30] * 5
    assert stats.infos[0] == {"row": 0, "episode": 0}
    assert stats.infos[-1] == {"row": 1, "episode": 4}


def test_the_policy_sees_one_step_of_all_rows_in_single_precision():
    policy, env = CountingPolicy(), ScriptedEnv([[2], [3]], masks=True)
    evaluate(policy, env, episodes=2, seed=5)
    obs, starts, conditions = policy.calls[1]
    assert obs["place"].dtype == torch.float32
    assert obs["place"].tolist() == [[[0.0, 1.0], [1.0, 1.0]]]
    assert starts.tolist() == [[False, False]]
    assert conditions["action_masks"].tolist() == [[[True, True], [True, False]]]
    assert env.seeds == [5]
    assert isinstance(env.actions[0], np.ndarray)


def test_no_masks_no_keyword():
    """A policy that knows no masks is not given any."""
    policy = CountingPolicy()
    evaluate(policy, ScriptedEnv([[1]]), episodes=1)
    assert policy.calls[0][2] == {}


def test_tensor_environments_get_tensors_they_may_change():
    """A simulator may clip its actions in place, which tensors of inference mode would refuse."""
    env = ScriptedEnv([[2], [1]], tensors=True)
    stats = evaluate(CountingPolicy(), env, episodes=3)
    assert stats.lengths == [2, 2, 1]
    env.actions[0].clamp_(max=0.0)


def test_sampling_repeats_with_its_seed_and_leaves_global_randomness_alone():
    """R10: the same seed gives the same episodes, another seed others."""
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first, again, other = (
        evaluate(CountingPolicy(), ScriptedEnv([[4]]), 3, seed=seed, deterministic=False) for seed in (1, 1, 2)
    )
    assert first.returns == again.returns != other.returns
    assert torch.equal(torch.get_rng_state(), before)


def test_modules_evaluate_without_dropout_and_go_back_to_what_they_were():
    """JB8: parts that were frozen in evaluation mode stay so, also when the environment fails."""

    class Module(torch.nn.Module, CountingPolicy):
        def __init__(self):
            torch.nn.Module.__init__(self)
            CountingPolicy.__init__(self)
            self.trained, self.frozen = torch.nn.Dropout(), torch.nn.Linear(1, 1).eval()

        def forward(self, *args, **conditions):
            assert not any(module.training for module in self.modules())
            return CountingPolicy.__call__(self, *args, **conditions)

    policy, env = Module(), ScriptedEnv([[2]])
    evaluate(policy, env, episodes=1)
    assert (policy.training, policy.trained.training, policy.frozen.training) == (True, True, False)
    env.step = None
    with pytest.raises(TypeError):
        evaluate(policy, env, episodes=1)
    assert (policy.training, policy.trained.training, policy.frozen.training) == (True, True, False)


def test_no_episodes_are_refused():
    with pytest.raises(ConfigError, match="episodes=0 must be 1 or more"):
        evaluate(CountingPolicy(), ScriptedEnv([[1]]), episodes=0)


def test_statistics_of_known_numbers():
    """The interval is Student's: 2.306 standard errors for nine episodes."""
    stats = EpisodeStats(returns=[float(number) for number in range(1, 10)], lengths=[2] * 8 + [11])
    assert stats.mean_return == 5.0
    assert stats.std_return == pytest.approx(math.sqrt(60 / 9))
    assert stats.mean_length == 3.0
    assert stats.interval == pytest.approx((5 - 2.306 * math.sqrt(7.5 / 9), 5 + 2.306 * math.sqrt(7.5 / 9)), abs=1e-3)
    assert str(stats) == "return 5.00 (95 % interval 2.89 to 7.11), length 3.0, 9 episodes"


@pytest.mark.parametrize(
    ("episodes", "quantile"),
    [(2, 12.7062), (6, 2.5706), (7, 2.4469), (11, 2.2281), (12, 2.2010), (31, 2.0423), (1001, 1.9623)],
)
def test_the_interval_covers_as_tables_say(episodes, quantile):
    returns = [0.0, 2.0] * (episodes // 2) + [1.0] * (episodes % 2)
    standard_error = np.std(returns, ddof=1) / math.sqrt(episodes)
    low, high = EpisodeStats(returns, [1] * episodes).interval
    assert (high - low) / 2 == pytest.approx(quantile * standard_error, rel=2e-4)


def test_too_few_episodes_for_statistics():
    empty, single = EpisodeStats([], []), EpisodeStats([3.0], [1])
    assert all(math.isnan(number) for number in (empty.mean_return, empty.std_return, empty.mean_length))
    assert all(math.isnan(bound) for bound in (*empty.interval, *single.interval))
    assert single.mean_return == 3.0
