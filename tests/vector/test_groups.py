"""One function makes the right group for whatever environments there are, and all groups keep one contract."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from twostep.errors import EnvError
from twostep.protocols import Step
from twostep.vector import AgentsVectorEnv, SerialVectorEnv, make_group, row_seeds
from twostep.worlds.skirmish import EnvConfig, HeuristicPolicy, SkirmishEnv, SkirmishRows

CONFIG = EnvConfig(team=("scout", "light"), max_seconds=4.0, zone_seconds=1.0)


class Config:
    """A config that makes an environment, as users write them."""

    def __init__(self, gravity: float = 9.8) -> None:
        self.gravity = gravity

    def make(self) -> gym.Env[Any, Any]:
        env = CartPoleEnv()
        env.gravity = self.gravity
        return env


GROUPS = {
    "serial": lambda: make_group([CartPoleEnv] * 3),
    "agents": lambda: make_group([CONFIG] * 3),
    "some agents": lambda: make_group([CONFIG] * 3, agent_ids=["red_1"]),
    "rows": lambda: SkirmishRows(CONFIG, 3),
}


@pytest.mark.parametrize("name", GROUPS)
def test_every_group_keeps_the_contract(name: str) -> None:
    """E11, E18: sizes, agents, seeds for all and for some, which rows begin, attributes, and closing twice."""
    group = GROUPS[name]()
    rows = group.rows_per_env
    assert group.num_rows == group.num_envs * rows == 3 * rows
    assert len(group.agent_ids) in (rows, 0)
    assert set(group.agent_ids) <= set(group.possible_agents)
    first = copied(group.reset(4))
    assert first.episode_starts.all()
    assert first.obs.shape == (group.num_rows, *group.observation_space.shape)
    same = copied(group.reset(row_seeds(4, 3)))
    np.testing.assert_array_equal(same.obs, first.obs)
    walk(group, 3)
    some = copied(group.reset([row_seeds(4, 3)[2], row_seeds(4, 3)[0]], [2, 0]))
    begun = np.repeat([True, False, True], rows)
    assert some.episode_starts.tolist() == begun.tolist()
    np.testing.assert_array_equal(some.obs[begun], first.obs[begun])
    assert (some.obs[~begun] != first.obs[~begun]).any()
    group.reset(4, [1])
    np.testing.assert_array_equal(group.reset(None, []).obs, first.obs)
    assert not group.reset(None, []).episode_starts.any()
    assert (copied(group.reset()).obs != first.obs).any(), "without a seed the next episodes are others"
    assert len(group.call("close")) == 3
    assert len(group.call("close", indices=[1])) == 1
    group.close()
    group.close()


def copied(step: Step) -> Step:
    return Step(step.obs.copy(), step.episode_starts.copy())


def walk(group: Any, number: int) -> None:
    for _ in range(number):
        group.step(np.stack([group.action_space.sample() for _ in range(group.num_rows)]))


def test_the_first_environment_decides_the_kind() -> None:
    assert isinstance(make_group([CartPoleEnv, CartPoleEnv()]), SerialVectorEnv)
    assert isinstance(make_group([SkirmishEnv()]), AgentsVectorEnv)
    assert make_group([Config(gravity=1.5), Config()]).call("gravity") == [1.5, 9.8]
    group = make_group([CONFIG, lambda: CONFIG.make()], agent_ids="blue_0", opponent=HeuristicPolicy)
    assert group.agent_ids == ("blue_0",)


@pytest.mark.parametrize("agent_ids", ["blue_*", "red_1", ["blue_1", "red_0"], "*"])
def test_matches_one_by_one_are_the_rows_of_many(agent_ids: Any) -> None:
    """E12, EB12, EB4: the fast form of a world and its environments in a group agree in every number."""
    group, rows = make_group([CONFIG] * 4, agent_ids=agent_ids), SkirmishRows(CONFIG, 4, agent_ids=agent_ids)
    assert_same(group.reset(5), rows.reset(5))
    rng, ends = np.random.default_rng(0), 0
    for _ in range(60):
        actions = rng.integers(group.action_space.nvec, size=(group.num_rows, 3))
        step = group.step(actions)
        assert_same(step, rows.step(actions))
        ends += int(step.episode_starts.sum())
    assert ends > group.num_rows
    assert_same(group.reset([3, 4], [0, 2]), rows.reset([3, 4], [0, 2]))
    assert_same(group.reset(None, [1]), rows.reset(None, [1]))


def assert_same(ours: Step, theirs: Step) -> None:
    for name in ("obs", "episode_starts", "rewards", "terminated", "truncated", "valid", "final_rows", "final_obs"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), name)
    assert ours.infos == theirs.infos


class Counted(CartPoleEnv):
    open = 0

    def __init__(self) -> None:
        super().__init__()
        Counted.open += 1

    def close(self) -> None:
        Counted.open -= 1


@pytest.mark.parametrize(
    ("factories", "arguments", "message"),
    [
        ([], {}, "0 environments were given"),
        ([Counted, 3], {}, "3 makes no environment. Pass a function without arguments"),
        ([Counted], {"agent_ids": "a"}, "agent_ids='a' was given, but Counted has a single agent"),
        ([Counted], {"opponent": HeuristicPolicy}, "opponent=.*was given, but Counted has a single agent"),
        ([Counted, CartPoleEnv, Counted, lambda: gym.make("Pendulum-v1")], {}, "env 3 has observation_space"),
    ],
)
def test_what_cannot_be_a_group_is_refused_and_what_was_made_is_closed(
    factories: Any, arguments: dict[str, Any], message: str
) -> None:
    Counted.open = 0
    with pytest.raises(EnvError, match=message):
        make_group(factories, **arguments)
    assert Counted.open == 0


def test_environments_that_take_turns_cannot_be_a_group() -> None:
    pettingzoo = pytest.importorskip("pettingzoo")
    with pytest.raises(EnvError, match=r"AEC environment.*aec_to_parallel"):
        make_group([lambda: pettingzoo.make("aec", "butterfly/knights_archers_zombies-v11")])
