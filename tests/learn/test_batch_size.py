"""A minibatch size that follows the gradient's noise, within bounds; measuring changes nothing."""

from __future__ import annotations

import pytest
import torch

from twostep import PPOConfig, PPOOptimizer
from twostep.learn.batch_size import adapted_minibatch_size, resized
from twostep.sequences import Sequences

BOUNDS = (32, 512)


@pytest.mark.parametrize(
    ("lengths", "size", "expected"),
    [
        ([1.0, 3.0, 0.5, 4.0, 2.0], 100, 120),  # variance 2.05 / mean 2.1 squared = 0.46
        ([1.0, 1.01, 0.99, 1.0, 1.0], 100, 80),
        ([1.0, 1.3, 0.8, 1.0, 1.2], 100, 100),  # 0.035: neither
        ([1.0, 3.0, 0.5, 4.0, 2.0], 500, 512),
        ([1.0, 1.0, 1.0, 1.0, 1.0], 33, 32),
        ([0.0, 0.0, 0.0], 100, 80),
        ([2.0], 100, 100),  # one minibatch tells nothing
        ([float("nan"), 1.0, 2.0], 100, 100),
        ([2.0], 9999, 512),
    ],
)
def test_rule(lengths, size, expected):
    """J40, N21: noise above 0.1 makes it 1.2 times as large, below 0.01 0.8 times, always within bounds."""
    assert resized(size, torch.tensor(lengths), BOUNDS) == expected


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_small_sizes_move_too(size):
    """Rounding must not hold a size where it is."""
    assert resized(size, torch.tensor([1.0, 3.0, 0.5]), (1, 10)) > size
    assert resized(size, torch.tensor([1.0, 1.0, 1.0]), (1, 10)) == max(1, size - 1)


def state_of(learner):
    """Everything that learning moves."""
    weights = [parameter.detach().clone() for parameter in learner.parameters]
    moments = [
        value.clone()
        for state in learner.optimizer.state.values()
        for value in state.values()
        if torch.is_tensor(value)
    ]
    return weights + moments + [learner.generator.get_state().float()]


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_measuring_takes_no_step(collected, memory):
    """JB12, N21: weights, optimizer state and the order of minibatches stay as they are."""
    rollout, policy = collected(num_steps=64, memory=memory)
    learner = PPOOptimizer(policy, config=PPOConfig(update_epochs=1))
    learner.update(rollout)
    rollout.policy_version = policy.version
    before = state_of(learner)
    size = adapted_minibatch_size(learner, Sequences(rollout, rollout.advantages, rollout.returns), 32, BOUNDS)
    assert BOUNDS[0] <= size <= BOUNDS[1]
    after = state_of(learner)
    assert len(before) == len(after)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_measured_gradients_are_those_of_whole_minibatches_before_clipping(collected, monkeypatch):
    """JB12: five of them, of the size in question, whatever the largest gradient allowed."""
    rollout, policy = collected(num_steps=64)
    rollout.compute_gae()
    learner = PPOOptimizer(policy, config=PPOConfig(max_grad_norm=1e-3))
    seen = []
    monkeypatch.setattr("twostep.learn.batch_size.resized", lambda size, lengths, bounds: seen.append(lengths) or size)
    counts = []
    gradient = learner.gradient
    monkeypatch.setattr(learner, "gradient", lambda minibatch: counts.append(minibatch.count) or gradient(minibatch))
    adapted_minibatch_size(learner, Sequences(rollout, rollout.advantages, rollout.returns), 32, BOUNDS)
    assert counts == [32] * 5
    assert bool((seen[0] > 1e-3).all())


@pytest.mark.parametrize(("spread", "grows"), [(100.0, True), (0.0, False)])
def test_update_follows_the_noise(collected, spread, grows):
    """J40, N21: wild advantages make the next minibatches larger, alike ones smaller."""
    rollout, policy = collected(num_steps=128)
    torch.manual_seed(0)
    if spread:
        rollout.advantages = spread * torch.randn(128, 4) ** 5
        rollout.returns = rollout.values + rollout.advantages
    else:
        rollout.obs[:] = rollout.obs[:1, :1].clone()
        rollout.advantages, rollout.returns = torch.ones(128, 4), torch.full((128, 4), 5.0)
        rollout.policy_version = None
    config = PPOConfig(minibatch_size=64, adaptive_minibatch=BOUNDS, norm_adv="none", update_epochs=1)
    learner = PPOOptimizer(policy, config=config)
    learner.update(rollout)
    assert learner.minibatch_size == (77 if grows else 51)
    assert learner.config.minibatch_size == 64, "the setting itself stays"
