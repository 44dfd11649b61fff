"""Comparisons: intervals that cover as often as they say, and strategies of every kind."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from twostep import ConfigError, RolloutCollector, compare, plot_comparison
from twostep.evaluation import at_the_end, over_training
from twostep.evaluation.comparison import Curve
from twostep.evaluation.intervals import mean_interval, t_quantile, welch_interval


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.7062), (2, 4.3027), (5, 2.5706), (10, 2.2281), (30, 2.0423), (120, 1.9799), (1e9, 1.95996)],
)
def test_quantiles_are_those_of_tables(degrees, quantile):
    assert t_quantile(degrees) == pytest.approx(quantile, rel=1e-4)


def test_quantiles_of_broken_degrees():
    """Student's t is a normal number over the root of a chi-square; 95 % lie within the quantile."""
    generator = np.random.default_rng(0)
    drawn = generator.standard_normal(400_000) / np.sqrt(generator.chisquare(2.5, 400_000) / 2.5)
    assert (np.abs(drawn) < t_quantile(2.5)).mean() == pytest.approx(0.95, abs=0.0015)


@pytest.mark.parametrize("interval", ["paired", "welch"])
def test_intervals_cover_the_truth_as_often_as_they_say(interval):
    """J42: 95 % of the time, also for few runs, unequal spreads and sizes."""
    generator = np.random.default_rng(1)
    trials, covered = 600, 0
    for _ in range(trials):
        first, second = generator.normal(3.0, 1.0, 5), generator.normal(5.0, 4.0, 9)
        if interval == "paired":
            low, high = mean_interval((second[:5] - first).tolist())
        else:
            low, high = welch_interval(first.tolist(), second.tolist())
        covered += low < 2.0 < high
    assert abs(covered / trials - 0.95) < 4 * math.sqrt(0.95 * 0.05 / trials)


def noisy(shift, noise):
    """A strategy whose runs of one seed share their luck, to which the arm adds little."""

    def run(seed):
        luck = np.random.default_rng(seed).normal(0.0, 10.0)
        steps = np.arange(1.0, 11.0) * 100
        values = luck + shift + noise * np.random.default_rng(seed + 99).standard_normal(10) + steps / 100
        return {"timesteps": steps.tolist(), "mean_reward": values.tolist()}

    return run


def test_pairs_see_through_luck_that_they_share():
    """J8, J42: the same runs, a difference of 1 under luck of 10, seen by pairs and not by Welch."""
    strategies = {"plain": noisy(0.0, 0.0), "better": noisy(1.0, 0.1)}
    paired, unpaired = (compare(strategies, range(8), paired=paired) for paired in (True, False))
    (seen,), (unseen,) = paired.differences, unpaired.differences
    assert seen.mean == unseen.mean == pytest.approx(1.0, abs=0.15)
    assert seen.verdict == "better"
    assert unseen.verdict == "no difference shown"
    assert seen.better == 8
    low, high = seen.interval
    assert f"better minus plain: {seen.mean:+.2f} ({low:+.2f} to {high:+.2f}), higher on 8 of 8 seeds" in str(paired)


@settings(max_examples=25, deadline=None)
@given(scores=st.lists(st.tuples(*[st.floats(-100, 100)] * 3), min_size=2, max_size=6))
def test_differences_are_from_the_first(scores):
    """J42: of every arm, and with the roles exchanged the opposite."""

    def arm(column):
        return lambda seed: scores[seed][column]

    comparison = compare({name: arm(i) for i, name in enumerate("abc")}, range(len(scores)))
    backwards = compare({"b": arm(1), "a": arm(0)}, range(len(scores)))
    means = np.mean(scores, axis=0)
    for i, difference in enumerate(comparison.differences, start=1):
        assert difference.mean == pytest.approx(means[i] - means[0], abs=1e-9)
        assert difference.interval[0] <= difference.mean + 1e-9
    low, high = comparison.differences[0].interval
    assert backwards.differences[0].interval == pytest.approx((-high, -low), abs=1e-9)


def test_scores_of_a_curve():
    """J42: the area under it over steps of any width, or its end; what was not measured yet is left out."""
    curve = Curve((0.0, 1.0, 3.0), (0.0, 2.0, 2.0))
    assert over_training(curve) == pytest.approx((1.0 + 4.0) / 3)
    assert at_the_end(Curve(tuple(range(20)), tuple(range(20)))) == 18.5
    comparison = compare(
        {name: lambda _: {"timesteps": [1, 2, 3], "x": [math.nan, 4.0, 6.0]} for name in "ab"}, (1, 2), measure="x"
    )
    assert comparison.arms[0].curves[0] == Curve((2.0, 3.0), (4.0, 6.0))
    assert comparison.arms[0].mean == 5.0


def test_collectors_are_strategies(small_policy):
    """J8: what `collect` returns is enough, without any learning: here, poles of two lengths."""

    def collecting(length):
        def collect(seed):
            env = gym.make("CartPole-v1")
            env.unwrapped.length = length
            collector = RolloutCollector(env, small_policy(env, seed=seed), num_steps=400, seed=seed, env_seed=seed)
            stats, _ = collector.collect()
            env.close()
            return stats

        return collect

    comparison = compare({"long": collecting(1.5), "short": collecting(0.1), "long again": collecting(1.5)}, range(4))
    short, again = comparison.differences
    assert short.verdict == "worse"
    assert (again.mean, again.verdict) == (0.0, "no difference shown")
    with pytest.raises(ConfigError, match="measured once only"):
        plot_comparison(comparison, "nowhere.png")


@pytest.mark.parametrize(
    ("strategies", "seeds", "options", "message"),
    [
        ({"one": lambda seed: 1.0}, (1, 2), {}, "nothing to compare"),
        ({"a": lambda seed: 1.0, "b": lambda seed: 1.0}, (1,), {}, r"seeds=\[1\] must be two or more"),
        ({"a": lambda seed: 1.0, "b": lambda seed: 1.0}, (1, 1), {}, "two or more different"),
        (
            {"a": lambda seed: {"x": 1.0}, "b": lambda seed: 1.0},
            (1, 2),
            {},
            r"'a' returned no 'mean_reward' but \['x'\]",
        ),
        ({"a": lambda seed: math.nan, "b": lambda seed: 1.0}, (1, 2), {}, "'a' scored"),
    ],
)
def test_what_cannot_be_compared(strategies, seeds, options, message):
    """J38: value, rule, way out."""
    with pytest.raises(ConfigError, match=message):
        compare(strategies, seeds, **options)


def test_the_picture(tmp_path):
    """J42: every arm and the difference, readable."""
    comparison = compare({"plain": noisy(0.0, 0.5), "better": noisy(3.0, 0.5), "worse": noisy(-3.0, 0.5)}, range(5))
    path = plot_comparison(comparison, tmp_path / "ab.png", title="a title")
    with Image.open(path) as image:
        assert image.width >= 1000
        assert image.height >= 800
        assert len(image.convert("RGB").getcolors(1 << 20)) > 100
