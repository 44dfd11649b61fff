"""The lock: what opens it, how long it is, and that a short one is the beginning of the long one."""

from __future__ import annotations

import itertools

import pytest

from twostep import check_env
from twostep.errors import EnvError
from twostep.worlds.lock import CombinationLock


def opens(env: CombinationLock, numbers: tuple[int, ...], length: int) -> bool:
    env.reset(options={"length": length})
    for at, number in enumerate(numbers, start=1):
        _, reward, terminated, truncated, info = env.step(number)
        assert not truncated
        assert reward == float(info["success"])
        if terminated:
            assert info["success"] == (reward == 1.0 and at == length)
            return info["success"]
    return False


def test_one_combination_opens_and_begins_with_those_of_shorter_locks() -> None:
    check_env(CombinationLock())
    env = CombinationLock(4, choices=3, combination=1)
    found = []
    for length in (1, 2, 3, 4):
        opening = [numbers for numbers in itertools.product(range(3), repeat=length) if opens(env, numbers, length)]
        assert len(opening) == 1
        found.append(opening[0])
    assert all(longer[:-1] == shorter for shorter, longer in itertools.pairwise(found))
    assert opens(CombinationLock(4, choices=3, combination=1), found[-1], 4), "the same in every lock of that seed"


def test_observations_say_where_and_how_long() -> None:
    env = CombinationLock(4)
    obs, _ = env.reset(options={"length": 2})
    assert obs.tolist() == [1, 0, 0, 0, 0.5]
    obs, _ = env.reset()
    assert obs[-1] == 1.0


def test_lengths_that_do_not_exist_are_refused() -> None:
    with pytest.raises(EnvError, match="length=5 must be from 1 to 4"):
        CombinationLock(4).reset(options={"length": 5})
    with pytest.raises(EnvError, match="choices=1 must be 2 or more"):
        CombinationLock(choices=1)
