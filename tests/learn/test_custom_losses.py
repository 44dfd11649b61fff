"""Losses of the user's own: they see what counts, and what they return is kept or refused, never lost."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from twostep import PolicyError, PPOConfig, PPOOptimizer

ONCE = {"update_epochs": 1, "lr": 1e-6}


def scaled(factor, policy, obs, actions, rewards, values, advantages):
    return factor * values.mean()


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_only_steps_that_count_are_given(collected, memory):
    """M4: with memory as without, one transition after the other."""
    rollout, policy = collected(num_steps=20, memory=memory)
    rollout.valid[3:5, 0] = False
    rollout.valid[:, 2] = False
    rollout.rewards[~rollout.valid] = 1e6
    seen = []

    def look(policy, obs, actions, rewards, values, advantages):
        seen.append(rewards)
        assert obs.shape == (*rewards.shape, 4)
        assert actions.shape == values.shape == advantages.shape == rewards.shape
        return values.mean()

    PPOOptimizer(policy, config=PPOConfig(**ONCE)).update(rollout, [look])
    rewards = torch.cat(seen, dim=1)
    assert rewards.shape == (1, int(rollout.valid.sum()))
    assert float(rewards.max()) == 1.0


def test_what_is_measured_now_and_then_is_kept(collected):
    """M8: a metric need not be there in every call."""
    rollout, policy = collected()
    calls = []

    def sometimes(policy, obs, actions, rewards, values, advantages):
        calls.append(None)
        return values.mean(), {"even": len(calls)} if len(calls) % 2 == 0 else {"odd": len(calls)}

    metrics = PPOOptimizer(policy, config=PPOConfig(**ONCE)).update(rollout, [sometimes])
    assert (metrics["odd"], metrics["even"]) == (2.0, 3.0)  # of calls 1 and 3, of calls 2 and 4


def test_losses_without_a_name_are_numbered(collected):
    """M8: none hides another."""
    rollout, policy = collected()
    losses = [lambda *given: given[4].mean(), lambda *given: 2 * given[4].mean(), partial(scaled, 3.0)]
    metrics = PPOOptimizer(policy, config=PPOConfig(**ONCE)).update(rollout, losses)
    first = metrics["custom_loss"]
    assert metrics["custom_loss_2"] == pytest.approx(2 * first)
    assert metrics["custom_loss_3"] == pytest.approx(3 * first)


@pytest.mark.parametrize(
    ("returned", "complaint"),
    [
        (lambda values: 0.5, "returned float"),
        (lambda values: None, "returned NoneType"),
        (lambda values: values[0], r"returned a tensor of shape \[32\]"),
        (lambda values: (values.mean(), 3.0), "returned"),
        (lambda values: (values.mean(), {"entropy": 1.0}), "'entropy', which something else is called"),
        (lambda values: (values.mean(), {"mine": values}), "mine of the custom loss bad"),
        (lambda values: (values.mean(), {"mine": "much"}), "mine of the custom loss bad"),
    ],
)
def test_what_cannot_be_a_loss_is_refused(collected, returned, complaint):
    """M4: with the name of the function, before the weights move."""
    rollout, policy = collected()

    def bad(policy, obs, actions, rewards, values, advantages):
        return returned(values)

    before = [parameter.clone() for parameter in policy.parameters()]
    with pytest.raises(PolicyError, match=complaint) as caught:
        PPOOptimizer(policy, config=PPOConfig(**ONCE)).update(rollout, [bad])
    assert "bad" in str(caught.value)
    assert all(map(torch.equal, before, policy.parameters()))


def test_two_losses_cannot_measure_under_one_name(collected):
    """M8."""
    rollout, policy = collected()
    same = [lambda *given: (given[4].mean(), {"mine": 1.0})] * 2
    with pytest.raises(PolicyError, match="'mine', which something else is called"):
        PPOOptimizer(policy, config=PPOConfig(**ONCE)).update(rollout, same)
