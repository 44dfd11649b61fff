"""The face of VectorEnv that speaks in lists of dicts by agent, against the rows that it stands for."""

from __future__ import annotations

import sys

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from twostep.errors import EnvError
from twostep.vector import VectorEnv
from twostep.worlds.skirmish import EnvConfig, SkirmishEnv

cloudpickle.register_pickle_by_value(sys.modules[__name__])

CONFIG = EnvConfig(team=("light", "heavy"), max_seconds=12.0)


@pytest.fixture(scope="module")
def matches():
    with VectorEnv(num_envs=3, env_cfg=CONFIG, num_workers=2, agent_ids="*", start_method="forkserver") as env:
        yield env


def random_actions(env, seen, generator):
    return [{agent: generator.integers(0, env.action_space.nvec) for agent in by_agent} for by_agent in seen]


def test_equals_the_parallel_environment_by_agent(matches):
    """E16, E18: reset(seeds=...), five lists of dicts per step, next episodes begun when all agents have ended."""
    plain = [SkirmishEnv(CONFIG) for _ in range(3)]
    generator, ends = np.random.default_rng(0), 0
    obs_list, infos = matches.reset(seeds=[5, 6, 7])
    assert infos == [{agent: {} for agent in plain[0].possible_agents}] * 3
    for env, seed, seen in zip(plain, [5, 6, 7], obs_list, strict=True):
        same(seen, env.reset(seed=seed)[0])
    for _ in range(80):
        actions_list = random_actions(matches, obs_list, generator)
        answer = matches.step(actions_list)
        obs_list, rewards, terms, truncs, infos = answer
        assert [len(part) for part in answer] == [3] * 5
        for number, env in enumerate(plain):
            obs, reward, terminated, truncated, _ = env.step(actions_list[number])
            assert rewards[number] == {agent: np.float32(value) for agent, value in reward.items()}
            assert (terms[number], truncs[number]) == (terminated, truncated)
            for agent in terminated:
                if terminated[agent]:
                    np.testing.assert_array_equal(infos[number][agent]["final_obs"], obs[agent])
            if env.agents:
                same(obs_list[number], obs)
            else:
                ends += 1
                same(obs_list[number], env.reset()[0])
    assert ends > 2


def same(found, expected):
    assert found.keys() == expected.keys()
    for agent, obs in expected.items():
        np.testing.assert_array_equal(found[agent], obs)


def test_chosen_environments_begin_anew(matches):
    """E18: reset(seeds, indices) answers for these only, and leaves the others alone."""
    matches.reset(seeds=[1, 2, 3])
    generator = np.random.default_rng(0)
    obs_list, _ = matches.reset(seeds=[1, 2, 3])
    obs_list, *_ = matches.step(random_actions(matches, obs_list, generator))
    begun, infos = matches.reset(seeds=[8, 9], indices=[2, 0])
    assert (len(begun), len(infos)) == (2, 2)
    same(begun[0], SkirmishEnv(CONFIG).reset(seed=8)[0])
    same(begun[1], SkirmishEnv(CONFIG).reset(seed=9)[0])
    obs_list[2], obs_list[0] = begun
    assert len(matches.step(random_actions(matches, obs_list, generator))[0]) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda given: given[:2], "2 dicts of actions came for 3 environments"),
        (lambda given: [*given, given[0]], "4 dicts of actions came for 3"),
        (
            lambda given: [given[0], {"blue_0": given[1]["blue_0"]}, given[2]],
            r"env 1 lack \['blue_1', 'red_0', 'red_1'\]",
        ),
        (
            lambda given: [{**given[0], "green_7": 0}, *given[1:]],
            r"env 0 name \['green_7'\], whom nobody here controls",
        ),
        (lambda given: [{**given[0], "blue_0": [0]}, *given[1:]], "do not fit together"),
    ],
)
def test_actions_that_do_not_match_the_agents_are_refused_before_anything_is_sent(matches, change, message):
    """EB8: zip stops at the shorter list and says nothing; this does not."""
    seen, _ = matches.reset(seeds=[1, 2, 3])
    good = random_actions(matches, seen, np.random.default_rng(0))
    with pytest.raises(EnvError, match=message):
        matches.step(change(good))
    assert len(matches.step(good)) == 5


class Walk(gym.Env):
    """A single agent, an action in two parts, an end after three steps."""

    observation_space = spaces.Dict({"at": spaces.Box(-9, 9, (1,), np.float32)})
    action_space = spaces.Dict({"go": spaces.Discrete(2), "how": spaces.Tuple([spaces.Box(-1, 1, (1,), np.float32)])})

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return {"at": np.zeros(1, dtype=np.float32)}, {}

    def step(self, action):
        self.t += action["go"]
        return (
            {"at": np.array([self.t], dtype=np.float32)},
            float(action["how"][0][0]),
            self.t == 3,
            False,
            {"t": self.t},
        )


def test_environments_of_one_agent_call_it_agent_0():
    """E18, E20: rows and names may be mixed; what is returned is the caller's to keep."""
    with VectorEnv(2, Walk, num_workers=1, start_method="forkserver") as env:
        env.reset(seeds=[0, 0])
        stay, go = ({"agent_0": {"go": go, "how": (np.array([0.5]),)}} for go in (0, 1))
        obs_list, rewards, terms, _, _ = env.step([go, stay])
        env.step({"go": np.array([1, 0]), "how": (np.zeros((2, 1)),)})
        assert (obs_list[0]["agent_0"]["at"].tolist(), rewards[0], terms[0]) == (
            [1],
            {"agent_0": 0.5},
            {"agent_0": False},
        )
        obs_list, _, terms, truncs, infos = env.step([go, stay])
        assert (terms, truncs) == ([{"agent_0": True}, {"agent_0": False}], [{"agent_0": False}] * 2)
        assert obs_list[0]["agent_0"]["at"].tolist() == [0]
        assert infos[0]["agent_0"] == {"t": 3, "final_obs": {"at": np.array([3], dtype=np.float32)}}
        assert infos[1] == {"agent_0": {}}


class Late:
    """PettingZoo's parallel interface by its looks: `b` comes at step 2, all end at step 3."""

    possible_agents = ("a", "b")

    def observation_space(self, agent):
        return spaces.Box(0, 9, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def _seen(self):
        return {agent: np.array([self.t], dtype=np.float32) for agent in self.agents}

    def reset(self, seed=None, options=None):
        self.t, self.agents = 0, ["a"]
        return self._seen(), {"a": {}}

    def step(self, actions):
        assert list(actions) == self.agents
        acting, self.t = self.agents, self.t + 1
        self.agents = ["a", "b"] if self.t == 2 else list(acting)
        over = dict.fromkeys(acting, self.t == 3)
        answer = self._seen(), dict.fromkeys(acting, 1.0), over, dict.fromkeys(acting, False), {}
        self.agents = [] if self.t == 3 else self.agents
        return answer


def test_agents_are_shown_asked_and_paid_only_while_they_are_there():
    """E18, EB4: one that comes late is nobody until then, after a reset as after an episode's end."""
    with VectorEnv(2, Late, num_workers=1, start_method="forkserver") as env:
        seen, infos = env.reset(seeds=[0, 0])
        for _ in range(2):
            assert ([list(one) for one in seen], [list(one) for one in infos]) == ([["a"]] * 2, [["a"]] * 2)
            with pytest.raises(EnvError, match=r"Give one action to each .*\['a'\]"):
                env.step([{}, {}])
            for there_next in (["a"], ["a", "b"]):
                seen, rewards, *_ = env.step([{"a": 0}] * 2)
                assert rewards == [{"a": 1.0}] * 2
                assert [list(one) for one in seen] == [there_next] * 2
            with pytest.raises(EnvError, match=r"env 0 lack \['b'\], who are there"):
                env.step([{"a": 0}] * 2)
            seen, rewards, terms, _, infos = env.step([{"a": 0, "b": 1}] * 2)
            assert (rewards, terms) == ([{"a": 1.0, "b": 1.0}] * 2, [{"a": True, "b": True}] * 2)
            seen = [{agent: obs for agent, obs in one.items() if agent == "a"} for one in seen]
            infos = [{"a": one["a"]} for one in infos]


def test_seed_and_seeds_together_are_refused(matches):
    with pytest.raises(EnvError, match="both seed and seeds"):
        matches.reset(4, seeds=[1, 2, 3])


class Dying(Walk):
    def step(self, action):
        if action["go"]:
            raise SystemExit
        return super().step(action)


def test_agents_of_a_failed_worker_are_truncated_and_told_so():
    """A1, E18."""
    with VectorEnv(2, Dying, num_workers=2, restarts=1, start_method="forkserver", check=False) as env:
        env.reset(seeds=[0, 0])
        stay, go = ({"agent_0": {"go": go, "how": (np.array([0.5]),)}} for go in (0, 1))
        obs_list, rewards, terms, truncs, infos = env.step([stay, go])
        assert (rewards, terms) == ([{"agent_0": 0.5}, {"agent_0": 0.0}], [{"agent_0": False}] * 2)
        assert truncs == [{"agent_0": False}, {"agent_0": True}]
        assert infos == [{"agent_0": {}}, {"agent_0": {"worker_failed": True}}]
        assert [seen["agent_0"]["at"].tolist() for seen in obs_list] == [[0], [0]]
