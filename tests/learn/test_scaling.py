"""Gradients of 16-bit products: scaled so that nothing vanishes, and never lost where they overflow."""

from __future__ import annotations

import math

import pytest
import torch

from twostep import PPOConfig, PPOOptimizer
from twostep.learn.scaling import LARGEST, PATIENCE, START, LossScale


def gradient_up_to(limit, scale):
    """Return a gradient that overflows where the scale is above `limit`, and how often it was asked for."""
    asked = []

    def gradient():
        asked.append(scale.scale)
        return torch.tensor([1.0, math.inf if scale.scale > limit else 1.0]), len(asked)

    return gradient


def test_a_gradient_that_overflows_is_computed_again_with_half_the_scale():
    """L24: none is lost."""
    scale = LossScale()
    flat, asked = scale.finite(gradient_up_to(START / 4, scale))
    assert bool(flat.isfinite().all())
    assert (asked, scale.scale, scale.good) == (3, START / 4, 1)


def test_what_no_scale_helps_leaves_it_alone():
    """A NaN in the data is no overflow."""
    scale = LossScale()
    flat, _ = scale.finite(gradient_up_to(0.0, scale))
    assert not bool(flat.isfinite().all())
    assert scale.scale == START


def test_the_scale_grows_after_many_good_gradients():
    """And not without end."""
    scale = LossScale()
    gradient = gradient_up_to(math.inf, scale)
    for _ in range(PATIENCE):
        scale.finite(gradient)
    assert (scale.scale, scale.good) == (2 * START, 0)
    scale.load_state_dict({"scale": LARGEST, "good": PATIENCE - 1})
    scale.finite(gradient)
    assert scale.state_dict() == {"scale": LARGEST, "good": 0}


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_fp16_learns_nearly_the_same(collected, memory):
    """N19, L24: the weights stay 32 bits wide, the ratio is near 1, and the scale is measured and saved."""
    gradient = {}
    for precision in ("fp32", "fp16"):
        rollout, policy = collected(hidden_size=32, memory=memory)
        learner = PPOOptimizer(policy, config=PPOConfig(precision=precision, max_grad_norm=math.inf, num_minibatches=1))
        rollout.policy_version = None
        metrics = learner.update(rollout)
        gradient[precision] = torch.cat([parameter.grad.flatten() for parameter in learner.parameters])
        assert metrics["ratio_error"] < 0.01
        assert {parameter.dtype for parameter in learner.parameters} == {torch.float32}
        assert ("loss_scale" in metrics) is (precision == "fp16")
    away = (gradient["fp16"] - gradient["fp32"]).norm() / gradient["fp32"].norm()
    assert 0 < away.item() < 0.05
    learner.loss_scale.scale = 8.0
    again = PPOOptimizer(policy, config=learner.config)
    again.load_state_dict(learner.state_dict())
    assert again.loss_scale.state_dict() == learner.loss_scale.state_dict()
