"""Tasks reach environments at their resets: in this process and in workers alike, also in those that replace others."""

from __future__ import annotations

import os
import signal
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from twostep import make_env
from twostep.errors import EnvError
from twostep.vector import SerialVectorEnv
from twostep.vector.gym_vector import GymVectorAdapter
from twostep.vector.parallel import AgentsVectorEnv
from twostep.vector.processes import VectorEnv


class Told(gym.Env[np.ndarray, int]):
    """Its observation is `(level, chance)`, where the level comes as an option; episodes take level + 1 steps."""

    observation_space = spaces.Box(-1, 1e9, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.level = self.t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.begin(options)
        self.t = 0
        return self.observe(), {}

    def begin(self, options: Any) -> None:
        self.level = (options or {}).get("level", 0)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.observe(), float(self.level), self.t > self.level, False, {}

    def observe(self) -> np.ndarray:
        return np.array([self.level, self.np_random.integers(10**6)], dtype=np.float32)


class BySetTask(Told):
    def set_task(self, task: dict[str, Any]) -> None:
        self.level = task.pop("level")  # a copy of its own, which it may change

    def set_difficulty(self, level: int) -> None:
        raise AssertionError("set_task comes first")

    def begin(self, options: Any) -> None:
        assert options is None


class BySetDifficulty(Told):
    def set_difficulty(self, level: int) -> None:
        self.level = level

    def begin(self, options: Any) -> None:
        assert options is None


class Hidden(gym.Wrapper):
    """A wrapper between an environment's method and whoever looks for it."""


class Team:
    """A PettingZoo environment of two agents that are told one level and end with it, `b` a step before `a`."""

    def __init__(self) -> None:
        self.metadata: dict[str, Any] = {}
        self.possible_agents, self.agents = ["a", "b"], []

    def observation_space(self, agent: str) -> spaces.Box:
        return _SEEN

    def action_space(self, agent: str) -> spaces.Discrete:
        return _DONE

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.level, self.t = (options or {}).get("level", 0), 0
        self.agents = list(self.possible_agents)
        return self.observe(), {agent: {} for agent in self.agents}

    def observe(self) -> dict[str, np.ndarray]:
        return {agent: np.array([self.level], dtype=np.float32) for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
        self.t += 1
        obs, there = self.observe(), list(self.agents)
        ends = {"a": self.t > self.level + 1, "b": self.t > self.level}
        self.agents = [agent for agent in there if not ends[agent]]
        rewards = dict.fromkeys(there, 1.0)
        return (
            obs,
            rewards,
            {agent: ends[agent] for agent in there},
            dict.fromkeys(there, False),
            {a: {} for a in there},
        )


_SEEN, _DONE = spaces.Box(-1, 1e9, (1,), np.float32), spaces.Discrete(2)
NOTHING = np.zeros(4, dtype=np.int64)


def levels(step: Any) -> list[int]:
    return step.obs[:, 0].astype(int).tolist()


def told(*levels: int) -> dict[int, Any]:
    return {env: {"level": level} for env, level in enumerate(levels)}


@pytest.mark.parametrize("make", [Told, BySetTask, lambda: Hidden(Told()), lambda: Hidden(Hidden(BySetTask()))])
def test_running_episodes_keep_their_task(make: Any) -> None:
    """J42, M3: what is assigned counts from the next reset on, until something else is assigned."""
    env = SerialVectorEnv([make] * 4)
    env.assign(told(1, 1, 1, 1))
    assert levels(env.reset(0)) == [1] * 4
    env.assign({2: {"level": 5}})
    assert levels(env.step(NOTHING)) == [1] * 4
    assert levels(env.step(NOTHING)) == [1, 1, 5, 1]
    for _ in range(6):
        step = env.step(NOTHING)
    assert levels(step) == [1, 1, 5, 1]
    env.assign({0: {"level": 3}})
    assert levels(env.reset(indices=[0])) == [3, 1, 5, 1]


def test_difficulty_alone_is_enough() -> None:
    """J16: environments with `set_difficulty` are told by it."""
    env = SerialVectorEnv([lambda: Hidden(BySetDifficulty())] * 2)
    env.assign({0: {"difficulty": 4}})
    assert levels(env.reset(0)) == [4, 0]
    env.assign({1: {"level": 4}})
    with pytest.raises(EnvError, match=r"task {'level': 4} has no 'difficulty'"):
        env.reset(0)


def test_without_tasks_resets_get_nothing() -> None:
    class Bare(Told):
        def reset(self, *, seed: int | None = None, **other: Any) -> tuple[np.ndarray, dict[str, Any]]:
            assert not other
            return super().reset(seed=seed)

    env = SerialVectorEnv([Bare], check=False)
    env.reset(0)
    env.step(NOTHING[:1])


def test_an_episode_of_many_agents_has_one_task() -> None:
    env = AgentsVectorEnv([Team, Team])
    env.assign(told(1, 2))
    assert levels(env.reset(0)) == [1, 1, 2, 2]
    env.assign(told(4, 4))
    for _ in range(2):
        step = env.step(NOTHING)
    assert levels(step)[:2] == [1, 0], "b has ended and shows nothing; a goes on with the same task"
    assert levels(env.step(NOTHING))[:2] == [4, 4]


def follow(env: Any, num_steps: int = 40) -> list[Any]:
    """Assign new tasks whenever an environment begins, drawn as it goes; return everything seen."""
    random = np.random.default_rng(0)
    env.assign({number: {"level": int(random.integers(4))} for number in range(4)})
    seen = [env.reset(5).obs.copy()]
    for _ in range(num_steps):
        step = env.step(NOTHING)
        begun = np.flatnonzero(step.episode_starts).tolist()
        env.assign({number: {"level": int(random.integers(4))} for number in begun})
        seen.append((step.obs.copy(), step.rewards.copy(), step.terminated.copy(), begun))
    return seen


@pytest.mark.parametrize("make", [Told, BySetTask])
def test_workers_play_the_same_bit_for_bit(make: Any) -> None:
    """J42: tasks assigned while others run give the same steps in this process, in one worker and in three."""
    expected = follow(SerialVectorEnv([make] * 4))
    for workers in (1, 3):
        with VectorEnv(4, make, num_workers=workers, start_method="forkserver") as env:
            found = follow(env)
        for one, other in zip(expected, found, strict=True):
            assert str(one) == str(other)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_vectors_that_the_adapter_resets_play_the_same(vectorization: Any) -> None:
    expected = follow(SerialVectorEnv([Told] * 4))
    env = make_env(Told, 4, vectorization=vectorization)
    try:
        found = follow(env)
    finally:
        env.close()
    for one, other in zip(expected, found, strict=True):
        assert str(one) == str(other)


def test_vectors_that_reset_by_themselves_refuse_tasks() -> None:
    env = GymVectorAdapter(gym.vector.SyncVectorEnv([Told] * 2))
    with pytest.raises(EnvError, match=r"resets its environments by itself.*next_step.*vectorization='serial'"):
        env.assign(told(1))


def test_a_worker_that_replaces_another_knows_the_tasks() -> None:
    """J42: what is assigned survives the process that it was told to, or would have been told to."""
    with VectorEnv(4, Told, num_workers=2, restarts=3, start_method="forkserver") as env:
        env.assign(told(3, 3, 3, 3))
        assert levels(env.reset(0)) == [3] * 4
        env.assign(told(1, 1, 7, 8))
        os.kill(env.pids[1], signal.SIGKILL)  # before it is told
        step = env.step(NOTHING)
        assert levels(step) == [3, 3, 7, 8]
        assert step.valid.tolist() == [True, True, False, False]
        os.kill(env.pids[1], signal.SIGKILL)  # after it was told
        assert levels(env.step(NOTHING)) == [3, 3, 7, 8]
        os.kill(env.pids[0], signal.SIGKILL)
        env.call("level")  # finds the death, and begins new episodes that the next step shows
        env.assign({0: {"level": 2}})
        assert levels(env.step(NOTHING))[:2] == [1, 1]
        for _ in range(2):
            step = env.step(NOTHING)
        assert levels(step)[:2] == [2, 1], "what was assigned in between is not lost"


def test_tasks_of_no_environment_are_refused() -> None:
    env = SerialVectorEnv([Told] * 2)
    with pytest.raises(EnvError, match=r"environments \[2\], but there are 2"):
        env.assign({2: {}})


def test_matches_stepped_as_one_take_no_tasks() -> None:
    from twostep.worlds.skirmish import EnvConfig

    env = VectorEnv(2, EnvConfig(), num_workers=1, start_method="forkserver")
    with env, pytest.raises(EnvError, match="takes no tasks"):
        env.assign({0: {}})
