"""What is said and drawn of a rollout is what is in it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from twostep import Episode, RolloutBuffer
from twostep.inspection import plot_rollout, remarks, summarize
from twostep.tree import tree_map


def words_of(rollout):
    return " ".join(remark.words for remark in remarks(summarize(rollout)))


@settings(max_examples=30, deadline=None)
@given(steps=st.integers(1, 12), rows=st.integers(1, 4), length=st.integers(1, 3), seed=st.integers(0, 2**31))
def test_numbers_are_those_of_the_steps_that_count(identifiable, steps, rows, length, seed):
    """J42: against a plain loop; whatever stands where nobody was reaches no number."""
    generator = torch.Generator().manual_seed(seed)
    valid, ended, cut = torch.rand(3, steps, rows, generator=generator) < torch.tensor([0.7, 0.3, 0.3])[:, None, None]
    rollout = identifiable(steps, rows, length, valid)
    rollout.terminated, rollout.truncated = ended & ~cut, cut
    rollout.rewards[~valid] = math.nan
    summary = summarize(rollout)
    places = [(t, b) for t in range(steps) for b in range(rows) if valid[t, b]]
    assert (summary.valid_steps, summary.transitions) == (len(places), steps * rows)
    assert summary.terminated == sum(bool(ended[place] and not cut[place]) for place in places)
    assert summary.truncated == sum(bool(cut[place]) for place in places)
    columns = {column.name: column for column in summary.columns}
    assert columns["rewards"].not_finite == 0
    if places:
        rewards = [100.0 * t + b + 0.25 for t, b in places]
        assert summary.rewards.mean == pytest.approx(np.mean(rewards))
        assert summary.rewards.std == pytest.approx(np.std(rewards), abs=1e-6)
        assert (columns["obs/where"].numbers.low, columns["obs/where"].numbers.high) == (
            min(min(place) for place in places),
            max(max(place) for place in places),
        )
        assert summary.value_error == pytest.approx(2000.0)
        assert summary.actions[0].counts == {100 * t + b: 1 for t, b in places}
    assert columns["states/0"].shape == (-(-steps // length), rows, 1)


def test_episodes_and_columns(collected):
    """J42: episodes by their returns and lengths, columns by type and size."""
    rollout, _ = collected(num_steps=64, num_envs=4)
    summary = summarize(rollout)
    returns = [episode.ret for episode in rollout.episodes]
    assert (summary.returns.mean, summary.returns.low, summary.returns.high) == pytest.approx(
        (np.mean(returns), min(returns), max(returns))
    )
    assert summary.lengths == summary.returns, "CartPole pays 1 per step"
    assert summary.episodes == summary.terminated == len(returns)
    assert summary.running == 4 - int(rollout.terminated[-1].sum())
    assert sum(summary.actions[0].counts.values()) == 256
    assert sum(column.nbytes for column in summary.columns) == summary.nbytes


def test_several_choices_are_counted_each_by_itself(collected):
    """J42: places of an action apart from one another; numbers are measured instead."""
    rollout, _ = collected(num_steps=16)
    rollout.actions = torch.stack((rollout.actions, 2 - rollout.actions), dim=-1)
    first, second = summarize(rollout).actions
    assert (first.name, second.name) == ("actions[0]", "actions[1]")
    assert second.counts == {2 - choice: count for choice, count in first.counts.items()}
    rollout.actions = rollout.actions.float() + 0.5
    (part,) = summarize(rollout).actions
    assert part.counts is None
    assert [spread.low for spread in part.dimensions] == [0.5, 1.5]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: None, "Advantages are not computed"),
        (lambda r: setattr(r, "policy_version", None), "Which policy acted is not known"),
        (lambda r: r.valid[0, :2].fill_(False), "0.78% of the steps are not valid"),
        (lambda r: r.valid.fill_(False), "No step counts"),
        (lambda r: r.values[3, 1].fill_(math.nan), "values holds 1 numbers that are NaN"),
        (lambda r: r.actions.fill_(1), "actions is 1 in 100% of the steps"),
        (lambda r: r.obs[..., 1].fill_(7.0), "1 of 4 numbers of obs never change"),
        (lambda r: r.obs[..., 1].fill_(1e4), "normalize_obs"),
        (lambda r: r.terminated.fill_(False), "No episode ended here"),
        (lambda r: r.truncated.copy_(r.terminated) is r.terminated.fill_(False), "ends are cuts"),
        (lambda r: r.compute_gae(), "The critic explains"),
    ],
)
def test_what_is_remarkable_is_said(collected, change, words):
    """J42: in words, with the number behind them."""
    rollout, _ = collected(num_steps=64, num_envs=4)
    change(rollout)
    if words == "No episode ended here":
        rollout.episodes = []
    assert words in words_of(rollout)


def test_nothing_remarkable(identifiable):
    """J42: a rollout in order gets one remark, that it is."""
    rollout = identifiable(12, 3)
    rollout.obs, rollout.actions = torch.rand(12, 3, 2), torch.arange(36).view(12, 3) % 2
    rollout.policy_version, rollout.episodes = 5, [Episode(1.0, 2, 0, 3)]
    rollout.returns = None
    assert words_of(rollout) == "Nothing is remarkable: all numbers are finite, every step counts."


def test_the_worst_comes_first(collected):
    """J42: numbers that are not finite before what is only unusual."""
    rollout, _ = collected(num_steps=16)
    rollout.rewards[2, 2] = math.inf
    states = [remark.state for remark in remarks(summarize(rollout))]
    assert states[0] == "poor"
    assert states == sorted(states, key=["poor", "fair", "good"].index)


def empty(rollout):
    """Nothing of it counts."""
    rollout.valid.fill_(False)
    rollout.episodes = []


def strange(rollout):
    """Numbers that are not finite, several choices, many observations."""
    rollout.rewards[0, 0] = math.nan
    rollout.actions = torch.arange(3).expand(*rollout.rewards.shape, 3)
    rollout.obs = torch.rand(*rollout.rewards.shape, 60)


def continuous(rollout):
    """Two numbers as an action, none of them ever NaN but one."""
    rollout.actions = torch.randn(*rollout.rewards.shape, 2)
    rollout.actions[0, 0, 1] = math.nan


@pytest.mark.parametrize("change", [lambda rollout: None, empty, strange, continuous])
@pytest.mark.parametrize("kind", ["cartpole", "identifiable"])
def test_a_picture_of_every_kind_of_rollout(collected, identifiable, tmp_path, kind, change):
    """J42: it is drawn without warnings, large enough to read, and not blank."""
    rollout = collected(num_steps=40)[0] if kind == "cartpole" else identifiable(40, 3, 4)
    change(rollout)
    path = plot_rollout(rollout, tmp_path / "rollout.png", title="a title")
    with Image.open(path) as image:
        assert image.width >= 1200
        assert image.height >= 1200
        assert len(image.convert("RGB").getcolors(1 << 20)) > 50


def test_looking_changes_nothing(collected, tmp_path):
    """J42: neither counting nor drawing writes into the data."""
    rollout, _ = collected(num_steps=16)
    before = RolloutBuffer.from_dict(rollout.to_dict()).to_dict()
    copies = {name: tree_map(lambda leaf: leaf.clone(), leaf) for name, leaf in before.items() if torch.is_tensor(leaf)}
    summarize(rollout)
    plot_rollout(rollout, tmp_path / "rollout.png")
    assert all(torch.equal(rollout.to_dict()[name], leaf) for name, leaf in copies.items())
