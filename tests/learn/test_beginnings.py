"""What learning begins with: parameters that are free, data that are finite."""

from __future__ import annotations

import math

import pytest
import torch

from twostep import NumericsError, PolicyError, PPOConfig, PPOOptimizer
from twostep.learn.beginnings import require_finite


@pytest.mark.parametrize("compiled", [False, True])
def test_frozen_parameters_stay_and_go_on_when_freed(collected, request, compiled):
    """Whether gradients come from machine code or not, and whenever parameters are frozen."""
    if compiled:
        request.getfixturevalue("machine_code_at_once")
    rollout, policy = collected()
    learner = PPOOptimizer(policy, config=PPOConfig(update_epochs=1, lr=1e-2))
    frozen = list(policy.encoder.parameters())
    assert frozen

    def moved():
        before = [parameter.clone() for parameter in policy.parameters()]
        learner.update(rollout)
        pairs = zip(before, policy.parameters(), strict=True)
        return {id(now) for was, now in pairs if not torch.equal(was, now)}

    everything = {id(parameter) for parameter in policy.parameters()}
    assert moved() == everything
    for parameter in frozen:
        parameter.requires_grad_(False)
    assert moved() == everything - {id(parameter) for parameter in frozen}
    for parameter in frozen:
        parameter.requires_grad_(True)
    assert moved() == everything


def test_parameters_frozen_from_the_start_can_be_freed(collected):
    """The optimizer knows of them."""
    rollout, policy = collected()
    policy.value_head.requires_grad_(False)
    learner = PPOOptimizer(policy, config=PPOConfig(lr=1e-2))
    before = policy.value_head.weight.clone()
    learner.update(rollout)
    assert torch.equal(before, policy.value_head.weight)
    policy.value_head.requires_grad_(True)
    learner.update(rollout)
    assert not torch.equal(before, policy.value_head.weight)


def test_a_policy_that_is_all_frozen_is_refused(collected):
    """One clear error, also between two updates."""
    rollout, policy = collected()
    learner = PPOOptimizer(policy)
    policy.requires_grad_(False)
    with pytest.raises(PolicyError, match="no parameters to learn"):
        learner.update(rollout)


@pytest.mark.parametrize("name", ["obs", "logprobs", "values", "rewards", "next_values", "advantages", "states"])
def test_data_that_are_not_finite_are_refused(collected, name):
    """J12, L25: named with its place, before anything is learned; where nobody was it may be anything."""
    rollout, policy = collected(num_steps=16, memory="gru")
    rollout.policy_version = None
    rollout.compute_gae()
    rollout.terminated[:] = False
    at = 1 if name == "states" else 9
    getattr(rollout, name)[at, 2] = math.inf
    rollout.valid[8:, 2] = False
    require_finite(rollout)
    rollout.valid[:] = True
    before = [parameter.clone() for parameter in policy.parameters()]
    with pytest.raises(NumericsError, match=rf"{name} is inf at (step|sequence) {at}, row 2"):
        PPOOptimizer(policy).update(rollout)
    assert all(map(torch.equal, before, policy.parameters()))


def test_impossible_log_probs_are_refused(collected):
    """J12: the ratio would overflow."""
    rollout, policy = collected()
    rollout.policy_version = None
    rollout.logprobs[5, 1] = -1e9
    with pytest.raises(NumericsError, match=r"log_probs is -1e\+09 at step 5, row 1"):
        PPOOptimizer(policy).update(rollout)
