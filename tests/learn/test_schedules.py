"""Schedules end exactly where training ends; the KL-adaptive one steers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twostep.errors import ConfigError
from twostep.learn.schedules import AdaptiveKL, constant, cosine, linear, schedule_for


def test_ends_and_middles():
    """C10, L14: literal values."""
    assert [constant(p) for p in (0.0, 0.5, 1.0)] == [1.0, 1.0, 1.0]
    assert [linear(p) for p in (0.0, 0.25, 1.0)] == [1.0, 0.75, 0.0]
    assert [cosine(p) for p in (0.0, 0.5, 1.0)] == pytest.approx([1.0, 0.55, 0.1])
    assert cosine(1.0, min_ratio=0.3) == pytest.approx(0.3)
    assert cosine(0.25, min_ratio=0.0) == pytest.approx((1 + math.sqrt(0.5)) / 2)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_schedules_never_rise_and_stay_in_range(one, other, min_ratio):
    early, late = sorted((one, other))
    assert linear(early) >= linear(late) >= 0.0
    assert 1.0 + 1e-12 >= cosine(early, min_ratio) >= cosine(late, min_ratio) - 1e-12 >= min_ratio - 2e-12


def test_progress_beyond_the_ends_counts_as_the_end():
    """The last rollout may overshoot total_timesteps; the rate must not turn up again."""
    assert cosine(1.3) == cosine(1.0)
    assert linear(1.3) == 0.0
    assert linear(-0.1) == 1.0


@pytest.mark.parametrize(("num_envs", "rollout_steps"), [(1, 2048), (8, 128), (4096, 24), (4096, 240), (7, 100)])
@pytest.mark.parametrize("total_timesteps", [1_000_000, 15_000_000])
def test_the_rate_at_total_timesteps_is_a_tenth(num_envs, rollout_steps, total_timesteps):
    """LB8, L14, N7: 10 % +- 1 % at the end, whatever the size of a rollout, resumed midway or not."""
    rate_at = schedule_for("cosine", lr=3e-4, min_ratio=0.1)
    for resumed_at in (0, total_timesteps // 2):
        timesteps = resumed_at
        while timesteps < total_timesteps:
            timesteps += num_envs * rollout_steps
            rate = rate_at(timesteps / total_timesteps)
        assert rate == pytest.approx(0.1 * 3e-4, rel=0.01)


def test_schedules_by_name():
    """C10: the learning rate itself, not a factor."""
    assert schedule_for("constant", 0.5)(0.9) == 0.5
    assert schedule_for("linear", 0.5)(0.5) == 0.25
    assert schedule_for("cosine", 0.5, min_ratio=0.2)(1.0) == pytest.approx(0.1)
    with pytest.raises(ConfigError, match=r"lr_schedule='cosin' .*constant, linear, cosine"):
        schedule_for("cosin", 0.5)


def test_adaptive_kl_steers_towards_the_desired_step():
    """Divide or multiply by 1.5 outside the band of half to twice the desired divergence."""
    adaptive = AdaptiveKL(lr=1e-3, desired_kl=0.01)
    assert adaptive.update(0.021) == pytest.approx(1e-3 / 1.5)
    assert adaptive.update(0.02) == adaptive.update(0.005) == pytest.approx(1e-3 / 1.5)
    assert adaptive.update(0.004) == pytest.approx(1e-3)
    assert adaptive.update(0.0) == pytest.approx(1.5e-3)
    assert adaptive.update(math.nan) == pytest.approx(1.5e-3)
    assert adaptive.update(math.inf) == pytest.approx(1e-3)


def test_adaptive_kl_stays_within_bounds():
    adaptive = AdaptiveKL(lr=3e-4, desired_kl=0.01)
    rates = [adaptive.update(1.0) for _ in range(20)]
    assert rates[-1] == 1e-5
    rates = [adaptive.update(0.0) for _ in range(40)]
    assert rates[-1] == 1e-2
    tiny = AdaptiveKL(lr=1e-6, desired_kl=0.01)
    assert tiny.update(1.0) == 1e-6, "a large step must never raise the rate"
    assert AdaptiveKL(lr=0.1, desired_kl=0.01).update(0.0) == 0.1, "a small step must never lower it"


def test_adaptive_kl_continues_where_it_was():
    """R7, L22: the rate is part of a checkpoint."""
    adaptive, resumed = AdaptiveKL(lr=1e-3, desired_kl=0.01), AdaptiveKL(lr=1e-3, desired_kl=0.01)
    adaptive.update(1.0)
    resumed.load_state_dict(adaptive.state_dict())
    assert resumed.update(1.0) == adaptive.update(1.0)
