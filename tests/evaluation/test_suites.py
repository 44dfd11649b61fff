"""A suite's scores are those of whole episodes of the policy that was asked about, against whom it was said."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
import types

import gymnasium as gym
import numpy as np
import pytest
import torch

from twostep import (
    BackgroundEvaluator,
    ConfigError,
    EnvError,
    PolicyEvaluator,
    PolicyStore,
    PPOConfig,
    SimulationCase,
    SimulationSuite,
    evaluate,
    functional_training_loop,
    make_env,
)
from twostep.config import TrainerConfig
from twostep.evaluation import CaseScores, SuiteScores
from twostep.evaluation.intervals import means_interval, rate_interval
from twostep.evaluation.picture import plot_suite
from twostep.evaluation.simulation import StoppedError
from twostep.protocols import PolicyOutput


def suite(cases=None, **settings):
    cases = cases or {"balance/cartpole": SimulationCase(env="CartPole-v1")}
    return SimulationSuite(cases=cases, **{"episodes": 5, "num_envs": 2, **settings})


def cartpole_policy(small_policy, seed=0, **agent):
    return small_policy(make_env("CartPole-v1"), seed=seed, **agent)


# ------------------------------------------------------------------ what is played


class _Chosen:
    """A distribution that is sure."""

    def __init__(self, actions):
        self.actions = actions

    def mode(self):
        return self.actions

    def sample(self, generator=None):
        return torch.zeros_like(self.actions)


class StepCounter(torch.nn.Module):
    """Answers how many steps it has seen since its episode began, which only its memory can tell."""

    def forward(self, obs, state, episode_starts):
        counts = torch.where(episode_starts[0], torch.zeros_like(state[0]), state[0])
        return PolicyOutput(_Chosen(counts[None].long()), torch.zeros_like(obs[..., 0]), (counts + 1,))

    def initial_state(self, batch):
        return (torch.full((batch,), 99.0),)

    def to_env(self, actions):
        return actions


class Metronome(gym.Env):
    """Worth 1 for every step whose number is said; episodes have lengths of their own."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(100)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_number, self.length = 0, int(self.np_random.integers(2, 9))
        return np.zeros(1, np.float32), {}

    def step(self, action):
        worth = float(action == self.step_number)
        self.step_number += 1
        over = self.step_number >= self.length
        return np.zeros(1, np.float32), worth, over, False, {"is_success": self.length > 4} if over else {}


@pytest.mark.parametrize("max_steps", [None, 5])
def test_memory_is_forgotten_at_every_episode(max_steps):
    """MB9: also where an episode is cut in the same step in which another environment's ends."""
    case = SimulationCase(env=Metronome, episodes=60, num_envs=7, max_steps=max_steps)
    scores = PolicyEvaluator(suite({"rhythm": case})).evaluate(StepCounter()).cases["rhythm"]
    assert len(scores.returns) == 60
    assert scores.returns == [float(length) for length in scores.lengths]
    assert max(scores.lengths) == (max_steps or 8)
    assert (scores.cut > 0) is (max_steps is not None)


def test_success_is_counted_and_an_episode_that_was_cut_had_none():
    """M1: a rate of wins where the environment tells, by whatever name."""
    plain = PolicyEvaluator(suite({"rhythm": SimulationCase(env=Metronome, episodes=40)})).evaluate(StepCounter())
    case = plain.cases["rhythm"]
    assert case.results == [float(length > 4) for length in case.lengths]
    assert plain["rhythm"] == case.score == case.win_rate == case.wins / 40
    cut = PolicyEvaluator(suite({"rhythm": SimulationCase(env=Metronome, max_steps=3)})).evaluate(StepCounter())
    assert set(cut.cases["rhythm"].results) == {0.0}


def test_the_same_episodes_as_evaluating_alone(small_policy):
    """M1: `evaluate` is the oracle for a case without more."""
    policy = cartpole_policy(small_policy)
    scored = PolicyEvaluator(suite(episodes=7, num_envs=3, seed=5)).evaluate(policy).cases["balance/cartpole"]
    seed = suite(seed=5).seed_of("balance/cartpole")
    alone = evaluate(policy, make_env("CartPole-v1", 3), 7, seed)
    assert (scored.returns, scored.lengths) == (alone.returns, alone.lengths)
    assert scored.return_interval == alone.interval


class Auction:
    """Two bidders; the higher bid wins and earns the difference, for as many rounds as were agreed."""

    possible_agents = ("left", "right")
    default_agent_ids = "left"

    def __init__(self, rounds=3):
        self.rounds = rounds
        self.agents = []

    def observation_space(self, agent):
        return gym.spaces.Box(0, 1, (2,), np.float32)

    def action_space(self, agent):
        return gym.spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        self.agents, self.round, self.money = list(self.possible_agents), 0, dict.fromkeys(self.possible_agents, 0.0)
        return self._seen(), {agent: {} for agent in self.agents}

    def _seen(self):
        return {agent: np.array([agent == "left", agent == "right"], np.float32) for agent in self.possible_agents}

    def step(self, actions):
        self.round += 1
        earned = {"left": float(actions["left"] - actions["right"])}
        earned["right"] = -earned["left"]
        over = self.round == self.rounds
        for agent in self.possible_agents:
            self.money[agent] += earned[agent]
        infos = {agent: {"won": self.money[agent] > 0} if over else {} for agent in self.possible_agents}
        ended = dict.fromkeys(self.possible_agents, over)
        if over:
            self.agents = []
        return self._seen(), earned, ended, dict.fromkeys(self.possible_agents, False), infos

    def make_opponent(self):
        return AlwaysTwo()


class AlwaysTwo:
    def act(self, env, agent_id):
        return 2


class Bidder(torch.nn.Module):
    """Bids one number as left and another as right, so that a swapped side shows."""

    def __init__(self, as_left, as_right):
        super().__init__()
        self.bids = torch.tensor([as_left, as_right])

    def forward(self, obs, state, episode_starts):
        return PolicyOutput(_Chosen(self.bids[obs.argmax(-1)]), torch.zeros_like(obs[..., 0]), ())

    def initial_state(self, batch):
        return ()

    def to_env(self, actions):
        return actions


class _Lending:
    """What an evaluator needs of a store and of its records: one policy under every URI."""

    def __init__(self, policy):
        self._policy, self.asked = policy, []

    def policy(self, uri, selector="latest"):
        self.asked.append((uri, selector))
        return types.SimpleNamespace(policy=lambda device: self._policy)


@pytest.mark.parametrize(
    ("agent_ids", "own", "other", "expected"),
    [((), (2, 0), (2, 1), (3.0, 1.0)), (("right",), (2, 0), (2, 1), (-6.0, 0.0)), ((), (1, 0), (0, 1), (0.0, 0.5))],
)
def test_a_policy_plays_the_other_agents(agent_ids, own, other, expected):
    """M1, MB9: each side is played by whom it should be, and the result is the own side's."""
    store = _Lending(Bidder(*other))
    case = SimulationCase(env=Auction, agent_ids=agent_ids, npc="file://them", npc_selector="best", episodes=5)
    evaluator = PolicyEvaluator(suite({"trade": case}), store)
    scores = evaluator.evaluate(Bidder(*own)).cases["trade"]
    assert scores.returns == [expected[0]] * 5
    assert scores.results == [expected[1]] * 5
    assert scores.lengths == [3] * 5
    evaluator.evaluate(Bidder(*own))
    assert store.asked == [("file://them", "best")], "looked up once: later scores are against the same"


def test_without_a_policy_the_environment_plays_the_others():
    scores = PolicyEvaluator(suite({"trade": SimulationCase(env=Auction)})).evaluate(Bidder(1, 0)).cases["trade"]
    assert scores.returns == [-3.0] * 5
    assert scores.results == [0.0] * 5


def test_teams_are_counted_by_match(small_policy):
    """M1: five agents of a team are one result, not five that pretend to be independent."""
    case = SimulationCase(env="skirmish", kwargs={"max_seconds": 4, "team": ["light", "light"]}, npc="memory://past")
    env = make_env("skirmish", 1, max_seconds=4, team=["light", "light"])
    policy, store = small_policy(env), PolicyStore()
    store.save("past", policy)
    evaluator = PolicyEvaluator(suite({"combat/2v2": case}, episodes=6), store)
    scores = evaluator.evaluate(policy).cases["combat/2v2"]
    assert len(scores.returns) == len(scores.results) == 6
    assert scores.results == [0.5] * 6, "against itself, mirrored, taking the likeliest action"
    assert scores.lengths == [10] * 6
    chance = PolicyEvaluator(suite({"combat/2v2": case}, episodes=6, deterministic=False), store).evaluate(policy)
    assert chance.cases["combat/2v2"].returns != scores.returns


@pytest.mark.parametrize(
    ("case", "complaint"),
    [
        ({"env": "CartPole-v1", "npc": "memory://it"}, r"a/b: npc='memory://it' plays nobody: .* a single agent. Say"),
        ({"env": Auction, "npc": "memory://it", "agent_ids": ("*",)}, "the agents left, right, all of them"),
        ({"env": "Pendulum-v1"}, r"a/b: the policy was built for observation space Box.*\(4,\)"),
        ({"env": "CartPol-v1"}, r"a/b: There is no environment 'CartPol-v1'. Did you mean CartPole-v1"),
        ({"env": "CartPole-v1", "kwargs": {"gravity": 1}}, "a/b: 'CartPole-v1' does not take these arguments"),
    ],
)
def test_what_cannot_be_played_names_its_case(small_policy, case, complaint):
    store = PolicyStore()
    policy = cartpole_policy(small_policy)
    store.save("it", policy)
    with pytest.raises((ConfigError, EnvError), match=complaint):
        PolicyEvaluator(suite({"a/b": SimulationCase(**case)}), store).evaluate(policy)


# ------------------------------------------------------------------ the same again


def test_scores_depend_on_policy_suite_and_seed_alone(small_policy):
    """M1, MB9: deterministic by seed; other cases beside it change nothing."""
    policy = cartpole_policy(small_policy, memory="gru")
    case = SimulationCase(env="CartPole-v1")
    one = PolicyEvaluator(suite({"a/b": case})).evaluate(policy)
    more = PolicyEvaluator(suite({"x/y": case, "a/b": case})).evaluate(policy)
    assert one.cases["a/b"].returns == more.cases["a/b"].returns
    assert one.cases["a/b"].returns != more.cases["x/y"].returns
    assert (
        one.cases["a/b"].returns != PolicyEvaluator(suite({"a/b": case}, seed=1)).evaluate(policy).cases["a/b"].returns
    )


@pytest.mark.parametrize("deterministic", [True, False])
def test_evaluating_leaves_no_trace(small_policy, deterministic):
    """MB9: neither in the policy's mode and tensors nor in anybody's random numbers."""
    policy = cartpole_policy(small_policy).train()
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    torch.manual_seed(3)
    drawn, state = torch.get_rng_state(), np.random.get_state()[1].copy()
    first, second = (PolicyEvaluator(suite(deterministic=deterministic)).evaluate(policy) for _ in range(2))
    assert dict(first) == dict(second)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert (np.random.get_state()[1] == state).all()
    assert policy.training
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.state_dict().items())


def test_sampling_is_asked_for(small_policy):
    policy = cartpole_policy(small_policy)
    both = [PolicyEvaluator(suite(deterministic=each)).evaluate(policy)["balance/cartpole"] for each in (True, False)]
    assert both[0] != both[1]


def test_records_and_uris_are_policies_too(small_policy, tmp_path):
    """M1, M13: whatever names a policy can be scored."""
    policy = cartpole_policy(small_policy)
    record = PolicyStore(tmp_path).save("kept", policy)
    evaluator = PolicyEvaluator(suite())
    expected = dict(evaluator.evaluate(policy))
    for named in (record, record.uri, record.local_path):
        assert dict(evaluator.evaluate(named)) == expected


# ------------------------------------------------------------------ settings


def test_what_a_suite_says_holds_for_its_cases():
    """M1: suite values propagate, and a case's own win."""
    cases = {"a": SimulationCase(env="A-v1"), "b": SimulationCase(env="B-v1", episodes=3, kwargs={"x": 2}, npc="./p")}
    whole = SimulationSuite(
        cases=cases, episodes=9, max_steps=7, max_time_s=2.0, npc="run://r", kwargs={"x": 1, "y": 1}
    )
    resolved = whole.resolved()
    assert (resolved["a"].episodes, resolved["a"].npc, resolved["a"].kwargs) == (9, "run://r", {"x": 1, "y": 1})
    assert (resolved["b"].episodes, resolved["b"].npc, resolved["b"].kwargs) == (3, "./p", {"x": 2, "y": 1})
    for case in resolved.values():
        assert (case.max_steps, case.max_time_s, case.num_envs, case.deterministic) == (7, 2.0, 8, True)
    assert cases["a"].episodes is None, "the case itself is as it was"


def test_time_runs_out(small_policy):
    """M1: a case ends in time, says so, and JSON says null for what nobody knows."""
    policy = cartpole_policy(small_policy)
    cases = {"a/slow": SimulationCase(env="CartPole-v1", max_time_s=1e-9), "a/b": SimulationCase(env="CartPole-v1")}
    scores = PolicyEvaluator(suite(cases)).evaluate(policy)
    assert scores.cases["a/slow"].out_of_time
    assert math.isnan(scores["a/slow"])
    assert math.isnan(scores.score)
    said = json.loads(json.dumps(scores.to_dict(), allow_nan=False))
    assert (said["score"], said["cases"]["a/slow"]["score"], said["cases"]["a/slow"]["episodes"]) == (None, None, 0)
    assert said["cases"]["a/b"]["returns"] == scores.cases["a/b"].returns


# ------------------------------------------------------------------ numbers


def test_categories_count_every_case_alike():
    """M1: the mean of the cases' scores, not of all episodes."""
    cases = [CaseScores("nav/a", [1.0, 3.0], [1, 1]), CaseScores("nav/b", [10.0] * 8, [1] * 8), CaseScores("c", [4.0])]
    scores = SuiteScores("s", cases)
    assert scores["nav/score"] == 6.0
    assert scores["c/score"] == scores["c"] == 4.0
    assert scores["score"] == 5.0
    won = [
        CaseScores("w/a", [0.0] * 4, [1] * 4, [1.0, 1.0, 0.5, 0.0]),
        CaseScores("w/b", [0.0] * 2, [1] * 2, [0.0, 0.0]),
    ]
    whole = SuiteScores("s", won)
    assert (whole["w/a"], whole["w/score"]) == (0.5, 0.25)
    low, high = whole.categories["w"].interval
    assert 0 < low < 0.25 < high < 1
    mixed = SuiteScores("s", [won[0], CaseScores("w/c", [2.0, 2.0], [1, 1])])
    assert mixed["w/score"] == 1.0, "returns, where not every case tells who won"


def test_intervals_cover_what_they_promise():
    """M1: nineteen times of twenty, for means of unlike groups and for rates."""
    random = np.random.default_rng(0)
    hits = 0
    for _ in range(2000):
        groups = [random.normal(1, 3, 5).tolist(), random.normal(5, 0.5, 12).tolist()]
        low, high = means_interval(groups)
        hits += low <= 3 <= high
    assert 0.94 <= hits / 2000 <= 0.97
    counts = random.binomial(15, 0.3, 2000) / 15 + random.binomial(60, 0.8, 2000) / 60
    trials = 4 / (1 / 15 + 1 / 60)
    covered = [low <= 0.55 <= high for low, high in (rate_interval(float(rate) / 2, trials) for rate in counts)]
    assert 0.94 <= np.mean(covered) <= 0.99


def test_the_picture_shows_every_case(tmp_path):
    cases = [CaseScores(f"{c}/{n}", [1.0, 2.0], [1, 1], [1.0, 0.0] if c == "w" else []) for c in "wr" for n in "abc"]
    cases.append(CaseScores("r/none"))
    path = plot_suite(SuiteScores("s", cases), tmp_path / "new" / "s.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    small = plot_suite(SuiteScores("s", cases[:1]), tmp_path / "one.png")
    assert path.stat().st_size > small.stat().st_size > 1000


# ------------------------------------------------------------------ while training goes on


class Endless(Metronome):
    """Never ends, and counts how many steps were taken in all."""

    taken = 0

    def step(self, action):
        type(self).taken += 1
        time.sleep(0.001)
        return np.zeros(1, np.float32), 0.0, False, False, {}


def test_the_copy_is_frozen_and_scores_are_those_of_evaluating_at_once(small_policy):
    """M1: training goes on and changes nothing in the policy that is scored, nor in its scores."""
    policy = cartpole_policy(small_policy, memory="gru")
    evaluator = PolicyEvaluator(suite(deterministic=False))
    at_once = dict(evaluator.evaluate(policy))
    background = BackgroundEvaluator(evaluator)
    assert background.submit(policy, 100)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn_like(parameter))
    evaluated = background.result(wait=True)
    assert evaluated.step == 100
    assert dict(evaluated.scores) == at_once
    assert dict(evaluator.evaluate(evaluated.policy)) == at_once
    assert background.result(wait=True) is None
    assert dict(evaluator.evaluate(policy)) != at_once


def test_one_at_a_time_and_stopped_when_asked():
    """M1: what is under way is never joined by another, and closing does not wait for the end of an episode."""
    background = BackgroundEvaluator(PolicyEvaluator(suite({"for_ever": SimulationCase(env=Endless)})))
    assert background.submit(StepCounter(), 1)
    assert not background.submit(StepCounter(), 2)
    assert background.skipped == 1
    assert background.result() is None
    started = time.perf_counter()
    background.close()
    assert time.perf_counter() - started < 5
    assert not [thread for thread in threading.enumerate() if thread.name == "evaluation"]


def test_stopping_is_no_result():
    with pytest.raises(StoppedError):
        PolicyEvaluator(suite({"a": SimulationCase(env=Endless)})).evaluate(StepCounter(), stopped=lambda: True)


class Broken(Metronome):
    def step(self, action):
        raise RuntimeError("a wheel came off")


def test_failures_are_said_once_and_stop_nothing(caplog):
    """M1: training does not end because an evaluation's environment breaks."""
    background = BackgroundEvaluator(PolicyEvaluator(suite({"a": SimulationCase(env=Broken)})))
    with caplog.at_level(logging.WARNING, "twostep.evaluation"):
        for step in range(3):
            assert background.submit(StepCounter(), step)
            assert background.result(wait=True) is None
    assert len(caplog.records) == 1
    assert "a wheel came off" in caplog.text
    assert "training goes on" in caplog.text


def test_the_functional_loop_takes_an_evaluator(small_policy):
    """M1: the evaluator is one of the components of a training loop."""
    rows = []

    class Sink:
        def log(self, metrics, step):
            rows.append((step, dict(metrics)))

        def close(self):
            pass

    env = make_env("CartPole-v1", 2)
    functional_training_loop(
        TrainerConfig(total_timesteps=64, eval_every=32),
        PPOConfig(rollout_steps=16, minibatch_size=32, update_epochs=1),
        small_policy(env),
        vecenv=env,
        evaluator=PolicyEvaluator(suite(episodes=2)),
        sinks=[Sink()],
        seed=0,
    )
    assert [step for step, _ in rows] == [32, 64]
    for _, metrics in rows:
        assert metrics["eval/balance/cartpole"] == metrics["eval/score"] > 5
