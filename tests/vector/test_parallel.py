"""AgentsVectorEnv against scripts in which all that must happen is known beforehand, and through the collector."""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from twostep import AgentConfig, PPOConfig, PPOTrainer, make_policy
from twostep.collect.collector import RolloutCollector
from twostep.errors import EnvError
from twostep.protocols import RowEnv, Step
from twostep.tree import tree_map
from twostep.vector import AgentsVectorEnv, as_env, row_seeds

AGENTS = ("a", "b", "c")
NUM_CHOICES = 3


@dataclass(frozen=True)
class Stay:
    """When an agent is there: it sees steps `first` to `last`, and its action at `last` ends it."""

    first: int
    last: int
    ending: str = "terminated"


Episode = dict[str, tuple[Stay, ...]]
Script = tuple[Episode, ...]


def staying(episode: Episode, agent: str, step: int) -> Stay | None:
    """Return the stay of an agent that acts after having seen so many steps."""
    return next((stay for stay in episode.get(agent, ()) if stay.first <= step <= stay.last), None)


def seen(number: int, agent: str, episode: int, step: int) -> np.ndarray:
    """Return what an agent sees, which tells who, where and when."""
    return np.array([number, AGENTS.index(agent), episode, step], dtype=np.float32) / 8


def paid(agent: str, step: int, action: int) -> float:
    return 0.5 * AGENTS.index(agent) + 0.1 * step + action


def allowed(number: int, agent: str, step: int) -> np.ndarray:
    mask = np.arange(NUM_CHOICES) != (number + AGENTS.index(agent) + step) % NUM_CHOICES
    return mask.astype(np.int8)


class Party:
    """Agents come and go as the script says; PettingZoo's parallel interface by its looks alone.

    With `ghosts` those who have left are still asked, seen, paid and flagged, until nobody is left.
    """

    possible_agents = list(AGENTS)  # noqa: RUF012 - as PettingZoo's environments have it

    def __init__(self, script: Script, number: int = 0, *, ghosts: float | None = None, masks: bool = False) -> None:
        self.script, self.number, self.ghosts, self.masks = script, number, ghosts, masks
        self.episode, self.step_number = -1, 0
        self.agents: list[str] = []
        self.gone: set[str] = set()
        self.seeds: list[int | None] = []
        self.actions: list[dict[str, Any]] = []
        self.closed = 0

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-np.inf, np.inf, (4,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(NUM_CHOICES)

    @property
    def play(self) -> Episode:
        return self.script[self.episode % len(self.script)]

    def _there(self) -> list[str]:
        return [agent for agent in AGENTS if staying(self.play, agent, self.step_number)]

    def _obs(self, agents: Any) -> dict[str, np.ndarray]:
        return {agent: seen(self.number, agent, self.episode, self.step_number) for agent in agents}

    def _infos(self, agents: Any) -> dict[str, dict[str, Any]]:
        masks = {agent: {"action_mask": allowed(self.number, agent, self.step_number)} for agent in agents}
        return {agent: {"step": self.step_number} | (masks[agent] if self.masks else {}) for agent in agents}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.seeds.append(seed)
        self.episode, self.step_number, self.gone = self.episode + 1, 0, set()
        self.agents = self._there()
        return self._obs(self.agents), self._infos(self.agents)

    def step(self, actions: dict[str, Any]) -> Any:
        assert list(actions) == self.agents, "everyone in env.agents acts, and nobody else"
        self.actions.append(dict(actions))
        step, acting = self.step_number, self._there()
        stays = {agent: staying(self.play, agent, step) for agent in acting}
        ending = {agent: stay.ending if stay.last == step else "" for agent, stay in stays.items() if stay}
        self.step_number += 1
        there = self._there()
        heard = list(dict.fromkeys([*acting, *there]))
        obs, infos = self._obs(heard), self._infos(heard)
        rewards = {agent: paid(agent, step, actions[agent]) for agent in acting}
        terminations = {agent: ending[agent] in ("terminated", "both") for agent in acting}
        truncations = {agent: ending[agent] in ("truncated", "both") for agent in acting}
        self.agents = there
        self.gone = (self.gone | set(acting)) - set(there)
        if self.ghosts is not None and there:
            late = [agent for agent in AGENTS if agent in self.gone and agent not in acting]
            self.agents = [agent for agent in AGENTS if agent in there or agent in self.gone]
            obs |= {agent: np.full(4, self.ghosts, np.float32) for agent in late}
            rewards |= dict.fromkeys(late, self.ghosts)
            terminations |= dict.fromkeys(late, True)
            truncations |= dict.fromkeys(late, False)
            infos |= {agent: {"action_mask": np.zeros(NUM_CHOICES, np.int8)} for agent in late}
        return obs, rewards, terminations, truncations, infos

    def close(self) -> None:
        self.closed += 1


class Plain:
    """Plays the others: always the last choice; tells whom it was asked for and when it was reset."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, str]] = []
        self.resets: list[int] = []

    def act(self, env: Any, agent_id: str) -> int:
        self.asked.append((env, agent_id))
        return NUM_CHOICES - 1

    def reset(self, env: Any) -> None:
        self.resets.append(env.episode)


def stays_of_one() -> st.SearchStrategy[tuple[Stay, ...]]:
    endings = st.sampled_from(["terminated", "truncated", "both"])
    pieces = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), endings), max_size=3)

    def laid_out(found: list[tuple[int, int, str]]) -> tuple[Stay, ...]:
        stays, at = [], 0
        for gap, length, ending in found:
            first = at + gap
            stays.append(Stay(first, first + length, ending))
            at = first + length + 2  # gone for a step at least
        return tuple(stays)

    return pieces.map(laid_out)


def episodes() -> st.SearchStrategy[Episode]:
    whole = st.dictionaries(st.sampled_from(AGENTS), stays_of_one(), min_size=1)
    return whole.map(lambda episode: episode | {"b": (Stay(0, 3, "truncated"), *later(episode.get("b", ())))})


def later(stays: tuple[Stay, ...]) -> tuple[Stay, ...]:
    return tuple(Stay(stay.first + 5, stay.last + 5, stay.ending) for stay in stays)


SCRIPTS = st.lists(episodes(), min_size=1, max_size=3).map(tuple)


class Expected:
    """What the rows of one environment must show, worked out from its script alone."""

    def __init__(self, script: Script, number: int, agent_ids: tuple[str, ...]) -> None:
        self.script, self.number, self.agent_ids = script, number, agent_ids
        self.episode, self.step_number, self.came = 0, 0, False

    def now(self) -> tuple[Episode, list[str]]:
        play = self.script[self.episode % len(self.script)]
        return play, [agent for agent in self.agent_ids if staying(play, agent, self.step_number)]

    def after_reset(self) -> dict[str, dict[str, Any]]:
        self.came = bool(self.now()[1])
        return {agent: {"start": True, "obs": self.obs(agent)} for agent in self.agent_ids}

    def obs(self, agent: str) -> np.ndarray:
        there = agent in self.now()[1]
        return seen(self.number, agent, self.episode, self.step_number) if there else np.zeros(4, np.float32)

    def after(self, actions: dict[str, int]) -> dict[str, dict[str, Any]]:
        play, acting = self.now()
        step, episode = self.step_number, self.episode
        self.step_number += 1
        _, there = self.now()
        anyone = any(staying(play, agent, self.step_number) for agent in AGENTS)
        self.came = self.came or bool(there)
        over = not anyone or (self.came and not there)
        rows: dict[str, dict[str, Any]] = {agent: {"start": over} for agent in self.agent_ids}
        for agent in acting:
            stay = staying(play, agent, step)
            assert stay is not None
            ending = stay.ending if stay.last == step else ""
            row = rows[agent]
            row |= {"valid": True, "reward": paid(agent, step, actions[agent])}
            row |= {"terminated": ending in ("terminated", "both"), "truncated": ending in ("truncated", "both")}
            if ending:
                row["final"] = seen(self.number, agent, episode, self.step_number)
                row["info"] = {"step": self.step_number}
        for agent in set(there) - set(acting):
            rows[agent]["start"] = True
        if over:
            self.episode, self.step_number = self.episode + 1, 0
            self.came = bool(self.now()[1])
        for agent in self.agent_ids:
            rows[agent]["obs"] = self.obs(agent)
        return rows


def assert_shows(step: Step, rows: list[dict[str, Any]], first: bool = False) -> None:
    """Compare every number of a step with what the rows must show."""
    np.testing.assert_array_equal(step.obs, np.stack([row["obs"] for row in rows]))
    assert step.episode_starts.tolist() == [row["start"] for row in rows]
    if first:
        assert (step.rewards, step.valid, step.final_rows) == (None, None, None)
        return
    assert step.valid.tolist() == [row.get("valid", False) for row in rows]
    np.testing.assert_allclose(step.rewards, [row.get("reward", 0.0) for row in rows], rtol=1e-6)
    assert step.terminated.tolist() == [row.get("terminated", False) for row in rows]
    assert step.truncated.tolist() == [row.get("truncated", False) for row in rows]
    ended = [number for number, row in enumerate(rows) if "final" in row]
    assert ([] if step.final_rows is None else step.final_rows.tolist()) == ended
    assert step.infos == {number: rows[number]["info"] for number in ended}
    if ended:
        np.testing.assert_array_equal(step.final_obs, np.stack([rows[number]["final"] for number in ended]))


@settings(max_examples=60, deadline=None)
@given(
    scripts=st.lists(SCRIPTS, min_size=1, max_size=3),
    agent_ids=st.sampled_from([("a", "b", "c"), ("b",), ("c", "b"), ("a",), ("c", "a")]),
    ghosts=st.sampled_from([None, 0.0, float("nan"), float("inf"), 3e38]),
)
def test_every_row_shows_what_the_script_says(scripts: list[Script], agent_ids: Any, ghosts: float | None) -> None:
    """EB3, EB4, EB12, G25: agents that come late, leave early and come again, alone or together, by either ending.

    Environments that go on talking about the dead, in whatever numbers, are no different from those that do not.
    """
    opponents: list[Plain] = []

    def opponent() -> Plain:
        opponents.append(Plain())
        return opponents[-1]

    envs = [Party(script, number, ghosts=ghosts) for number, script in enumerate(scripts)]
    needs_opponent = len(agent_ids) < len(AGENTS)
    env = AgentsVectorEnv(envs, agent_ids=agent_ids, opponent=opponent if needs_opponent else None, check=False)
    expected = [Expected(script, number, agent_ids) for number, script in enumerate(scripts)]
    assert_shows(env.reset(3), [row for one in expected for row in one.after_reset().values()], first=True)
    rng = np.random.default_rng(0)
    for _ in range(40):
        actions = rng.integers(NUM_CHOICES, size=env.num_rows)
        rows: list[dict[str, Any]] = []
        for number, one in enumerate(expected):
            own = actions[number * env.rows_per_env :].tolist()
            rows += one.after(dict(zip(agent_ids, own, strict=False))).values()
        assert_shows(env.step(actions), rows)
    assert len(opponents) == (len(envs) if needs_opponent else 0)
    for one, plain in zip(envs, opponents, strict=False):
        assert {id(asked) for asked, _ in plain.asked} <= {id(one)}, "one opponent per environment"
        assert not {agent for _, agent in plain.asked} & set(agent_ids)
        assert plain.resets == list(range(one.episode + 1)), "reset at the start of every episode"


def party(*scripts: Script, **settings: Any) -> AgentsVectorEnv:
    return AgentsVectorEnv([Party(script, number, **settings) for number, script in enumerate(scripts)], check=False)


def steps(env: AgentsVectorEnv, number: int) -> None:
    for _ in range(number):
        env.step(np.zeros(env.num_rows, dtype=int))


FOREVER: Script = ({agent: (Stay(0, 10**6),) for agent in AGENTS},)
SHORT: Script = ({"a": (Stay(0, 1),), "b": (Stay(0, 3, "truncated"),), "c": (Stay(2, 3),)},)


def test_describes_itself_and_follows_the_protocol() -> None:
    env: RowEnv = party(FOREVER, FOREVER)
    assert isinstance(env, AgentsVectorEnv)
    assert (env.num_envs, env.rows_per_env, env.num_rows) == (2, 3, 6)
    assert env.agent_ids == env.possible_agents == AGENTS
    assert env.spec_name == "Party"
    assert env.observation_space == spaces.Box(-np.inf, np.inf, (4,), np.float32)
    assert env.action_space == spaces.Discrete(NUM_CHOICES)


def test_agents_that_ended_but_are_asked_get_a_neutral_action() -> None:
    """EB4: nothing that the policy or an opponent does reaches an agent that is gone."""
    plain = Plain()
    one = Party(SHORT, ghosts=0.0)
    env = AgentsVectorEnv([one], agent_ids=["b", "c"], opponent=lambda: plain, check=False)
    env.reset(0)
    for _ in range(4):
        env.step(np.array([1, 1]))
    assert one.actions == [{"a": 2, "b": 1}, {"a": 2, "b": 1}, {"a": 0, "b": 1, "c": 1}, {"a": 0, "b": 1, "c": 1}]
    assert len(plain.asked) == 2


class Shy(Party):
    """Lists everybody from the start, but shows nothing to `b` before the second step."""

    def _obs(self, agents: Any) -> Any:
        return {agent: obs for agent, obs in super()._obs(agents).items() if agent != "b" or self.step_number > 1}

    def step(self, actions: dict[str, Any]) -> Any:
        obs, rewards, terminations, truncations, infos = super().step(actions)
        return obs, {"a": rewards["a"], "b": rewards["b"]}, terminations, truncations, infos


def test_agents_that_have_seen_nothing_yet_are_not_acted_for() -> None:
    """EB4: neither the policy nor an opponent plays for a controlled agent without an observation."""
    plain = Plain()
    one = Shy(FOREVER)
    env = AgentsVectorEnv([one], agent_ids=["a", "b"], opponent=lambda: plain, check=False)
    assert env.reset(0).obs[1].tolist() == [0, 0, 0, 0]
    found = [env.step(np.array([1, 1])) for _ in range(2)]
    assert (found[1].valid.tolist(), found[1].episode_starts.tolist()) == ([True, False], [False, True])
    assert env.step(np.array([1, 1])).valid.tolist() == [True, True]
    assert [actions["b"] for actions in one.actions] == [0, 0, 1]
    assert {agent for _, agent in plain.asked} == {"c"}


def test_seeds_reach_environments_as_those_of_all_vectors() -> None:
    env = AgentsVectorEnv([Party(SHORT), Party(SHORT)], seed=5, check=False)
    env.reset()
    env.reset()
    env.reset(7)
    env.reset([1, 2])
    expected = [row_seeds(5, 2), [None, None], row_seeds(7, 2), [1, 2]]
    assert [list(pair) for pair in zip(*(one.seeds for one in env.envs), strict=True)] == expected
    unseeded = [AgentsVectorEnv([Party(SHORT)], check=False) for _ in range(2)]
    for one in unseeded:
        one.reset()
    assert unseeded[0].envs[0].seeds != unseeded[1].envs[0].seeds


def test_some_environments_can_start_anew_while_the_others_go_on() -> None:
    """E18: the step that comes back holds all rows; only those of the new episodes begin."""
    env = party(FOREVER, FOREVER, FOREVER)
    with pytest.raises(EnvError, match="before all environments have begun"):
        env.reset(indices=[0])
    env.reset(0)
    env.step(np.zeros(9, dtype=int))
    step = env.reset([41, 42], indices=[2, 0])
    assert step.episode_starts.tolist() == [True] * 3 + [False] * 3 + [True] * 3
    assert [one.seeds[1:] for one in env.envs] == [[42], [], [41]]
    assert (step.obs[:, 3] * 8).tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0]
    late = party(SHORT)
    late.reset(0)
    steps(late, 2)
    assert late.reset(indices=[0]).obs[2].tolist() == [0, 0, 0, 0], "c was there, and is not at the start"
    env.reset(9, indices=[1])
    assert env.envs[1].seeds[-1] == row_seeds(9, 3)[1]
    for seeds, indices, message in (
        ([1], [0, 1], "1 seeds came for 2 environments"),
        (None, [3], "indices=\\[3\\], but each must be one of the 3"),
        (None, [1, 1], "named once"),
        (-1, None, "seed=-1, but seeds must be 0 or more"),
    ):
        with pytest.raises(EnvError, match=message):
            env.reset(seeds, indices)


def test_methods_and_attributes_of_all_or_some_environments() -> None:
    env = party(FOREVER, SHORT)
    assert env.call("number") == [0, 1]
    assert env.call("action_space", "a", indices=[1]) == [spaces.Discrete(NUM_CHOICES)]

    class Wrapped:
        def __init__(self, inner: Party) -> None:
            self.unwrapped, self.possible_agents = inner, inner.possible_agents
            self.reset, self.step = inner.reset, inner.step
            self.observation_space, self.action_space = inner.observation_space, inner.action_space
            self.agents = AGENTS

    with pytest.raises(AttributeError, match="'Party' object has no attribute 'nombre'"):
        env.call("nombre")
    hidden = AgentsVectorEnv([Wrapped(Party(FOREVER, 4))], check=False)
    assert hidden.call("number") == [4]
    hidden.close()


def test_closes_everything_once_even_where_one_raises() -> None:
    env = party(FOREVER, FOREVER)
    inner = list(env.envs)

    def broken() -> None:
        raise RuntimeError("the lights stay on")

    inner[1].close = broken
    with pytest.raises(RuntimeError, match="the lights stay on"):
        env.close()
    env.close()
    assert inner[0].closed == 1


def test_what_cannot_work_is_refused_and_what_was_made_is_closed() -> None:
    made: list[Party] = []

    def make(number: int = 0) -> Party:
        made.append(Party(FOREVER, number))
        return made[-1]

    given = Party(FOREVER)
    with pytest.raises(EnvError, match=r"agent_ids names 'blu', which is no agent.*There are a, b, c"):
        AgentsVectorEnv([given, make], agent_ids=["blu"], check=False)
    assert [one.closed for one in made] == [1]
    assert given.closed == 0
    with pytest.raises(EnvError, match=r"Nobody plays b, c.*has no make_opponent"):
        AgentsVectorEnv([make], agent_ids="a", check=False)
    with pytest.raises(EnvError, match="0 environments were given"):
        AgentsVectorEnv([], check=False)
    with pytest.raises(EnvError, match="listed more than once among 2"):
        AgentsVectorEnv([given, given], check=False)
    other = Party(FOREVER)
    other.possible_agents = ["a", "b"]
    with pytest.raises(EnvError, match=r"env 1 has the agents \['a', 'b'\], but env 0 has \['a', 'b', 'c'\]"):
        AgentsVectorEnv([given, other], check=False)
    wider = Party(FOREVER)
    wider.action_space = lambda agent: spaces.Discrete(5)
    with pytest.raises(EnvError, match=r"env 1 has action_space\('a'\) Discrete\(5\), but env 0 has Discrete\(3\)"):
        AgentsVectorEnv([given, wider], check=False)


def test_actions_must_come_one_per_row() -> None:
    """EB8: too few actions are an error at once."""
    env = party(FOREVER, FOREVER)
    with pytest.raises(EnvError, match="step was called before reset"):
        env.step(np.zeros(6, dtype=int))
    env.reset(0)
    with pytest.raises(EnvError, match=r"2 actions came for 6 rows \(2 environments of 3 agents\)"):
        env.step(np.zeros(2, dtype=int))


class Own(Party):
    """An environment that says whom a policy controls and who plays the others."""

    default_agent_ids = "b*"

    def make_opponent(self) -> Plain:
        return Plain()


def test_an_environment_may_say_itself_who_is_controlled_and_who_plays_the_rest() -> None:
    """E11, E12: `agent_ids` decides; without it the environment's own wish does, else all agents are controlled."""
    assert AgentsVectorEnv([Own(FOREVER)], check=False).agent_ids == ("b",)
    assert AgentsVectorEnv([Own(FOREVER)], agent_ids="*", check=False).agent_ids == AGENTS
    assert AgentsVectorEnv([Own(FOREVER)], agent_ids=["c", "a"], check=False).agent_ids == ("c", "a")
    assert AgentsVectorEnv([Party(FOREVER)], check=False).agent_ids == AGENTS


class Broken(Party):
    """Goes wrong at its fourth step, in a way of its own."""

    def __init__(self, fault: str) -> None:
        super().__init__(SHORT if fault == "shrinks" else FOREVER)
        self.fault = fault

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if self.fault == "shrinks" and self.episode == 0:
            self.possible_agents = ["a", "b"]
        if self.fault == "nobody" and self.episode == 0:
            self.agents = []
            return {}, {}
        return super().reset(seed)

    def step(self, actions: dict[str, Any]) -> Any:
        obs, rewards, terminations, truncations, infos = super().step(actions)
        if self.step_number == 4:
            if self.fault == "vanishes":
                self.agents = ["a", "c"]
            if self.fault == "no observation":
                del obs["b"]
            if self.fault == "cut unseen":
                del obs["b"]
                truncations["b"] = True
            if self.fault == "no reward":
                del rewards["b"]
            if self.fault == "wide":
                obs["b"] = np.zeros(5, np.float32)
            if self.fault == "own":
                raise ZeroDivisionError("no more air")
            if self.fault == "nobody":
                terminations = dict.fromkeys(AGENTS, True)
                self.agents = []
        return obs, rewards, terminations, truncations, infos


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("vanishes", "b is no longer in env.agents, but was neither terminated nor truncated"),
        ("no observation", "b goes on, but step returned no observation of it"),
        ("cut unseen", "b was truncated, but step returned no observation of it"),
        ("no reward", "what came back cannot be stored: KeyError: 'b'"),
        ("wide", "what came back cannot be stored: ValueError"),
        ("shrinks", "env.possible_agents had 3 agents and now has 2"),
        ("nobody", "env.agents is empty after a reset"),
    ],
)
def test_what_breaks_on_the_way_is_one_error_with_its_place(fault: str, message: str) -> None:
    """G25: the environment, its seed, episode and step are named."""
    env = AgentsVectorEnv([Party(FOREVER), Broken(fault)], check=False)
    env.reset([6, 7])
    with pytest.raises(EnvError, match=rf"env 1 \(seed 7\), episode \d, step \d of it, in (re)?s.*{message}"):
        steps(env, 4)


def test_errors_of_the_environment_itself_keep_their_type() -> None:
    env = AgentsVectorEnv([Broken("own")], check=False)
    env.reset([7])
    kind = ZeroDivisionError if sys.version_info >= (3, 11) else EnvError
    with pytest.raises(kind, match="no more air") as caught:
        steps(env, 4)
    told = getattr(caught.value, "__notes__", [str(caught.value)])[0]
    assert "env 0 (seed 7), episode 1, step 4 of it, in step({'a': 0, 'b': 0, 'c': 0})" in told


def test_masks_come_from_infos_and_allow_everything_where_nobody_is() -> None:
    env = party(SHORT, SHORT, masks=True)
    step = env.reset(0)
    for number in (1, 2, 3, 0):
        for row, mask in enumerate(step.action_masks):
            one, agent = divmod(row, 3)
            here = staying(SHORT[0], AGENTS[agent], number - 1 if number else 3)
            assert mask.tolist() == (allowed(one, AGENTS[agent], (number - 1) % 4) if here else np.ones(3)).tolist()
        step = env.step(np.zeros(6, dtype=int))
    inner = env.envs[1]
    inner.masks = False
    with pytest.raises(EnvError, match=r"env 1, a: info has no 'action_mask' now, but infos had"):
        env.reset(0)


class MaskInObs(Party):
    """Has its masks in its observations, as many of PettingZoo's environments do."""

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        mask = spaces.Box(0, 1, (NUM_CHOICES,), np.int8)
        return spaces.Dict({"observation": super().observation_space(agent), "action_mask": mask})

    def _obs(self, agents: Any) -> Any:
        masks = {agent: allowed(self.number, agent, self.step_number) for agent in agents}
        plain = super()._obs(agents)
        return {agent: {"observation": plain[agent], "action_mask": masks[agent]} for agent in agents}


def test_masks_in_observations_are_found_too() -> None:
    env = AgentsVectorEnv([MaskInObs(SHORT)])
    step = env.reset(0)
    assert step.action_masks.tolist() == [*(allowed(0, agent, 0).tolist() for agent in "ab"), [True] * 3]
    env.step(np.zeros(3, dtype=int))
    step = env.step(np.zeros(3, dtype=int))
    assert step.action_masks.tolist() == [[True] * 3, *(allowed(0, agent, 2).tolist() for agent in "bc")]
    assert step.obs["action_mask"][0].tolist() == [0, 0, 0]


# ---------------------------------------------------------------------------- through the collector


def lively(env: Any, **agent: Any) -> Any:
    """Return a net whose heads say something different everywhere."""
    policy = make_policy(env, AgentConfig(**{"hidden_size": 8, "memory_size": 5, **agent}), seed=1)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return policy


def slow_stays(script: Script, agent_ids: tuple[str, ...], num_steps: int) -> list[dict[str, Any]]:
    """List every stay of every controlled agent of one environment, with its steps of the rollout."""
    one = Expected(script, 0, agent_ids)
    one.after_reset()
    running: dict[str, dict[str, Any]] = {}
    found: list[dict[str, Any]] = []
    for t in range(num_steps):
        for agent in one.now()[1]:
            if agent not in running:
                running[agent] = {"agent": agent, "episode": one.episode, "steps": [], "times": [], "ending": ""}
                found.append(running[agent])
            running[agent]["steps"].append(one.step_number)
            running[agent]["times"].append(t)
        for agent, row in one.after(dict.fromkeys(agent_ids, 0)).items():
            if "final" in row:
                cut = row["truncated"] and not row["terminated"]
                running.pop(agent)["ending"] = "truncated" if cut else "terminated"
    return found


def values_of_stay(policy: Any, stay: dict[str, Any], number: int, masks: bool) -> tuple[list[float], Any]:
    """Let one agent live alone: its values, that of the state behind its last action included, and what it might do."""
    state, values, distributions = policy.initial_state(1), [], []
    for at, step in enumerate([*stay["steps"], stay["steps"][-1] + 1]):
        obs = torch.from_numpy(seen(number, stay["agent"], stay["episode"], step))[None, None]
        mask = torch.from_numpy(allowed(number, stay["agent"], step)).bool()[None, None]
        given = {"action_masks": mask} if masks and at < len(stay["steps"]) else {}
        output = policy(obs, state, torch.tensor([[at == 0]]), **given)
        state = output.state
        values.append(float(output.values))
        distributions.append(output.distribution)
    return values, distributions


def slow_advantages(rewards: list[float], values: list[float], ending: str, gamma: float, lam: float) -> list[float]:
    """Work advantages out backwards; `values` has one more entry than `rewards`."""
    advantage, advantages = 0.0, []
    for t in reversed(range(len(rewards))):
        last = t == len(rewards) - 1
        reached = 0.0 if last and ending == "terminated" else values[t + 1]
        advantage = rewards[t] + gamma * reached - values[t] + gamma * lam * advantage
        advantages.append(advantage)
    return advantages[::-1]


@settings(max_examples=30, deadline=None)
@given(
    scripts=st.lists(SCRIPTS, min_size=1, max_size=2),
    agent_ids=st.sampled_from([("a", "b", "c"), ("c", "b")]),
    memory=st.sampled_from(["none", "gru"]),
    masks=st.booleans(),
)
@torch.no_grad()
def test_rollouts_equal_agents_that_live_alone(scripts: Any, agent_ids: Any, memory: Any, masks: bool) -> None:
    """G26, EB3, EB4, MB2: values, log-probabilities, bootstraps, advantages and episodes of two rollouts in a row.

    The reference lets each agent live its stay alone, with empty memory at its start, and knows nothing of rows. A
    rollout that ends in the middle is bootstrapped with the value of the state it ended in; so is an agent that is cut
    while the others go on.
    """
    gamma, lam, length = 0.9, 0.8, 13
    makers = [lambda s=script, n=number: Party(s, n, masks=masks) for number, script in enumerate(scripts)]
    opponent = Plain if len(agent_ids) < len(AGENTS) else None
    env = AgentsVectorEnv(makers, agent_ids=agent_ids, opponent=opponent, check=False)
    policy = lively(env, memory=memory)
    collector = RolloutCollector(env, policy, num_steps=length, bptt_length=5, seed=0, env_seed=0)
    rollouts = [collector.rollout() for _ in range(2)]
    counted = 0
    found = sorted((episode.row, n * length + episode.step) for n, r in enumerate(rollouts) for episode in r.episodes)
    ended: list[tuple[int, int]] = []
    for rollout in rollouts:
        rollout.compute_gae(gamma=gamma, gae_lambda=lam)
    for number, script in enumerate(scripts):
        for stay in slow_stays(script, agent_ids, 2 * length):
            row = number * len(agent_ids) + agent_ids.index(stay["agent"])
            values, distributions = values_of_stay(policy, stay, number, masks)
            if stay["ending"]:
                ended.append((row, stay["times"][-1]))
            total = 0.0
            for half, rollout in enumerate(rollouts):
                inside = [at for at, t in enumerate(stay["times"]) if t // length == half]
                if not inside:
                    continue
                times = [stay["times"][at] % length for at in inside]
                rewards = rollout.rewards[times, row].tolist()
                reached = [values[at] for at in [*inside, inside[-1] + 1]]
                ends_here = stay["ending"] if inside[-1] == len(stay["times"]) - 1 else ""
                advantages = slow_advantages(rewards, reached, ends_here, gamma, lam)
                actions = rollout.actions[times, row].tolist()
                logprobs = [
                    float(distributions[at].log_prob(torch.tensor([[action]])))
                    for at, action in zip(inside, actions, strict=True)
                ]
                assert rollout.valid[times, row].all()
                assert rewards == pytest.approx(
                    [paid(stay["agent"], stay["steps"][at], action) for at, action in zip(inside, actions, strict=True)]
                )
                assert rollout.values[times, row].tolist() == pytest.approx(reached[:-1], abs=2e-6)
                assert rollout.logprobs[times, row].tolist() == pytest.approx(logprobs, abs=1e-5)
                assert rollout.advantages[times, row].tolist() == pytest.approx(advantages, abs=1e-5)
                assert rollout.episode_starts[times, row].tolist() == [at == 0 for at in inside]
                counted += len(times)
                total += sum(rewards)
                if ends_here:
                    at = stay["times"][-1]
                    episode = next(e for e in rollout.episodes if (e.row, e.step) == (row, at % length))
                    assert episode.ret == pytest.approx(total, abs=1e-5)
                    assert episode.length == len(stay["times"])
    assert found == sorted(ended)
    assert counted == sum(int(rollout.valid.sum()) for rollout in rollouts), "nobody else counts"


HAUNTED: Script = (
    {"a": (Stay(0, 2),), "b": (Stay(0, 9, "truncated"),), "c": (Stay(3, 4, "truncated"), Stay(7, 8))},
    {"a": (Stay(1, 6, "truncated"),), "b": (Stay(0, 4),), "c": (Stay(0, 1),)},
)


def trained(ghosts: float | None, memory: str) -> tuple[PPOTrainer, dict[str, list[float]]]:
    env = AgentsVectorEnv([Party(HAUNTED, number, ghosts=ghosts) for number in range(3)], check=False)
    policy = make_policy(env, AgentConfig(hidden_size=8, memory=memory, memory_size=6), seed=0)
    config = PPOConfig(rollout_steps=24, bptt_length=6, update_epochs=2, normalize_obs=True, normalize_returns=True)
    trainer = PPOTrainer(policy, env, config, seed=0, device="cpu")
    history = trainer.train(400)
    return trainer, history


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_what_an_environment_says_of_the_dead_changes_nothing(memory: str) -> None:
    """EB4, R6: weights, normalisers and metrics are the same bit by bit, whatever numbers the dead come with."""
    clean, history = trained(None, memory)
    timed = ("collect_time", "learn_time", "steps_per_second")
    for ghosts in (float("nan"), 3e38):
        haunted, other = trained(ghosts, memory)
        for name, expected in clean.policy.state_dict().items():
            assert torch.equal(haunted.policy.state_dict()[name], expected), name
        assert repr(haunted.learner.state_dict()) == repr(clean.learner.state_dict())
        assert haunted.total_timesteps == clean.total_timesteps
        assert haunted.episode_rewards == clean.episode_rewards
        assert {name: repr(row) for name, row in other.items() if name not in timed} == {
            name: repr(row) for name, row in history.items() if name not in timed
        }


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -3e38, 1e6])
@pytest.mark.parametrize("memory", ["none", "gru"])
def test_numbers_in_rows_where_nobody_is_reach_no_weight(memory: str, poison: float) -> None:
    """EB4, R6: nor do they reach a metric or a normaliser, if a rollout should hold them."""

    def learned(poison: float | None) -> tuple[dict[str, float], Any, str]:
        env = AgentsVectorEnv([Party(HAUNTED, number) for number in range(3)], check=False)
        policy = make_policy(env, AgentConfig(hidden_size=8, memory=memory, memory_size=6), seed=0)
        config = PPOConfig(rollout_steps=24, bptt_length=6, normalize_obs=True, normalize_returns=True)
        trainer = PPOTrainer(policy, env, config, seed=0, device="cpu")
        rollout = trainer.collect_rollout()
        nobody = ~rollout.valid
        assert 0.2 < float(nobody.float().mean()) < 0.8
        if poison is not None:
            rollout.obs[nobody] = poison
            for name in ("rewards", "values", "next_values", "logprobs"):
                getattr(rollout, name)[nobody] = poison
            for name in ("terminated", "truncated"):
                getattr(rollout, name)[nobody] = True
        return trainer.learn(rollout), trainer.policy.state_dict(), repr(trainer.learner.state_dict())

    metrics, weights, learner = learned(None)
    other_metrics, other_weights, other_learner = learned(poison)
    assert repr(metrics) == repr(other_metrics)
    assert all(torch.equal(weights[name], other_weights[name]) for name in weights)
    assert learner == other_learner


def test_the_gradient_is_that_of_the_living_alone() -> None:
    """EB4: a rollout without its dead rows gives the same loss and, in one step, the same weights."""
    env = AgentsVectorEnv([Party(HAUNTED, number) for number in range(3)], check=False)
    policy = lively(env)
    config = PPOConfig(rollout_steps=24, update_epochs=1, num_minibatches=1, max_grad_norm=float("inf"))
    rollout = PPOTrainer(copy.deepcopy(policy), env, config, seed=0, device="cpu").collect_rollout()
    rollout.compute_gae(gamma=config.gamma, gae_lambda=config.gae_lambda)
    valid = rollout.valid
    living = copy.deepcopy(rollout)
    for name in ("obs", "actions", "logprobs", "values", "rewards", "next_values", "advantages", "returns"):
        setattr(living, name, tree_map(lambda leaf: leaf[valid][None], getattr(rollout, name)))
    for name in ("terminated", "truncated", "episode_starts", "valid"):
        setattr(living, name, getattr(rollout, name)[valid][None])
    results = []
    for data in (rollout, living):
        trainer = PPOTrainer(copy.deepcopy(policy), None, config, seed=0, device="cpu")
        metrics = trainer.learn(data)
        results.append((metrics, trainer.policy.state_dict()))
    (metrics, weights), (other_metrics, other_weights) = results
    for name in ("loss", "policy_loss", "value_loss", "entropy"):
        assert metrics[name] == pytest.approx(other_metrics[name], rel=1e-5, abs=1e-7), name
    for name, expected in weights.items():
        torch.testing.assert_close(other_weights[name], expected, rtol=1e-5, atol=1e-6)


def test_collect_rollout_takes_exactly_the_agents_of_the_rows() -> None:
    """E11, E12: `collect_rollout(vec_env, blue_ids)`; other agents than those the rows stand for are refused."""
    env = AgentsVectorEnv([Party(FOREVER)], agent_ids=["a", "b"], opponent=Plain, check=False)
    trainer = PPOTrainer(lively(env), env, PPOConfig(rollout_steps=4), seed=0, device="cpu")
    assert trainer.collect_rollout(env, ["b", "a"]).rewards.shape == (4, 2)
    assert trainer.collect_rollout(env, ["[ab]"]).rewards.shape == (4, 2)
    for wrong in (["a"], ["a", "c"], ["a", "b", "c"]):
        with pytest.raises(EnvError, match=r"rows stand for \['a', 'b'\].*Make it with agent_ids="):
            trainer.collect_rollout(env, wrong)
    with pytest.raises(EnvError, match="'d', which is no agent"):
        trainer.collect_rollout(env, ["a", "d"])


def test_a_trainer_takes_an_environment_of_many_agents_as_it_is() -> None:
    env = Party(FOREVER)
    trainer = PPOTrainer(lively(as_env(Party(FOREVER))), env, PPOConfig(rollout_steps=4), seed=0, device="cpu")
    assert trainer.collect_rollout().rewards.shape == (4, 3)
