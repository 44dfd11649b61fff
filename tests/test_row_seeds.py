"""Seeds and indices, in whatever form they come, mean the same to every vector, and nothing is rounded."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from twostep.errors import EnvError
from twostep.seeds import resets, row_seeds, whole_numbers
from twostep.vector import SerialVectorEnv
from twostep.worlds.skirmish import EnvConfig, SkirmishRows


@pytest.mark.parametrize(
    ("seed", "indices", "expected"),
    [
        (5, None, list(enumerate(row_seeds(5, 3)))),
        (np.int64(5), None, list(enumerate(row_seeds(5, 3)))),
        (np.array(5), [2], [(2, row_seeds(5, 3)[2])]),
        ([4, 5, 6], None, [(0, 4), (1, 5), (2, 6)]),
        ((4, 5), (2, 0), [(2, 4), (0, 5)]),
        (np.array([4, 5], dtype=np.uint8), np.array([2, 0]), [(2, 4), (0, 5)]),
        (None, np.array([1]), [(1, None)]),
    ],
)
def test_every_form_of_whole_numbers_is_taken(seed: Any, indices: Any, expected: Any) -> None:
    found = resets(seed, 3, indices)
    assert found == expected
    assert all(type(value) is int for pair in found for value in pair if value is not None)


@pytest.mark.parametrize(
    ("seed", "indices", "message"),
    [
        (1.5, None, "only whole numbers"),
        (True, None, "only whole numbers"),
        ("7", None, "only whole numbers"),
        ([1.0, 2.0, 3.0], None, "only whole numbers"),
        (np.zeros(3), None, "only whole numbers"),
        ([1, -2, 3], None, "seed=-2, but seeds must be 0 or more"),
        ([1, 2], None, "2 seeds came for 3"),
        (None, [0.5], "indices=.*only whole numbers"),
        (None, [True, False, True], "indices=.*only whole numbers"),
        (None, np.array([True, False]), "indices=.*only whole numbers"),
        (None, 1, "indices=1.*only whole numbers"),
        (None, [3], "must be one of the 3"),
    ],
)
def test_what_would_have_to_be_guessed_is_refused(seed: Any, indices: Any, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        resets(seed, 3, indices)


def test_numbers_become_plain() -> None:
    assert whole_numbers("n", np.arange(3, dtype=np.int8)) == [0, 1, 2]


@pytest.mark.parametrize("kind", ["serial", "skirmish"])
def test_vectors_take_arrays_of_seeds(kind: str) -> None:
    """E18."""
    env = SerialVectorEnv([lambda: gym.make("CartPole-v1")] * 2) if kind == "serial" else SkirmishRows(EnvConfig(), 2)
    expected = env.reset([3, 4]).obs.copy()
    np.testing.assert_array_equal(env.reset(np.array([3, 4])).obs, expected)
    with pytest.raises(EnvError, match="only whole numbers"):
        env.reset([1], [0.5])
