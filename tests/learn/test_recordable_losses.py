"""Losses of one's own: M4, M8, MB10; recorded with PPO's own where they promise to do the same every time."""

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
def test_a_recorded_loss_is_the_loss_bit_for_bit(small_trainer, accumulate):
    """M8: the same weights and metrics, and a recording that was replayed."""
    settings = {"accumulate": accumulate, "update_epochs": 6}
    histories, ends = [], []
    for losses in ([surprise, against_speed], [RecordableLoss(surprise), RecordableLoss(against_speed)]):
        trainer = small_trainer(custom_losses=losses, **settings)
        histories.append(trainer.train(1024))
        ends.append(weights(trainer))
    assert len(trainer.learner._recorded.recordings) > 0
    assert torch.equal(*ends)
    plain, recorded = histories
    for name in ("loss", "surprise", "against_speed", "seen", "grad_norm"):
        assert recorded[name] == plain[name], name
    assert not torch.equal(ends[0], weights(trained(small_trainer, **settings)))


def trained(small_trainer, **settings):
    trainer = small_trainer(**settings)
    trainer.train(1024)
    return trainer


def test_another_loss_is_another_recording(small_trainer):
    """M8: what was recorded of one loss is not replayed for the next."""
    ends = []
    for wrapped in (RecordableLoss, lambda loss: loss):
        trainer = small_trainer(custom_losses=[wrapped(surprise)], update_epochs=6)
        trainer.train(512)
        trainer.custom_losses = (wrapped(against_speed),)
        trainer.train(1024)
        ends.append(weights(trainer))
    assert torch.equal(*ends)


def test_it_is_a_decorator():
    """M4."""

    @RecordableLoss
    def twice(policy, obs, actions, rewards, values, advantages):
        return 2 * values

    assert twice(None, None, None, None, 3, None) == 6
    assert twice == RecordableLoss(twice.loss)
