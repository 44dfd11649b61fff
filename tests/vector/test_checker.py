"""The check of an environment: each usual mistake is one clear error that names the value and the rule."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from twostep.errors import EnvError
from twostep.vector import AgentsVectorEnv, SerialVectorEnv, check_env
from twostep.worlds.skirmish import EnvConfig, SkirmishEnv

BOX = spaces.Box(-1, 1, (3,), np.float32)
DICT = spaces.Dict({"camera": spaces.Box(0, 255, (2, 2), np.uint8), "speed": spaces.Box(-9, 9, (1,), np.float32)})


class Env(gym.Env[Any, Any]):
    """Right in everything but what is overridden; ends after two steps."""

    def __init__(self, **overrides: Any) -> None:
        self.observation_space = overrides.pop("observation_space", BOX)
        self.action_space = overrides.pop("action_space", spaces.Discrete(2))
        self.overrides, self.t = overrides, 0

    def _get(self, name: str, usual: Any) -> Any:
        value = self.overrides.get(f"{name}{self.t}", self.overrides.get(name, usual))
        return value() if callable(value) else value

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        usual = (self._get("obs", np.zeros(3, dtype=np.float32)), self._get("info", {}))
        return self._get("reset_result", usual)

    def step(self, action: Any) -> Any:
        self.t += 1
        obs, info = self._get("obs", np.zeros(3, dtype=np.float32)), self._get("info", {})
        reward, terminated, truncated = self._get("reward", 0.0), self._get("terminated", self.t >= 2), False
        usual = (obs, reward, terminated, self._get("truncated", truncated), info)
        return self._get("step_result", usual)


class NoSeed(Env):
    def reset(self) -> Any:
        return super().reset()


class NoSpaces:
    def reset(self, *, seed: int | None = None) -> Any:
        return np.zeros(3), {}

    def step(self, action: Any) -> Any:
        return np.zeros(3), 0.0, False, False, {}


class SpaceMethods(NoSpaces):
    """What a PettingZoo environment looks like."""

    def observation_space(self, agent: str) -> Any:
        return BOX

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)


class NoReset:
    observation_space, action_space, step = BOX, spaces.Discrete(2), NoSpaces.step


class OldBox:
    """A space of the old gym package."""

    shape, dtype = (3,), np.float32


class BadMethod(Env):
    def action_masks(self) -> Any:
        return [True, False, True]


def crossed() -> spaces.Box:
    space = spaces.Box(-1, 1, (2,), np.float32)
    space.low[1] = 2.0
    return space


def reset(**overrides: Any) -> Callable[[], Env]:
    return lambda: Env(**{f"{name}0": value for name, value in overrides.items()})


def step(**overrides: Any) -> Callable[[], Env]:
    return lambda: Env(**{f"{name}1": value for name, value in overrides.items()})


def masked(mask: Any) -> Callable[[], Env]:
    return lambda: Env(info0={"action_mask": mask})


ZEROS = np.zeros(3, dtype=np.float32)
PICTURE = np.zeros((2, 2), dtype=np.uint8)
SPEED = np.zeros(1, dtype=np.float32)

# name: (what makes it, what the message must match)
BROKEN: dict[str, tuple[Callable[[], Any], str]] = {
    "obs of a wrong shape": (reset(obs=np.zeros(4, np.float32)), r"reset\(seed=0\): obs has shape \[4\].*says \[3\]"),
    "obs of a wrong shape later": (step(obs=np.zeros((3, 1), np.float32)), r"step\(.\), step 1.*shape \[3, 1\]"),
    "obs a number": (reset(obs=0.5), r"obs has shape \[\].*says \[3\]"),
    "obs of a wrong dtype": (
        lambda: Env(observation_space=spaces.Box(0, 255, (3,), np.uint8)),
        "dtype float32.*says uint8.*Return np.uint8",
    ),
    "obs complex": (reset(obs=np.zeros(3, np.complex64)), "dtype complex64"),
    "obs of strings": (reset(obs=np.array(["a", "b", "c"])), "dtype <U1"),
    "obs above its bounds": (reset(obs=np.array([0, 0, 1.5], np.float32)), r"obs\[2\] is 1.5.*allows -1.0 to 1.0"),
    "obs below its bounds": (step(obs=np.array([0, -7, 0], np.float32)), r"step 1.*obs\[1\] is -7.0.*Widen"),
    "obs nan": (reset(obs=np.array([0, np.nan, 0], np.float32)), r"obs\[1\] is nan.*must be a number"),
    "obs infinite": (
        lambda: Env(observation_space=spaces.Box(-np.inf, np.inf, (3,)), obs=np.array([np.inf, 0, 0], np.float32)),
        r"obs\[0\] is inf.*finite",
    ),
    "obs none": (reset(obs=lambda: None), "obs is None.*must be an array"),
    "obs none in a step": (step(obs=lambda: None), "step 1.*obs is None"),
    "obs a list": (reset(obs=[0.0, 0.0, 0.0]), "obs is of type list.*Return np.asarray"),
    "obs ragged": (reset(obs=np.array([np.zeros(1), np.zeros(2), 0], dtype=object)), "array of objects.*Pad"),
    "obs of objects": (reset(obs=np.array([None, 1, 2], dtype=object)), "array of objects"),
    "obs a torch tensor": (reset(obs=torch.zeros(3)), "torch tensor.*numpy.*TensorEnv"),
    "obs a dict where an array is due": (reset(obs={"camera": ZEROS}), "of type dict.*must be a numpy array"),
    "obs an array where a dict is due": (lambda: Env(observation_space=DICT), "of type ndarray.*Dict with keys"),
    "dict obs without a key": (lambda: Env(observation_space=DICT, obs={"camera": PICTURE}), r"lacks \['speed'\]"),
    "dict obs with one key more": (
        lambda: Env(observation_space=DICT, obs={"camera": PICTURE, "speed": SPEED, "time": 1}),
        r"extra keys \['time'\].*exactly",
    ),
    "dict obs with a wrong leaf": (
        lambda: Env(observation_space=DICT, obs={"camera": PICTURE, "speed": np.zeros(2, np.float32)}),
        r"obs\['speed'\] has shape \[2\]",
    ),
    "tuple obs too short": (
        lambda: Env(observation_space=spaces.Tuple([BOX, BOX]), obs=(ZEROS,)),
        "obs is a tuple of 1.*Tuple of 2",
    ),
    "tuple obs as a list": (
        lambda: Env(observation_space=spaces.Tuple([BOX, BOX]), obs=[ZEROS, ZEROS]),
        "obs is of type list.*Tuple of 2",
    ),
    "discrete obs out of range": (
        lambda: Env(observation_space=spaces.Discrete(4), obs=4),
        "obs is 4.*allows 0 to 3",
    ),
    "discrete obs a float": (lambda: Env(observation_space=spaces.Discrete(4), obs=1.0), "dtype float64.*says int64"),
    "multi discrete obs out of range": (
        lambda: Env(observation_space=spaces.MultiDiscrete([2, 3, 4]), obs=np.array([1, 3, 0])),
        r"obs\[1\] is 3.*allows 0 to 2",
    ),
    "binary obs out of range": (
        lambda: Env(observation_space=spaces.MultiBinary(3), obs=np.array([0, 2, 0], np.int8)),
        r"obs\[1\] is 2.*allows 0 to 1",
    ),
    "reset without info": (reset(reset_result=ZEROS), r"reset\(seed=0\) returned an array.*must return \(obs, info\)"),
    "reset with none": (reset(reset_result=lambda: None), r"returned None.*must return \(obs, info\)"),
    "reset with three": (reset(reset_result=(ZEROS, {}, 1)), "returned a tuple of 3"),
    "reset with a list": (reset(reset_result=[ZEROS, {}]), "returned a list of 2"),
    "reset whose info is no dict": (reset(info=[]), "dict as info"),
    "reset without seed": (NoSeed, "reset must take a seed.*def reset"),
    "step of the old gym": (step(step_result=(ZEROS, 0.0, False, {})), "tuple of 4.*five.*old gym"),
    "step with six": (step(step_result=(ZEROS, 0.0, False, False, {}, 1)), "tuple of 6.*tuple of five"),
    "step with a list": (step(step_result=[ZEROS, 0.0, False, False, {}]), "list of 5.*tuple of five"),
    "step with none": (step(step_result=lambda: None), "returned None.*tuple of five"),
    "reward none": (step(reward=lambda: None), "reward is None.*Return 0.0"),
    "reward nan": (step(reward=float("nan")), "reward is nan.*finite"),
    "reward infinite": (step(reward=np.float32("-inf")), "reward is -inf.*finite"),
    "reward an array": (step(reward=np.zeros(3)), r"reward is an array of shape \[3\].*one number"),
    "reward an array of one": (step(reward=np.zeros(1)), r"array of shape \[1\].*float\(reward\)"),
    "reward a string": (step(reward="1"), r"reward is '1' \(str\)"),
    "reward a list": (step(reward=[1.0]), "reward is a list of 1"),
    "reward a tensor": (step(reward=torch.tensor(1.0)), r"reward is tensor.*float\(reward\)"),
    "reward complex": (step(reward=np.complex64(1)), "reward is .*complex64"),
    "terminated an int": (step(terminated=0), r"terminated is 0 \(int\).*bool"),
    "terminated none": (step(terminated=lambda: None), "terminated is None"),
    "truncated a string": (step(truncated="no"), r"truncated is 'no' \(str\)"),
    "truncated an array": (step(truncated=np.array([False])), r"truncated is an array of shape \[1\]"),
    "info none": (step(info=lambda: None), "info is None.*dict"),
    "info a list": (step(info=[{}]), "info is a list of 1.*dict"),
    "no spaces": (NoSpaces, "no observation_space.*Set it"),
    "spaces that are methods": (SpaceMethods, "observation_space is a function"),
    "no reset": (NoReset, r"no method reset\(\)"),
    "a space of another package": (lambda: Env(observation_space=OldBox()), "OldBox.*not supported.*Gymnasium's Box"),
    "an unsupported space": (lambda: Env(action_space=spaces.Text(3)), "action_space is Text.*not supported"),
    "an empty dict space": (lambda: Env(observation_space=spaces.Dict()), "holds nothing"),
    "a space without numbers": (
        lambda: Env(observation_space=spaces.Box(-1, 1, (0,))),
        "without a single number",
    ),
    "action bounds crossed": (lambda: Env(action_space=crossed()), r"low=2.0 and high=1.0 at \[1\].*less"),
    "action bounds equal": (lambda: Env(action_space=spaces.Box(1, 1, (1,))), r"low=1.0 and high=1.0 at \[0\]"),
    "mask of a wrong length": (masked(np.ones(3, np.int8)), r"reset\(seed=0\): the mask has shape \[3\].*2 booleans"),
    "mask of floats": (masked(np.ones(2)), "dtype float64.*booleans"),
    "mask forbidding all": (masked(np.zeros(2, bool)), "forbids all 2 actions.*At least one"),
    "mask none": (masked(np.array(None)), "dtype object.*booleans"),
    "mask by a method of a wrong length": (BadMethod, r"shape \[3\].*2 booleans"),
    "mask for continuous actions": (
        lambda: Env(info0={"action_mask": np.ones(1, bool)}, action_space=spaces.Box(-1, 1, (1,))),
        "no action can be masked",
    ),
    "a vector": (lambda: gym.make_vec("CartPole-v1", 2), "vector of 2 environments.*as_env"),
    "broken only after an episode ended": (
        lambda: Env(terminated1=True, obs0=iter_of(ZEROS, np.zeros(5, np.float32))),
        r"reset\(\) after an episode ended: obs has shape \[5\]",
    ),
}


def iter_of(*values: Any) -> Callable[[], Any]:
    following = iter(values)
    return lambda: next(following)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("name", BROKEN)
def test_each_mistake_is_one_clear_error(name: str) -> None:
    make, message = BROKEN[name]
    with pytest.raises(EnvError, match=message) as caught:
        check_env(make())
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith((".", "!"))
    assert len(text) < 500


def test_the_table_is_long_enough() -> None:
    assert len(BROKEN) >= 40


def test_serial_vectors_check_their_first_environment() -> None:
    make, message = BROKEN["reward nan"]
    with pytest.raises(EnvError, match=message):
        SerialVectorEnv([make, make])
    SerialVectorEnv([make, make], check=False)


FINE: dict[str, Callable[[], Any]] = {
    "usual": Env,
    "never ends": lambda: Env(terminated=False),
    "ends at once, both ways": lambda: Env(terminated=True, truncated=np.True_),
    "doubles for singles": lambda: Env(obs=np.zeros(3)),
    "integer reward": lambda: Env(reward=np.int64(3)),
    "rounding above the bounds": lambda: Env(obs=np.full(3, 1 + 1e-7)),
    "unbounded actions": lambda: Env(action_space=spaces.Box(-np.inf, np.inf, (2,))),
    "infinite bounds and integer observations": lambda: Env(
        observation_space=spaces.Box(-np.inf, np.inf, (3,)), obs=np.zeros(3, np.int64)
    ),
    "nested": lambda: Env(
        observation_space=spaces.Tuple([DICT, BOX]), obs=({"camera": PICTURE, "speed": SPEED}, ZEROS)
    ),
    "binary mask": lambda: Env(action_space=spaces.MultiBinary(2), info={"action_mask": np.zeros(2, bool)}),
    "nested masks": lambda: Env(
        action_space=spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple([spaces.MultiDiscrete([2, 2]), BOX])}),
        info={"action_mask": {"a": [True, False], "b": ([False, True, True, False], None)}},
    ),
}


@pytest.mark.parametrize("name", FINE)
def test_what_is_allowed_passes(name: str) -> None:
    check_env(FINE[name]())


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Blackjack-v1", "Acrobot-v1"])
def test_environments_of_gymnasium_pass_in_a_few_milliseconds(env_id: str) -> None:
    env = gym.make(env_id, disable_env_checker=True)
    check_env(env)
    durations = []
    for _ in range(3):
        start = time.perf_counter()
        check_env(env)
        durations.append(time.perf_counter() - start)
    assert min(durations) < 0.01


def test_a_factory_is_made_checked_and_closed() -> None:
    closed = []

    class Closing(Env):
        def close(self) -> None:
            closed.append(True)

    check_env(Closing)
    assert closed == [True]
    with pytest.raises(EnvError, match="reward"):
        check_env(lambda: Closing(reward="1"))
    assert closed == [True, True]


def test_actions_that_masks_forbid_are_never_taken() -> None:
    taken = []

    class Strict(Env):
        def step(self, action: Any) -> Any:
            taken.append(action)
            return super().step(action)

    check_env(Strict(action_space=spaces.Discrete(50), info={"action_mask": np.arange(50) == 31}))
    assert set(taken) == {31}
    taken.clear()
    mask = np.array([0, 1, 1, 0, 0], bool)
    check_env(Strict(action_space=spaces.MultiDiscrete([2, 3]), info={"action_mask": mask}))
    assert all(action.tolist() == [1, 0] for action in taken)


def test_errors_of_the_environment_itself_keep_their_type_and_say_where() -> None:
    def crash() -> Any:
        raise ZeroDivisionError("division by zero")

    with pytest.raises(ZeroDivisionError) as caught:
        check_env(Env(step_result=crash))
    notes = getattr(caught.value, "__notes__", ["first checked, in Env.step"])
    assert "first checked, in Env.step" in notes[0]


def test_the_action_space_keeps_its_own_generator() -> None:
    env = Env(action_space=spaces.Discrete(1000))
    env.action_space.seed(3)
    expected = spaces.Discrete(1000, seed=3).sample()
    check_env(env)
    assert env.action_space.sample() == expected


# ---------------------------------------------------------------------------- many agents


class Team:
    """Right in everything but what `mend` makes of it; `a` ends after two steps, `b` after three."""

    def __init__(self, mend: Callable[[Team, str, Any], Any] | None = None) -> None:
        self.possible_agents: Any = ["a", "b"]
        self.agents: Any = []
        self.t = 0
        self.mend = mend or (lambda env, call, result: result)

    def observation_space(self, agent: str) -> Any:
        return self.mend(self, "observation_space", BOX)

    def action_space(self, agent: str) -> Any:
        return self.mend(self, "action_space", spaces.Discrete(3))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t, self.agents = 0, ["a", "b"]
        return self.mend(self, "reset", (self._obs(), {agent: {} for agent in self.agents}))

    def step(self, actions: dict[str, int]) -> Any:
        self.t += 1
        acting = list(self.agents)
        assert sorted(actions) == sorted(acting)
        ends = {"a": self.t >= 2, "b": self.t >= 3}
        obs, rewards = self._obs(), dict.fromkeys(acting, 1.0)
        terminations, truncations = {agent: ends.get(agent, False) for agent in acting}, dict.fromkeys(acting, False)
        self.agents = [agent for agent in acting if not ends.get(agent)]
        infos: dict[str, Any] = {agent: {} for agent in acting}
        return self.mend(self, "step", (obs, rewards, terminations, truncations, infos))

    def _obs(self) -> dict[str, Any]:
        return {agent: np.zeros(3, dtype=np.float32) for agent in self.agents}


def at_step(part: int, key: str, value: Any) -> Callable[[], Team]:
    """Return a maker of teams in which one entry of one of step's dicts is another; `...` leaves it out."""

    def mend(env: Team, call: str, result: Any) -> Any:
        if call == "step":
            if value is ...:
                result[part].pop(key, None)
            else:
                result[part][key] = value
        return result

    return lambda: Team(mend)


def at(call: str, change: Callable[[Team, Any], Any]) -> Callable[[], Team]:
    return lambda: Team(lambda env, name, result: change(env, result) if name == call else result)


def leaving(agents: Any) -> Callable[[Team, Any], Any]:
    def change(env: Team, result: Any) -> Any:
        env.agents = agents
        return result

    return change


def without(attribute: str, value: Any = None) -> Callable[[], Team]:
    def make() -> Team:
        env = Team()
        setattr(env, attribute, value)
        return env

    return make


class Sharing(Team):
    """Removes agents from the one list that says who there can be, a usual slip."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        result = super().reset(seed=seed)
        self.agents = self.possible_agents
        return result

    def step(self, actions: dict[str, int]) -> Any:
        result = super().step(actions)
        self.possible_agents[:] = self.agents or ["a"]
        return result


class NoSeedTeam(Team):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


MISTAKES_OF_TEAMS: dict[str, tuple[Callable[[], Any], str]] = {
    "no agents at all": (without("possible_agents"), r"possible_agents is None.*must list all agents"),
    "agents as text": (without("possible_agents", "ab"), r"possible_agents is 'ab' \(str\), but must list all agents"),
    "agents twice": (without("possible_agents", ["a", "a"]), r"possible_agents names 'a' twice"),
    "space as attribute": (without("observation_space", BOX), r"observation_space is Box.*must be a method.*def obs"),
    "spaces as dict": (without("action_space", {"a": 1}), r"action_space is \{'a': 1\} \(dict\), but must be a method"),
    "space of nothing": (at("action_space", lambda env, space: None), r"action_space\('a'\) is None.*not supported"),
    "empty space": (at("observation_space", lambda env, s: spaces.Box(-1, 1, (0,))), r"without a single number"),
    "no reset": (without("reset"), r"Team has no method reset\(\)"),
    "no seed": (NoSeedTeam, r"reset must take a seed by keyword"),
    "old reset": (at("reset", lambda env, result: result[0]), r"reset\(seed=0\) returned .*must return two dicts"),
    "reset of lists": (
        at("reset", lambda env, result: ([], [])),
        r"returned \(list, list\), but must return two dicts",
    ),
    "nobody at reset": (at("reset", leaving([])), r"left env.agents empty, so nobody is there"),
    "agents none": (at("reset", leaving(None)), r"left env.agents as None \(NoneType\), but it must list who is there"),
    "agent unknown": (
        at("reset", leaving(["a", "c"])),
        r"env.agents holds 'c', which is not in possible_agents \(a, b\)",
    ),
    "agent there twice": (at("reset", leaving(["a", "a"])), r"env.agents names 'a' twice"),
    "agent unseen": (at("reset", lambda env, result: ({"a": result[0]["a"]}, {})), r"'b' has no observation"),
    "shape at reset": (
        at("reset", lambda env, result: ({"a": np.zeros(4), "b": np.zeros(3)}, {})),
        r"a: obs has shape",
    ),
    "info at reset": (
        at("reset", lambda env, result: (result[0], {"a": 3})),
        r"a: info is 3 \(int\), but must be a dict",
    ),
    "old step": (at("step", lambda env, result: result[:4]), r"\(dict, dict, dict, dict\).*old API: split dones"),
    "step of arrays": (at("step", lambda env, result: (np.zeros(3),) * 5), r"\(ndarray, .*must return five dicts"),
    "no step": (at("step", lambda env, result: None), r"returned None .*must return five dicts by agent"),
    "reward missing": (at_step(1, "b", ...), r"rewards has no entry for 'b', which acted"),
    "termination missing": (at_step(2, "a", ...), r"terminations has no entry for 'a', which acted"),
    "truncation missing": (at_step(3, "a", ...), r"truncations has no entry for 'a', which acted"),
    "observation missing": (at_step(0, "b", ...), r"'b' has no observation. Return one for every agent"),
    "observation wide": (at_step(0, "b", np.zeros(5)), r"step 1 after a reset, b: obs has shape \[5\]"),
    "observation nan": (at_step(0, "b", np.full(3, np.nan)), r"b: obs\[0\] is nan"),
    "observation none": (at_step(0, "b", None), r"b: obs is None"),
    "reward none": (at_step(1, "a", None), r", a: reward is None.*Return 0.0"),
    "reward nan": (at_step(1, "a", float("nan")), r", a: reward is nan, but must be finite"),
    "reward too large": (at_step(1, "a", 10**400), r", a: reward is 1000+, but must be finite"),
    "flag as text": (at_step(2, "b", "no"), r", b: terminated is 'no' \(str\), but must be a bool"),
    "flag as number": (at_step(3, "b", 0), r", b: truncated is 0 \(int\), but must be a bool"),
    "info as text": (at_step(4, "b", "fine"), r", b: info is 'fine' \(str\), but must be a dict"),
    "mask of a wrong size": (at_step(4, "b", {"action_mask": [1, 1]}), r", b: the mask has shape \[2\].*needs 3"),
    "mask of nothing": (at_step(4, "b", {"action_mask": np.zeros(3, int)}), r", b: the mask forbids all 3"),
    "vanishes": (at("step", leaving(["a"])), r"'b' left env.agents, but was neither terminated nor truncated"),
    "shrinking list": (Sharing, r"possible_agents was \['a', 'b'\] and became \['a'\].*a copy"),
}


@pytest.mark.parametrize("name", MISTAKES_OF_TEAMS)
def test_each_mistake_with_many_agents_is_one_clear_error(name: str) -> None:
    """G25: what PettingZoo's parallel interface asks for, each breach with the value, the rule and the way out."""
    make, message = MISTAKES_OF_TEAMS[name]
    with pytest.raises(EnvError, match=message) as caught:
        check_env(make)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith((".", "...", ")"))
    with pytest.raises(EnvError):
        AgentsVectorEnv([make])


def test_environments_of_many_agents_pass() -> None:
    for make in (Team, lambda: SkirmishEnv(EnvConfig(control="continuous"))):
        check_env(make)
        check_env(make())
    check_env(at_step(1, "a", np.float32(3)))
    check_env(at_step(4, "b", {"action_mask": [1, 0, 1]}))
    check_env(at_step(4, "b", ...))


def test_environments_of_pettingzoo_pass() -> None:
    mpe2 = pytest.importorskip("mpe2.simple_spread_v3")
    pettingzoo = pytest.importorskip("pettingzoo")
    for env in (mpe2.parallel_env(), pettingzoo.make("parallel", "butterfly/knights_archers_zombies-v11")):
        check_env(env)
        env.close()


def test_the_dead_need_no_mask_and_no_observation_where_they_terminated() -> None:
    def change(env: Team, result: Any) -> Any:
        result[4]["a"] = {"action_mask": np.zeros(3, int) if env.t == 2 else np.ones(3, int)}
        if env.t == 2:
            assert result[2]["a"]
            result[0].pop("a", None)
        return result

    check_env(at("step", change))


def test_actions_that_masks_forbid_are_never_taken_by_any_agent() -> None:
    class Strict(Team):
        def step(self, actions: dict[str, int]) -> Any:
            assert set(actions.values()) <= {2}
            result = super().step(actions)
            return *result[:4], {agent: {"action_mask": [0, 0, 1]} for agent in actions}

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            obs, _ = super().reset(seed=seed)
            return obs, {agent: {"action_mask": [0, 0, 1]} for agent in obs}

    check_env(Strict)


JUNK = [
    None,
    "x",
    float("nan"),
    float("-inf"),
    1 + 0j,
    [1, 2],
    {},
    np.zeros(7),
    np.zeros((3, 1)),
    np.zeros(3, dtype=object),
    np.float64(1),
    True,
    object(),
    -1,
    10**400,
    b"",
    {"a": None},
    ("a",),
    torch.zeros(3),
    ...,
]
PLACES = ["whole", "agents", "possible_agents", 0, 1, 2, 3, 4]


@settings(max_examples=500, deadline=None)
@given(
    junk=st.sampled_from(JUNK),
    place=st.sampled_from(PLACES),
    agent=st.sampled_from(["a", "b", None]),
    call=st.sampled_from(["reset", "step"]),
    when=st.integers(0, 6),
    check=st.booleans(),
)
def test_whatever_an_environment_returns_is_taken_or_one_clear_error(
    junk: Any, place: Any, agent: Any, call: str, when: int, check: bool
) -> None:
    """G25: junk in any place, from the start or later, found by the check or on the way."""
    calls = 0

    def mend(env: Team, name: str, result: Any) -> Any:
        nonlocal calls
        calls += name == call
        if name != call or calls <= when:
            return result
        if place == "whole":
            return junk
        if isinstance(place, str):
            setattr(env, place, junk)
            return result
        parts = [dict(part) for part in result]
        at = place % len(parts)
        if agent is None:
            parts[at] = None if isinstance(junk, torch.Tensor) else junk  # a tensor has an error of its own for `in`
        elif junk is ...:
            parts[at].pop(agent, None)
        else:
            parts[at][agent] = junk
        return tuple(parts)

    try:
        env = AgentsVectorEnv([Team(mend)], check=check)
        env.reset(0)
        for _ in range(8):
            assert env.step(np.zeros(env.num_rows, dtype=int)).obs.shape == (2, 3)
    except EnvError as error:
        told = str(error)
    else:
        told = "taken"
    assert "\n" not in told
    assert told == "taken" or len(told) > 60
