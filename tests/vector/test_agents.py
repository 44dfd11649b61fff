"""Who is controlled, who plays the others, and what the answer is where neither can be."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from twostep.errors import EnvError
from twostep.vector.agents import (
    chosen_agents,
    is_parallel_env,
    made_opponents,
    neutral_action,
    own_attribute,
    refuse_turns,
    shared_spaces,
)
from twostep.worlds.skirmish import SkirmishEnv, SkirmishRows

TEAMS = ("blue_0", "blue_1", "red_0", "red_1")


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        (None, TEAMS),
        ("*", TEAMS),
        ("blue_*", ("blue_0", "blue_1")),
        ("red_1", ("red_1",)),
        (["red_*", "blue_0"], ("red_0", "red_1", "blue_0")),
        (["blue_1", "*_1"], ("blue_1", "red_1")),
        (("blue_?",), ("blue_0", "blue_1")),
    ],
)
def test_agents_are_named_by_ids_or_patterns_in_the_order_of_the_wish(wish: Any, expected: Any) -> None:
    """E12."""
    assert chosen_agents(TEAMS, wish) == expected


def test_agents_need_not_be_texts() -> None:
    assert chosen_agents((0, 1, ("x", 2)), [1]) == (1,)
    assert chosen_agents((0, 1), 0) == (0,)
    assert chosen_agents((("x", 1), ("x", 2)), ("x", 2)) == (("x", 2),), "a tuple may be a single id"
    assert chosen_agents((("x", 1), ("x", 2)), (("x", 2), ("x", 1))) == (("x", 2), ("x", 1))
    assert chosen_agents(("[a]", "a"), "[a]") == ("[a]",), "an id is taken as it is before it is a pattern"


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ("blu_*", r"agent_ids names 'blu_\*', which is no agent.*Did you mean blue_"),
        (["blue_0", "green"], r"'green', which is no agent. There are blue_0, blue_1, red_0, red_1"),
        ([], "agent_ids is empty, so there is nobody to act for"),
    ],
)
def test_agents_that_are_not_there_are_refused_with_those_that_are(wish: Any, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        chosen_agents(TEAMS, wish)


@given(st.lists(st.sampled_from(TEAMS), min_size=1))
def test_every_agent_is_chosen_once(wish: list[str]) -> None:
    chosen = chosen_agents(TEAMS, wish)
    assert len(set(chosen)) == len(chosen)
    assert set(chosen) == set(wish)


class Spaces:
    """Has spaces and nothing else."""

    possible_agents = TEAMS

    def __init__(self, **sizes: int) -> None:
        self.sizes = sizes

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-1, 1, (self.sizes.get(agent, 3),))

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)


def test_agents_of_one_policy_have_one_kind_of_observation_and_action() -> None:
    env = Spaces(red_0=4, red_1=4)
    assert shared_spaces(env, TEAMS[:2])[0].shape == (3,)
    assert shared_spaces(env, TEAMS[2:])[0].shape == (4,)
    with pytest.raises(EnvError) as caught:
        shared_spaces(env, TEAMS)
    text = str(caught.value)
    assert "blue_0, blue_1 (sees Box(-1.0, 1.0, (3,), float32), does Discrete(2))" in text
    assert "agent_ids=['blue_0', 'blue_1'] or agent_ids=['red_0', 'red_1']" in text
    assert "\n" not in text


class Player:
    def act(self, env: Any, agent_id: Any) -> int:
        return 0


def test_every_environment_gets_an_opponent_of_its_own() -> None:
    """EB12: one opponent for all environments would mix their matches up; such a maker is refused."""
    opponents = made_opponents([Spaces(), Spaces()], ["red_0"], Player)
    assert len(opponents) == len({id(opponent) for opponent in opponents}) == 2
    one = Player()
    with pytest.raises(EnvError, match="returned the same object twice"):
        made_opponents([Spaces(), Spaces()], ["red_0"], lambda: one)
    with pytest.raises(EnvError, match="must be a function that makes one"):
        made_opponents([Spaces()], ["red_0"], one)  # type: ignore[arg-type]


def test_the_environment_makes_the_opponent_where_none_is_given() -> None:
    class Wrapped:
        def __init__(self, env: Any) -> None:
            self.unwrapped = env

    made = made_opponents([SkirmishEnv(), Wrapped(SkirmishEnv())], ["red_0"], None)
    assert [type(opponent).__name__ for opponent in made] == ["HeuristicPolicy"] * 2
    assert made_opponents([Spaces(), Spaces()], [], None) == [None, None]


class Hasty:
    def act(self, obs: Any) -> int: ...


class Network:
    def forward(self, obs: Any) -> Any: ...
    def state_dict(self) -> Any: ...
    def __call__(self, *args: Any) -> Any: ...


@pytest.mark.parametrize(
    ("others", "make", "message"),
    [
        (["red_0", "red_1"], None, r"Nobody plays red_0, red_1.*Spaces has no make_opponent\(\)"),
        ([], Player, "agent_ids covers every agent, so it would play nobody"),
        (["red_0"], dict, r"The opponent \{\} has no method act\(env, agent_id\)"),
        (["red_0"], lambda env, agent: 0, r"needs arguments, but is called without any.*opponent=Mine"),
        (["red_0"], Hasty, r"act\(obs: 'Any'\) -> 'int' cannot be called as act\(env, agent_id\)"),
        (["red_0"], Network(), r"opponent is the network Network.*lambda: PolicyOpponent\(network\)"),
        (["red_0"], lambda: Network(), r"what opponent= makes is the network Network"),
    ],
)
def test_opponents_that_cannot_play_are_refused(others: Any, make: Any, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        made_opponents([Spaces()], others, make)


def test_attributes_are_found_behind_wrappers() -> None:
    class Wrapped:
        unwrapped = SkirmishEnv()

    assert own_attribute(Wrapped(), "default_agent_ids") == "blue_*"
    assert own_attribute(Spaces(), "default_agent_ids") is None


ACTION_SPACES = [
    spaces.Discrete(4),
    spaces.Discrete(4, start=-2),
    spaces.Box(-1, 1, (2, 3), np.float32),
    spaces.Box(0.5, 2.0, (2,), np.float64),
    spaces.Box(-3, -1, (1,), np.int32),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiDiscrete([2, 3], start=[1, -1]),
    spaces.MultiBinary(3),
    spaces.Dict({"move": spaces.Discrete(3), "aim": spaces.Box(-1, 1, (2,), np.float32)}),
    spaces.Tuple([spaces.Discrete(2), spaces.MultiBinary(2)]),
]


@pytest.mark.parametrize("space", ACTION_SPACES, ids=str)
def test_the_neutral_action_is_one_of_the_space_and_as_near_to_zero_as_it_allows(space: spaces.Space[Any]) -> None:
    assert space.contains(neutral_action(space))


def test_what_counts_as_an_environment_of_many_agents() -> None:
    class Named(gym.Env[Any, Any]):
        possible_agents = TEAMS

    assert is_parallel_env(SkirmishEnv())
    assert is_parallel_env(Spaces())
    assert not is_parallel_env(SkirmishEnv), "a class makes environments, it is none"
    assert not is_parallel_env(Named()), "an environment of Gymnasium has a single agent whatever it holds"
    assert not is_parallel_env(SkirmishRows(num_envs=1)), "rows are a vector already"
    assert not is_parallel_env(object())


def test_environments_that_take_turns_are_refused_with_the_way_out() -> None:
    class Chess:
        possible_agents = ("white", "black")

        def agent_iter(self) -> Any: ...
        def last(self) -> Any: ...
        def step(self, action: Any) -> None: ...

    refuse_turns(SkirmishEnv())
    assert not is_parallel_env(Chess())
    with pytest.raises(EnvError, match=r"Chess is an AEC environment.*pettingzoo.utils.aec_to_parallel\(env\)"):
        refuse_turns(Chess())
