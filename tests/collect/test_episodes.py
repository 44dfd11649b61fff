"""Returns and lengths of episodes, worked out per rollout, against counting them step by step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twostep.collect.episodes import EpisodeTracker


def columns_of(generator, num_steps, num_rows):
    return {
        "rewards": generator.normal(size=(num_steps, num_rows)).astype(np.float32),
        "terminated": generator.random((num_steps, num_rows)) < 0.2,
        "truncated": generator.random((num_steps, num_rows)) < 0.2,
        "valid": generator.random((num_steps, num_rows)) < 0.8,
    }


def counted(columns):
    """Go through every row one step at a time."""
    num_steps, num_rows = columns["rewards"].shape
    found, total, length = [], np.zeros(num_rows), np.zeros(num_rows, dtype=int)
    for t in range(num_steps):
        for row in range(num_rows):
            if not columns["valid"][t, row]:
                if columns["truncated"][t, row]:
                    total[row] = length[row] = 0
                continue
            total[row] += columns["rewards"][t, row]
            length[row] += 1
            if columns["terminated"][t, row] or columns["truncated"][t, row]:
                found.append((t, row, total[row], length[row]))
                total[row] = length[row] = 0
    return found


@given(
    seed=st.integers(0, 10_000), lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4), rows=st.integers(1, 4)
)
@settings(max_examples=60, deadline=None)
def test_equals_counting(seed, lengths, rows):
    """L18, EB4, A1: however time is cut into rollouts; steps that are not valid belong to no episode.

    Those that are truncated, too, break an episode off: it is not listed, and the next one starts from nothing.
    """
    columns = columns_of(np.random.default_rng(seed), sum(lengths), rows)
    tracker, found, first = EpisodeTracker(rows), [], 0
    for length in lengths:
        part = {name: column[first : first + length] for name, column in columns.items()}
        episodes = tracker.episodes(part, {})
        found += [(first + episode.step, episode.row, episode.ret, episode.length) for episode in episodes]
        first += length
    expected = counted(columns)
    assert [episode[:2] for episode in found] == [episode[:2] for episode in expected]
    assert [episode[3] for episode in found] == [episode[3] for episode in expected]
    assert [episode[2] for episode in found] == pytest.approx([episode[2] for episode in expected], abs=1e-9)


def test_long_episodes_keep_small_rewards():
    """Sums are in double precision: a million steps of 0.1 after one of 1e8."""
    tracker = EpisodeTracker(1)
    rewards = np.full((1_000_000, 1), 0.1, dtype=np.float32)
    rewards[0] = 1e8
    none = np.zeros_like(rewards, dtype=bool)
    over = none.copy()
    over[-1] = True
    (episode,) = tracker.episodes({"rewards": rewards, "terminated": over, "truncated": none, "valid": ~none}, {})
    assert episode.ret == pytest.approx(1e8 + 999_999 * float(np.float32(0.1)), abs=1.0)
    assert episode.length == 1_000_000


def test_reset_forgets_running_episodes():
    tracker = EpisodeTracker(1)
    one = np.ones((3, 1), dtype=np.float32)
    none = np.zeros((3, 1), dtype=bool)
    over = np.array([[False], [False], [True]])
    tracker.episodes({"rewards": one, "terminated": none, "truncated": none, "valid": ~none}, {})
    tracker.reset()
    (episode,) = tracker.episodes({"rewards": one, "terminated": none, "truncated": over, "valid": ~none}, {})
    assert (episode.ret, episode.length) == (3.0, 3)


def test_a_broken_episode_is_not_listed_and_not_glued_to_the_next():
    """A1: a worker died in the third step; the agent of the other row was only not there in that step."""
    ones = np.ones((5, 2), dtype=np.float32)
    none = np.zeros((5, 2), dtype=bool)
    valid, truncated, terminated = ~none, none.copy(), none.copy()
    valid[2] = False
    truncated[2, 0] = True
    terminated[4] = True
    columns = {"rewards": ones, "terminated": terminated, "truncated": truncated, "valid": valid}
    episodes = EpisodeTracker(2).episodes(columns, {})
    assert [(episode.row, episode.ret, episode.length) for episode in episodes] == [(0, 2.0, 2), (1, 4.0, 4)]


def test_infos_keep_what_is_plain():
    """A rollout can be written down, so nothing else can be in it; other rows' infos are other rows'."""
    over = np.array([[True, True]])
    columns = {"rewards": np.ones((1, 2)), "terminated": over, "truncated": ~over, "valid": over}
    info = {"success": np.True_, "score": np.float32(2.5), "lives": np.array([3]), "name": "x", "map": np.zeros(4)}
    first, second = EpisodeTracker(2).episodes(columns, {(0, 1): {**info, "nested": {"a": 1}, "nothing": None}})
    assert first.info == {}
    assert second.info == {"success": True, "score": 2.5, "lives": 3, "name": "x"}
    assert [type(value) for value in second.info.values()] == [bool, float, int, str]
