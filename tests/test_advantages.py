"""GAE against a literal double sum per episode, and explained variance against its definition."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from twostep.advantages import explained_variance, gae
from twostep.errors import RolloutError

GAMMA, LAMBDA = 0.9, 0.8


def double_sum(rewards, values, next_values, terminated, truncated, valid, gamma, gae_lambda):
    """The definition, in plain floats: for every step, sum over the rest of its own episode."""
    num_steps, num_rows = len(rewards), len(rewards[0])
    advantages = [[0.0] * num_rows for _ in range(num_steps)]
    for row in range(num_rows):
        for start in range(num_steps):
            for step in range(start, num_steps):
                if not valid[step][row]:
                    break
                next_value = 0.0 if terminated[step][row] else next_values[step][row]
                delta = rewards[step][row] + gamma * next_value - values[step][row]
                advantages[start][row] += (gamma * gae_lambda) ** (step - start) * delta
                if terminated[step][row] or truncated[step][row]:
                    break
    return advantages


def random_rollout(seed, num_steps, num_rows, end_probability=0.15, invalid_probability=0.15):
    rng = np.random.default_rng(seed)
    numbers = {
        name: torch.tensor(rng.normal(size=(num_steps, num_rows)), dtype=torch.float32)
        for name in ("rewards", "values", "next_values")
    }
    flags = {
        name: torch.tensor(rng.random((num_steps, num_rows)) < probability)
        for name, probability in (("terminated", end_probability), ("truncated", end_probability))
    }
    return numbers | flags | {"valid": torch.tensor(rng.random((num_steps, num_rows)) >= invalid_probability)}


def oracle(rollout, gamma, gae_lambda):
    plain = {name: tensor.tolist() for name, tensor in rollout.items()}
    return torch.tensor(double_sum(**plain, gamma=gamma, gae_lambda=gae_lambda), dtype=torch.float64)


def column(*numbers):
    return torch.tensor(numbers, dtype=torch.float32)[:, None]


def flags(*bits):
    return torch.tensor(bits, dtype=torch.bool)[:, None]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_steps=st.integers(1, 19),
    num_rows=st.integers(1, 4),
    gamma=st.sampled_from([0.0, 0.9, 0.99, 1.0]),
    gae_lambda=st.sampled_from([0.0, 0.8, 0.95, 1.0]),
    poison=st.sampled_from([math.nan, math.inf, -math.inf]),
)
def test_equals_the_double_sum(seed, num_steps, num_rows, gamma, gae_lambda, poison):
    """E8, L10, R1, requirements 5.3: random terminations, truncations, both at once, and invalid steps."""
    rollout = random_rollout(seed, num_steps, num_rows)
    poisoned = {name: torch.where(rollout["valid"], rollout[name], poison) for name in ("rewards", "next_values")}
    advantages, returns = gae(**(rollout | poisoned), gamma=gamma, gae_lambda=gae_lambda)
    expected = oracle(rollout, gamma, gae_lambda)
    torch.testing.assert_close(advantages.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(returns, advantages + rollout["values"])


def float64_advantages(rollout, gamma, gae_lambda):
    """The backward recursion in float64, for rollouts too long for the double sum."""
    wide = {name: tensor.numpy().astype(np.float64) for name, tensor in rollout.items()}
    goes_on = (1 - wide["terminated"]) * (1 - wide["truncated"])
    deltas = wide["rewards"] + gamma * wide["next_values"] * (1 - wide["terminated"]) - wide["values"]
    advantages = np.zeros_like(deltas)
    chain = np.zeros_like(deltas[0])
    for step in reversed(range(len(deltas))):
        chain = deltas[step] + gamma * gae_lambda * goes_on[step] * chain
        advantages[step] = chain
    return advantages


@pytest.mark.parametrize("num_steps", [2047, 2048, 4096])
@pytest.mark.parametrize(("gamma", "gae_lambda"), [(1.0, 1.0), (0.99, 0.95), (0.9999, 1.0)])
@pytest.mark.parametrize("worth", [0.0, 10_000.0])
def test_float32_is_accurate_over_long_chains(num_steps, gamma, gae_lambda, worth):
    """Numbers are within 1e-5 of float64, relative to their scale, undiscounted and with large values alike."""
    rollout = random_rollout(7, num_steps, 3, end_probability=0.0002, invalid_probability=0.0)
    del rollout["valid"]
    rollout["values"] += worth
    rollout["next_values"] += worth
    advantages, _ = gae(**rollout, gamma=gamma, gae_lambda=gae_lambda)
    expected = float64_advantages(rollout, gamma, gae_lambda)
    assert np.abs(advantages.numpy() - expected).max() < 1e-5 * max(worth, np.abs(expected).max())


def test_literal_numbers():
    """E8: three steps, worked by hand with gamma 0.5 and lambda 0.5."""
    advantages, returns = gae(
        column(1, 2, 3), column(10, 20, 30), column(20, 30, 40), flags(0, 0, 0), flags(0, 0, 0),
        gamma=0.5, gae_lambda=0.5,
    )  # fmt: skip
    # deltas: 1+10-10 = 1, 2+15-20 = -3, 3+20-30 = -7; chain: -7, -3-7/4 = -4.75, 1-4.75/4 = -0.1875
    assert advantages.flatten().tolist() == [-0.1875, -4.75, -7.0]
    assert returns.flatten().tolist() == [9.8125, 15.25, 23.0]


def test_flags_belong_to_their_own_step():
    """JB1, LB5: an end at step 1 cuts between steps 1 and 2, not a step earlier or later."""
    advantages, _ = gae(
        column(0, 0, 1), column(0, 0, 0), column(0, 0, 0), flags(0, 1, 0), flags(0, 0, 0), gamma=1.0, gae_lambda=1.0
    )
    assert advantages.flatten().tolist() == [0.0, 0.0, 1.0]
    advantages, _ = gae(
        column(0, 1, 0), column(0, 0, 0), column(0, 0, 0), flags(0, 1, 0), flags(0, 0, 0), gamma=1.0, gae_lambda=1.0
    )
    assert advantages.flatten().tolist() == [1.0, 1.0, 0.0]


def test_last_step_bootstraps_from_the_state_after_it():
    """JB2: the rollout's end uses the value after the last action, not that of the last stored observation."""
    advantages, _ = gae(column(0, 0), column(5, 7), column(7, 100), flags(0, 0), flags(0, 0), gamma=1.0, gae_lambda=0.0)
    assert advantages.flatten().tolist() == [2.0, 93.0]


def test_truncation_bootstraps_and_termination_does_not():
    """JB3, EB3, MB5, LB6, R1: same numbers, only the kind of end differs; neither leaks into the other episode."""
    rewards, values, next_values = column(0, 1, 0), column(0, 0, 0), column(0, 10, 1000)
    cut, _ = gae(rewards, values, next_values, flags(0, 0, 0), flags(0, 1, 0), gamma=1.0, gae_lambda=1.0)
    ended, _ = gae(rewards, values, next_values, flags(0, 1, 0), flags(0, 0, 0), gamma=1.0, gae_lambda=1.0)
    both, _ = gae(rewards, values, next_values, flags(0, 1, 0), flags(0, 1, 0), gamma=1.0, gae_lambda=1.0)
    assert cut.flatten().tolist() == [11.0, 11.0, 1000.0]
    assert ended.flatten().tolist() == [1.0, 1.0, 1000.0]
    assert both.flatten().tolist() == [1.0, 1.0, 1000.0]


def test_endless_reward_under_time_limits_is_worth_one_over_one_minus_gamma():
    """JB3, EB3: with the true value 1/(1-gamma) everywhere, time limits leave nothing to learn."""
    worth = torch.full((12, 2), 1 / (1 - GAMMA))
    time_limits = torch.arange(12)[:, None].expand(12, 2) % 4 == 3
    advantages, returns = gae(
        torch.ones(12, 2), worth, worth, torch.zeros_like(time_limits), time_limits, gamma=GAMMA, gae_lambda=LAMBDA
    )
    torch.testing.assert_close(advantages, torch.zeros(12, 2), rtol=0, atol=1e-5)
    torch.testing.assert_close(returns, worth)


def test_time_is_the_first_dimension():
    """MB1: rows never mix, and each row on its own gives the same."""
    rollout = random_rollout(3, 5, 3)
    together, _ = gae(**rollout, gamma=GAMMA, gae_lambda=LAMBDA)
    for row in range(3):
        alone, _ = gae(
            **{name: tensor[:, row : row + 1] for name, tensor in rollout.items()}, gamma=GAMMA, gae_lambda=LAMBDA
        )
        torch.testing.assert_close(together[:, row : row + 1], alone)


def test_invalid_steps_carry_nothing():
    """EB4, R6: no number of an invalid step comes out, and nothing passes through it."""
    advantages, returns = gae(
        column(1, math.nan, 4), column(0, 6, 0), column(2, math.inf, 0), flags(0, 0, 0), flags(0, 0, 0),
        gamma=1.0, gae_lambda=1.0, valid=flags(1, 0, 1),
    )  # fmt: skip
    assert advantages.flatten().tolist() == [3.0, 0.0, 4.0]
    assert returns.flatten().tolist() == [3.0, 6.0, 4.0]


def test_next_values_of_terminated_steps_are_not_even_read():
    """A terminal state has no value, so whatever stands there, NaN included, is ignored."""
    advantages, _ = gae(
        column(1, 1), column(0, 0), column(0, math.nan), flags(0, 1), flags(0, 0), gamma=1.0, gae_lambda=1.0
    )
    assert advantages.flatten().tolist() == [2.0, 1.0]


def test_inputs_stay_untouched_and_results_can_be_learned_from():
    """The function is pure, and its results enter a loss."""
    rollout = random_rollout(5, 9, 2)
    before = {name: tensor.clone() for name, tensor in rollout.items()}
    advantages, _ = gae(**rollout, gamma=GAMMA, gae_lambda=LAMBDA)
    assert all(torch.equal(before[name], rollout[name]) for name in rollout)
    weight = torch.ones((), requires_grad=True)
    (weight * advantages).sum().backward()
    assert weight.grad is not None


@pytest.mark.parametrize("name", ["rewards", "values", "next_values", "terminated", "truncated", "valid"])
def test_a_trailing_dimension_is_refused(name):
    """LB4: `[T, B, 1]` beside `[T, B]` would broadcast silently."""
    rollout = random_rollout(1, 4, 3)
    rollout[name] = rollout[name][..., None]
    with pytest.raises(RolloutError, match=rf"{name} \[4, 3, 1\].*squeeze"):
        gae(**rollout, gamma=GAMMA, gae_lambda=LAMBDA)


def test_empty_rollouts_give_empty_results():
    """J37: no step, no advantage, no crash."""
    advantages, returns = gae(**random_rollout(1, 0, 3), gamma=GAMMA, gae_lambda=LAMBDA)
    assert advantages.shape == returns.shape == (0, 3)


@pytest.mark.parametrize("convention", ["after the step", "before the step", "with the next observation"])
def test_every_convention_of_dones_gives_the_same_advantages(convention):
    """J, E, M and L store `dones` at three places (requirements C18, 5.3): each translates to the same result."""
    num_steps = 40
    rng = random.Random(11)
    values = [rng.gauss(0, 1) for _ in range(num_steps + 1)]
    rewards = [rng.gauss(0, 1) for _ in range(num_steps)]
    done_after = [rng.random() < 0.2 for _ in range(num_steps)]
    done_before = [False, *done_after]
    arriving_rewards = [0.0, *rewards]

    expected, chain = [0.0] * num_steps, 0.0
    for step in reversed(range(num_steps)):
        if convention == "after the step":
            goes_on, reward = 1.0 - done_after[step], rewards[step]
        elif convention == "before the step":
            goes_on, reward = 1.0 - done_before[step + 1], rewards[step]
        else:
            goes_on, reward = 1.0 - done_before[step + 1], arriving_rewards[step + 1]
        delta = reward + GAMMA * values[step + 1] * goes_on - values[step]
        chain = delta + GAMMA * LAMBDA * goes_on * chain
        expected[step] = chain

    terminated = done_after if convention == "after the step" else done_before[1:]
    shifted = rewards if convention != "with the next observation" else arriving_rewards[1:]
    advantages, _ = gae(
        column(*shifted), column(*values[:-1]), column(*values[1:]), flags(*terminated), flags(*[0] * num_steps),
        gamma=GAMMA, gae_lambda=LAMBDA,
    )  # fmt: skip
    torch.testing.assert_close(advantages.flatten(), torch.tensor(expected), rtol=1e-5, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), offset=st.sampled_from([0.0, -50.0, 1000.0]))
def test_explained_variance_is_its_definition(seed, offset):
    """L16, LB17: over the whole rollout, valid steps only."""
    rng = np.random.default_rng(seed)
    returns = (rng.normal(size=(16, 4)) + offset).astype(np.float32)
    values = (returns + 0.3 * rng.normal(size=(16, 4))).astype(np.float32)
    valid = rng.random((16, 4)) < 0.8
    wide = returns[valid].astype(np.float64), values[valid].astype(np.float64)
    expected = 1 - np.var(wide[0] - wide[1]) / np.var(wide[0])
    poisoned = torch.where(torch.tensor(valid), torch.tensor(values), math.nan)
    measured = explained_variance(poisoned, torch.tensor(returns), torch.tensor(valid))
    assert measured.shape == ()
    assert measured.item() == pytest.approx(expected, abs=2e-4)


def test_explained_variance_of_perfect_constant_and_opposite_values():
    """L16: 1 when values are the returns, 0 for a constant, negative when worse than that."""
    returns = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert explained_variance(returns, returns).item() == 1.0
    assert explained_variance(torch.full((2, 2), 9.0), returns).item() == pytest.approx(0.0)
    assert explained_variance(-returns, returns).item() == pytest.approx(-3.0)


@pytest.mark.parametrize("constant", [0.0, 0.1, 1e6 + 0.1])
def test_explained_variance_means_nothing_without_variance(constant):
    """L16: equal returns, however they round, no valid step or no step at all give NaN."""
    returns = torch.full((100, 7), constant)
    nothing = torch.zeros(100, 7, dtype=torch.bool)
    assert explained_variance(torch.randn(100, 7), returns).isnan()
    assert explained_variance(torch.randn(100, 7), torch.randn(100, 7), nothing).isnan()
    assert explained_variance(torch.empty(0, 7), torch.empty(0, 7)).isnan()
    with pytest.raises(RolloutError, match="Shapes differ"):
        explained_variance(torch.randn(4, 3, 1), torch.randn(4, 3))
