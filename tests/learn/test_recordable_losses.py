"""Losses of one's own: M4, M8, MB10; compiled with PPO's own where they promise to do the same every time."""

from __future__ import annotations

import pytest
import torch

from twostep import RecordableLoss


def weights(trainer):
    return torch.cat([parameter.detach().reshape(-1) for parameter in trainer.policy.parameters()])


def surprise(policy, obs, actions, rewards, values, advantages):
    """Call the policy, use its values, and tell something."""
    starts = torch.zeros(rewards.shape, dtype=torch.bool)
    entropy = policy(obs, policy.initial_state(rewards.shape[1]), starts).distribution.entropy().mean()
    return 0.1 * (values.square().mean() - entropy), {"seen": values.mean()}


def against_speed(policy, obs, actions, rewards, values, advantages):
    return 0.01 * (values * obs[..., 1]).square().mean()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_recorded_loss_is_the_loss(small_trainer, accumulate, machine_code_at_once):
    """M8: the same weights and metrics, up to rounding, in machine code."""
    settings = {"accumulate": accumulate, "update_epochs": 6}
    histories, ends = [], []
    for losses in ([surprise, against_speed], [RecordableLoss(surprise), RecordableLoss(against_speed)]):
        trainer = small_trainer(custom_losses=losses, **settings)
        histories.append(trainer.train(1024))
        ends.append(weights(trainer))
    assert trainer.learner._compiled.num_compiled == 1
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-5)
    plain, recorded = histories
    for name in ("loss", "surprise", "against_speed", "seen", "grad_norm"):
        assert recorded[name] == pytest.approx(plain[name], rel=1e-4, abs=1e-5), name
    assert not torch.equal(ends[0], weights(trained(small_trainer, **settings)))


def trained(small_trainer, **settings):
    trainer = small_trainer(**settings)
    trainer.train(1024)
    return trainer


def test_another_loss_is_compiled_anew(small_trainer, machine_code_at_once):
    """M8: what was made of one loss is not used for the next."""
    ends = []
    for wrapped in (RecordableLoss, lambda loss: loss):
        trainer = small_trainer(custom_losses=[wrapped(surprise)], update_epochs=6)
        trainer.train(512)
        trainer.custom_losses = (wrapped(against_speed),)
        trainer.train(1024)
        ends.append(weights(trainer))
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-5)


def test_it_is_a_decorator():
    """M4."""

    @RecordableLoss
    def twice(policy, obs, actions, rewards, values, advantages):
        return 2 * values

    assert twice(None, None, None, None, 3, None) == 6
    assert twice == RecordableLoss(twice.loss)
