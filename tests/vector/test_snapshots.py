"""The state of environments as plain data: whoever takes it up goes on like the one that gave it."""

from __future__ import annotations

import functools
import json
import random
from collections import deque

import gymnasium as gym
import numpy as np
import pytest

from twostep.checkpoint import pack, unpack
from twostep.errors import EnvError, StateError
from twostep.vector import VectorEnv, make_env
from twostep.vector.snapshots import put, taken
from twostep.worlds.classic import cartpole_without_velocities
from twostep.worlds.skirmish import EnvConfig, SkirmishEnv


def stacked():
    env = gym.wrappers.TransformObservation(gym.make("CartPole-v1"), lambda obs: 2 * obs, None)
    return gym.wrappers.FrameStackObservation(env, 3)


ENVS = {
    **{
        name: functools.partial(gym.make, name, disable_env_checker=True)
        for name in (
            *("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0"),
            *("FrozenLake-v1", "Taxi-v4", "Blackjack-v1", "CliffWalking-v1"),
            *("InvertedPendulum-v5", "Ant-v5"),
        )
    },
    "memoryless wrapper": cartpole_without_velocities,
    "remembering wrapper": stacked,
}


def through_json_and_tensors(state):
    tensors, structure = pack(state)
    return unpack(tensors, json.loads(json.dumps(structure)))


@pytest.mark.parametrize("name", ENVS)
def test_an_environment_goes_on_from_its_state(name):
    """C16, L22: the same observations, rewards, ends, next episodes and random actions, in one that began otherwise."""
    if name in ("InvertedPendulum-v5", "Ant-v5"):
        pytest.importorskip("mujoco")
    one, other = ENVS[name](), ENVS[name]()
    one.reset(seed=3)
    one.action_space.seed(1)
    for _ in range(random.Random(name).randrange(5, 60)):
        if any(one.step(one.action_space.sample())[2:4]):
            one.reset()
    state = taken(one)
    other.reset(seed=4)
    put(other, through_json_and_tensors(state))
    for _ in range(250):
        action = one.action_space.sample()
        np.testing.assert_array_equal(action, other.action_space.sample())
        found, expected = other.step(action), one.step(action)
        np.testing.assert_array_equal(found[0], expected[0])
        assert found[1:4] == expected[1:4]
        if any(found[2:4]):
            np.testing.assert_array_equal(other.reset()[0], one.reset()[0])
    one.close()
    other.close()


class Odd(gym.Env):
    """Keeps all sorts of things."""

    observation_space = gym.spaces.Box(-9, 9, (2,))
    action_space = gym.spaces.Dict({"a": gym.spaces.Discrete(3), "b": gym.spaces.Box(0, 1, (2,))})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.window = deque([np.zeros(2)] * 3, maxlen=3)  # three times the same array
        self.by_key = {1: [True, None, np.float32(0.1)], "x": (1.5, {"deep": np.arange(3, dtype=np.uint16)})}
        self.also_window = self.window
        self.dice, self.old_dice = random.Random(seed), np.random.RandomState(1)
        self.names = np.array(["red", "blue"])
        self.advance = self.step
        return self.window[0], {}

    def step(self, action):
        self.window.append(self.np_random.normal(size=2) + self.dice.random() + self.old_dice.rand())
        return self.window[-1], 0.0, False, False, {}


def test_what_is_there_twice_stays_one_thing():
    one, other = Odd(), Odd()
    one.reset(seed=1)
    for _ in range(2):
        one.step(None)
    other.reset(seed=2)
    put(other, through_json_and_tensors(taken(one)))
    assert other.also_window is other.window
    assert other.window.maxlen == 3
    assert list(other.by_key) == [1, "x"]
    assert type(other.by_key[1][2]) is np.float32
    assert other.by_key["x"][1]["deep"].dtype == np.uint16
    assert other.names.tolist() == ["red", "blue"]
    for _ in range(3):
        np.testing.assert_array_equal(one.step(None)[0], other.step(None)[0])
    assert other.advance.__self__ is other


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda env: setattr(env, "handle", object()), r"Odd\.handle is a builtins\.object, which is no plain data"),
        (lambda env: setattr(env, "deep", {"a": [1, open]}), None),
        (lambda env: setattr(env, "deep", {"a": [1, iter([])]}), r"Odd\.deep\['a'\]\[1\] is a builtins\.list_iterator"),
        (lambda env: setattr(env, "view", env.window[0][:1]), r"Odd\.view is a view of memory"),
        (lambda env: setattr(env, "closure", lambda: env.window), r"Odd\.closure is a builtins\.function"),
    ],
)
def test_what_is_no_plain_data_is_named_with_the_way_out(spoil, complaint):
    env = Odd()
    env.reset(seed=1)
    spoil(env)
    if complaint is None:
        taken(env)
        return
    with pytest.raises(StateError, match=complaint) as caught:
        taken(env)
    assert "state_dict() and load_state_dict(state)" in str(caught.value)


class Told(Odd):
    """Says by itself what its state is."""

    def state_dict(self):
        return {"level": self.level}

    def load_state_dict(self, state):
        self.level = state["level"]


def test_an_environment_that_tells_its_state_is_believed():
    one, other = Told(), Told()
    one.reset(seed=1)
    one.level, one.handle = 7, object()
    other.reset(seed=2)
    put(other, through_json_and_tensors(taken(one)))
    assert other.level == 7
    assert other.np_random.random() == one.np_random.random()


def test_states_of_other_environments_are_refused():
    cart, pendulum = ENVS["CartPole-v1"](), ENVS["Pendulum-v1"]()
    cart.reset(seed=0)
    pendulum.reset(seed=0)
    with pytest.raises(StateError, match=r"is of CartPoleEnv in .*TimeLimit, not of PendulumEnv"):
        put(pendulum, taken(cart))
    with pytest.raises(StateError, match="does not fit"):
        put(cart, [{"kind": part["kind"], "attributes": None} for part in taken(cart)])
    env = make_env("CartPole-v1", 2, seed=0)
    with pytest.raises(StateError, match="Call reset first"):
        env.state_dict()
    env.reset()
    with pytest.raises(StateError, match="of 2 environments, not of 3"):
        make_env("CartPole-v1", 3, seed=0).load_state_dict(env.state_dict())


def play(env, steps, seed=0):
    """Return all that steps show."""
    generator, shown = np.random.default_rng(seed), []
    for _ in range(steps):
        if isinstance(env.action_space, gym.spaces.Discrete):
            actions = generator.integers(0, env.action_space.n, env.num_rows)
        elif isinstance(env.action_space, gym.spaces.MultiDiscrete):
            actions = generator.integers(0, env.action_space.nvec, (env.num_rows, len(env.action_space.nvec)))
        else:
            actions = generator.uniform(-1, 1, (env.num_rows, *env.action_space.shape)).astype(np.float32)
        step = env.step(actions)
        parts = (step.obs, step.rewards, step.terminated, step.truncated, step.episode_starts, step.valid)
        shown.append([None if part is None else np.array(part) for part in parts])
        shown[-1].append(None if step.final_obs is None else np.array(step.final_obs))
    return shown


def skirmish(num_workers):
    return make_env("skirmish", 3, seed=5, num_workers=num_workers, team=("light", "heavy"), max_seconds=8)


def one_by_one(num_workers):
    config = EnvConfig(team=("light", "heavy"), max_seconds=8)
    return make_env(lambda: SkirmishEnv(config), 3, seed=5, num_workers=num_workers)


VECTORS = {
    "CartPole": lambda workers: make_env("CartPole-v1", 3, seed=5, num_workers=workers),
    "matches at once": skirmish,
    "match by match": one_by_one,
}


@pytest.mark.parametrize(("before", "after"), [(0, 0), (0, 2), (2, 0)])
@pytest.mark.parametrize("name", VECTORS)
def test_a_vector_goes_on_from_its_state_here_and_in_workers(name, before, after):
    """C16, C17, A7: the number of processes may change in between."""
    one, other = VECTORS[name](before), VECTORS[name](after)
    one.reset()
    play(one, 37)
    state = through_json_and_tensors(one.state_dict())
    other.reset(seed=8)
    play(other, 5)
    other.load_state_dict(state)
    for found, expected in zip(play(other, 90, seed=1), play(one, 90, seed=1), strict=True):
        for part, same in zip(found, expected, strict=True):
            np.testing.assert_array_equal(part, same)
    one.close()
    other.close()


class Sealed(Odd):
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        obs = super().reset(seed=seed)
        self.handle = object()
        return obs


def test_workers_say_whose_state_cannot_be_kept_and_go_on():
    with VectorEnv(2, Sealed, num_workers=2, start_method="forkserver", check=False) as env:
        env.reset(0)
        with pytest.raises(StateError, match=r"Worker 0 \(env 0\): Sealed\.handle is a builtins\.object"):
            env.state_dict()
        env.step(np.zeros(2, dtype=np.int64))


def test_state_of_matches_of_another_kind_is_refused():
    one, other = skirmish(0), one_by_one(0)
    one.reset()
    other.reset()
    with pytest.raises(EnvError, match="another kind"):
        other.load_state_dict(one.state_dict())
    with pytest.raises(EnvError, match="stepped as one"):
        one.load_state_dict(other.state_dict())
