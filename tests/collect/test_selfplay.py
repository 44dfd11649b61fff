"""Matches against past selves: what learners see, what opponents do, and that neither disturbs the other."""

from __future__ import annotations

import json
from contextlib import closing

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from twostep import AgentConfig, ConfigError, EnvError, League, PPOTrainer, SelfPlay, make_policy
from twostep.checkpoint import pack
from twostep.collect.collector import RolloutCollector
from twostep.collect.league import HEURISTIC
from twostep.collect.selfplay import won_or_drawn
from twostep.protocols import PolicyOutput, Step
from twostep.vector.parallel import AgentsVectorEnv
from twostep.vector.processes import VectorEnv
from twostep.worlds.skirmish import EnvConfig, SkirmishEnv, SkirmishRows

SMALL = EnvConfig(team=("scout", "heavy"), max_seconds=12, zone_seconds=4, walls=2)
AGENTS = ("blue_0", "red_0", "blue_1", "red_1", "red_2")


class Teams:
    """Matches that end at random, in which agents end at random, too: every number tells its row and time.

    A match that ends at step t is won by blue, red or nobody, by the remainder of t by 3. With `broken`, some matches
    end as they do where a process has died: nothing in them is valid. With `returning`, agents come back by themselves
    in the middle of a match.
    """

    action_space = spaces.Discrete(1_000_000)
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def __init__(self, num_envs, agents=AGENTS, seed=0, masks=False, broken=False, returning=False):
        self.possible_agents = self.agent_ids = agents
        self.num_envs, self.num_rows = num_envs, num_envs * len(agents)
        self.random, self.masks, self.broken = np.random.default_rng(seed), masks, broken
        self.returning = returning
        self.steps, self.actions, self.resets = 0, [], []

    def reset(self, seed=None, indices=None):
        self.resets.append((seed, indices))
        begun = np.zeros((self.num_envs, len(self.agent_ids)), dtype=bool)
        begun[slice(None) if indices is None else list(indices)] = True
        self.alive = begun | (False if indices is None else self.alive)
        return Step(self._obs(), begun.ravel(), action_masks=self._masks())

    def step(self, actions):
        self.steps += 1
        self.actions.append(actions.copy())
        shape = self.alive.shape
        valid = self.alive.copy()
        over = self.random.random(self.num_envs) < 0.3
        failed = (self.random.random(self.num_envs) < 0.2) & self.broken
        ended = valid & ((self.random.random(shape) < 0.2) | over[:, None])
        over |= ~(valid & ~ended).any(1)
        final_obs, infos = self._obs() + 0.5, {}
        for env, at in np.argwhere(ended & ~failed[:, None]).tolist():
            infos[env * shape[1] + at] = {"row": env * shape[1] + at}
            if over[env]:
                team = self.agent_ids[at].partition("_")[0]
                infos[env * shape[1] + at]["won"] = float(("blue", "red", "nobody")[self.steps % 3] == team)
        starts = (over | failed)[:, None] | (~valid & (self.random.random(shape) < 0.3) & self.returning)
        self.alive = (self.alive & ~ended) | starts
        starts = starts.ravel()
        truncated = np.broadcast_to(failed[:, None], shape).copy()
        final_rows = np.flatnonzero(ended & ~failed[:, None])
        return Step(
            self._obs(),
            starts,
            rewards=(np.arange(self.num_rows) + self.steps / 8).astype(np.float32),
            terminated=(ended & ~failed[:, None]).ravel(),
            truncated=truncated.ravel(),
            valid=(valid & ~failed[:, None]).ravel(),
            final_rows=final_rows if len(final_rows) else None,
            final_obs=final_obs[final_rows] if len(final_rows) else None,
            action_masks=self._masks(),
            infos=infos,
        )

    def _obs(self):
        return np.stack([np.arange(self.num_rows), np.full(self.num_rows, self.steps)], -1).astype(np.float32)

    def _masks(self):
        return np.arange(self.num_rows)[:, None] % 3 == np.arange(3) if self.masks else None

    def call(self, name, *args, indices=None):
        if name == "scripted_actions":
            return list((7 + 1000 * np.arange(self.num_rows)).reshape(self.num_envs, -1))
        return [name] * self.num_envs

    def close(self):
        self.closed = True


class Certain:
    def __init__(self, actions):
        self.actions = actions

    def sample(self, generator=None):
        assert generator is not None
        return self.actions


class Counter(nn.Module):
    """Acts by 1000 times its row, 100 times its tag, and how often it acted for this row in this match."""

    def __init__(self):
        super().__init__()
        self.register_buffer("tag", torch.zeros((), dtype=torch.long))
        self.masks = []

    def forward(self, obs, state, episode_starts, *, action_masks=None):
        assert not torch.is_grad_enabled()
        self.masks.append(action_masks)
        count = torch.where(episode_starts[0], 0, state) + 1
        actions = 1000 * obs[0, :, 0].long() + 100 * self.tag + count
        return PolicyOutput(Certain(actions[None]), torch.zeros(obs.shape[:2]), count)

    def initial_state(self, batch):
        return torch.full((batch,), 50)

    def to_env(self, actions):
        return actions


def counters(number, **settings):
    """A league of so many that tell each other apart by their tags."""
    policy = Counter()
    league = League(policy, size=max(number, 1), **settings)
    for tag in range(1, number + 1):
        policy.tag.fill_(tag)
        league.add(name=str(tag))
    return league


def net(config=SMALL, seed=0, **agent):
    settings = {"hidden_size": 16, "memory": "gru", "memory_size": 8, **agent}
    return make_policy(SkirmishRows(config, 1), AgentConfig(**settings), seed=seed)


# ---------------------------------------------------------------------- what the learners see, what the others do


@settings(max_examples=40, deadline=None)
@given(
    num_envs=st.integers(1, 4),
    learners=st.sampled_from(["blue_*", ["red_1"], ("red_2", "blue_0"), "*_1"]),
    members=st.integers(0, 3),
    seed=st.integers(0, 2**20),
    masks=st.booleans(),
    broken=st.booleans(),
    returning=st.booleans(),
)
def test_rows_go_where_they_belong(num_envs, learners, members, seed, masks, broken, returning):
    """EB12, RELIABILITY 26: against a loop over agents: every field of every step, every action of every opponent."""
    env, plain = (Teams(num_envs, AGENTS, seed, masks, broken, returning) for _ in range(2))
    group = SelfPlay(env, counters(members, heuristic_share=0.3), learners, seed=seed)
    own = [row for row in range(env.num_rows) if AGENTS[row % len(AGENTS)] in group.agent_ids]
    assert group.num_rows == len(own) == num_envs * group.rows_per_env
    same_step(group.reset(seed), plain.reset(seed), own)
    counts = dict.fromkeys(range(env.num_rows), 0)
    random = np.random.default_rng(seed)
    for _ in range(12):
        playing = [member.name for member in group.opponents]
        actions = random.integers(100, size=len(own))
        expected = np.zeros(env.num_rows, dtype=int)
        expected[own] = actions
        for row in set(range(env.num_rows)) - set(own):
            name = playing[row // len(AGENTS)]
            counts[row] += 1
            expected[row] = 1000 * row + (7 if name == HEURISTIC else 100 * int(name) + counts[row])
        before = list(group.opponents)
        step, reference = group.step(actions), plain.step(expected)
        np.testing.assert_array_equal(env.actions[-1], expected)
        for number, starts in enumerate(reference.episode_starts.reshape(num_envs, -1)):
            assert starts.all() or group.opponents[number] is before[number]
        for row in np.flatnonzero(reference.episode_starts).tolist():
            counts[row] = 0
        for row, info in reference.infos.items():
            info["opponent"] = playing[row // len(AGENTS)]
        same_step(step, reference, own)


def same_step(step, reference, own):
    for name in ("obs", "episode_starts", "rewards", "terminated", "truncated", "valid", "action_masks"):
        mine, other = getattr(step, name), getattr(reference, name)
        assert (mine is None) == (other is None), name
        if mine is not None:
            np.testing.assert_array_equal(mine, other[own], err_msg=name)
    assert step.infos == {own.index(row): info for row, info in reference.infos.items() if row in own}
    ends = [] if reference.final_rows is None else reference.final_rows.tolist()
    pairs = [(own.index(row), reference.final_obs[at].tolist()) for at, row in enumerate(ends) if row in own]
    if not pairs:
        assert step.final_rows is None
        assert step.final_obs is None
    else:
        assert list(zip(step.final_rows.tolist(), step.final_obs.tolist(), strict=True)) == pairs


def test_opponents_are_told_what_is_allowed():
    """EB12: masks reach them, each row its own."""
    env = Teams(2, masks=True)
    group = SelfPlay(env, counters(1, heuristic_share=0.0), seed=0)
    group.reset(0)
    group.step(np.zeros(group.num_rows, dtype=int))
    (mask,) = group.league.members[0].policy.masks
    others = [row for row in range(env.num_rows) if AGENTS[row % len(AGENTS)].startswith("red")]
    assert mask[0].tolist() == (np.array(others)[:, None] % 3 == np.arange(3)).tolist()


@pytest.mark.parametrize("control", ["discrete", "continuous"])
@pytest.mark.parametrize("kind", ["rows", "agents", "processes"])
def test_the_heuristic_as_opponent_is_the_plain_environment(kind, control):
    """EB12: bit by bit, whether matches run in one simulation, one by one, or in worker processes."""
    config = EnvConfig(**{**SMALL.to_dict(), "control": control})
    plain = SkirmishRows(config, 3)
    everybody = SkirmishRows(config, 3, agent_ids="*")
    if kind == "agents":
        everybody = AgentsVectorEnv([lambda: SkirmishEnv(config) for _ in range(3)], agent_ids="*", check=False)
    if kind == "processes":
        everybody = VectorEnv(3, config, num_workers=2, agent_ids="*")
    with closing(SelfPlay(everybody, League(net(config)))) as group:
        same_matches(group, plain)


def same_matches(group, plain):
    assert (group.agent_ids, group.num_rows) == (plain.agent_ids, plain.num_rows)
    same(group.reset(5), plain.reset(5))
    plain.action_space.seed(0)
    matches = 0
    for _ in range(60):
        actions = np.stack([plain.action_space.sample() for _ in range(plain.num_rows)])
        step, reference = group.step(actions), plain.step(actions)
        for info in reference.infos.values():
            info["opponent"] = HEURISTIC
        same(step, reference)
        matches += int(reference.episode_starts.reshape(3, -1).all(1).sum())
    assert matches > 2
    assert group.league.results[HEURISTIC].matches == matches


def same(step, reference):
    np.testing.assert_array_equal(step.obs, reference.obs)
    np.testing.assert_array_equal(step.episode_starts, reference.episode_starts)
    if reference.rewards is None:
        return
    for name in ("rewards", "terminated", "truncated", "valid"):
        np.testing.assert_array_equal(getattr(step, name), getattr(reference, name), err_msg=name)
    assert (step.final_rows is None) == (reference.final_rows is None)
    if step.final_rows is not None:
        np.testing.assert_array_equal(step.final_rows, reference.final_rows)
        np.testing.assert_array_equal(step.final_obs, reference.final_obs)
    assert step.infos.keys() == reference.infos.keys()
    assert step.infos == reference.infos


# ---------------------------------------------------------------------- whom they meet


def test_every_environment_meets_its_own_opponent():
    """EB12: never one opponent for all, and another one in the next match."""
    group = SelfPlay(Teams(200), counters(4, heuristic_share=0.2), seed=1)
    group.reset(0)
    first = [member.name for member in group.opponents]
    shares = {name: first.count(name) / len(first) for name in (HEURISTIC, "1", "2", "3", "4")}
    assert all(share == pytest.approx(0.2, abs=0.1) for share in shares.values()), shares
    step = group.step(np.zeros(group.num_rows, dtype=int))
    begun = step.episode_starts.reshape(200, -1).all(1)
    changed = np.array([member.name for member in group.opponents]) != np.array(first)
    assert not changed[~begun].any()
    assert 0.6 < changed[begun].mean() < 1.0


def test_only_matches_begun_anew_draw():
    """EB12: a partial reset leaves the others' opponents and memory as they are."""
    env = Teams(50)
    group = SelfPlay(env, counters(4, heuristic_share=0.2), seed=1)
    group.reset(0)
    before = list(group.opponents)
    step = group.reset([3, 4], indices=[0, 7])
    assert env.resets[-1] == ([3, 4], [0, 7])
    assert np.flatnonzero(step.episode_starts.reshape(50, -1).any(1)).tolist() == [0, 7]
    assert all(group.opponents[at] is before[at] for at in range(50) if at not in (0, 7))


def test_results_reach_the_opponent_that_was_played():
    """EB12: each match once, for the one who played it; a match that broke counts for nobody."""
    env = Teams(6, seed=2, broken=True)
    league = counters(2, heuristic_share=0.3)
    group = SelfPlay(env, league, seed=3)
    group.reset(0)
    expected = {name: [] for name in league.results}
    reference = Teams(6, seed=2, broken=True)
    reference.reset(0)
    for _ in range(60):
        playing = [member.name for member in group.opponents]
        group.step(np.zeros(group.num_rows, dtype=int))
        step = reference.step(np.zeros(env.num_rows, dtype=int))
        for number in range(6):
            mine = slice(number * len(AGENTS), (number + 1) * len(AGENTS))
            if step.episode_starts[mine].all() and not step.truncated[mine].any():
                teams = {
                    AGENTS[row % len(AGENTS)].partition("_")[0]
                    for row, info in step.infos.items()
                    if row // len(AGENTS) == number and info["won"]
                }
                expected[playing[number]].append(1.0 if "blue" in teams else 0.0 if "red" in teams else 0.5)
    assert {name: results.matches for name, results in league.results.items()} == {
        name: len(scores) for name, scores in expected.items()
    }
    for name, scores in expected.items():
        weights = 0.98 ** np.arange(len(scores))[::-1]
        assert league.results[name].wins == pytest.approx(weights @ scores)


def test_scores():
    """EB12: who has won, by what the infos say."""
    won, lost, unknown = {"won": 1.0}, {"won": 0.0}, {"reward": 3.0}
    assert won_or_drawn([lost, won], [lost]) == 1.0
    assert won_or_drawn([lost], [won, lost]) == 0.0
    assert won_or_drawn([lost], [lost]) == 0.5
    assert won_or_drawn([], [lost]) == 0.5
    assert won_or_drawn([unknown], [unknown]) is won_or_drawn([], []) is None


def test_an_opponent_that_left_the_league_finishes_its_match():
    """EB12: nobody is exchanged in the middle of a match."""
    league = counters(1, heuristic_share=0.0)
    group = SelfPlay(Teams(1, seed=4), league, seed=0)
    group.reset(0)
    playing = group.opponents[0]
    league.add(name="newcomer")
    assert playing not in league.members
    while True:
        assert group.opponents[0] is playing
        if group.step(np.zeros(group.num_rows, dtype=int)).episode_starts.all():
            break
    assert group.opponents[0].name == "newcomer"


# ---------------------------------------------------------------------- repeatable, and on nobody's account


def rolled_out(seed):
    policy = net()
    league = League(policy)
    for other in range(2):
        league.add(net(seed=other + 1))
    group = SelfPlay(SkirmishRows(SMALL, 4, agent_ids="*"), league)
    collector = RolloutCollector(group, policy, num_steps=40, seed=0, env_seed=seed)
    return collector.rollout(), collector, group


def test_the_same_seed_gives_the_same_matches():
    """EB12: opponents, what they draw and how it ends depend on the seed alone; another seed gives others."""
    torch.manual_seed(11)
    first, _, group = rolled_out(5)
    torch.manual_seed(12)
    again, _, twin = rolled_out(5)
    other, _, _ = rolled_out(6)
    for name in ("obs", "actions", "rewards", "valid", "states"):
        assert torch.equal(getattr(first, name), getattr(again, name)), name
    assert first.episodes == again.episodes
    assert {episode.info["opponent"] for episode in first.episodes} == {HEURISTIC, "past_0", "past_1"}
    assert group.league.results == twin.league.results
    assert not torch.equal(first.obs, other.obs)


def test_resetting_with_a_seed_repeats_everything():
    """EB12: also opponents, and what they draw."""
    group = SelfPlay(SkirmishRows(SMALL, 4, agent_ids="*"), League(net()))
    seen = []
    for _ in range(2):
        group.league.load_state_dict(League(group.league.policy).state_dict())
        group.league.add(net(seed=1))
        step = group.reset(9)
        for _ in range(10):
            step = group.step(np.zeros((group.num_rows, 3), dtype=int))
        seen.append(step.obs)
    np.testing.assert_array_equal(*seen)


def test_opponents_draw_from_nobody_elses_stream():
    """EB12: the collector's generator and the process's own stay as they would be without them."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    _, with_opponents, _ = rolled_out(5)
    assert torch.equal(torch.get_rng_state(), before)
    plain = RolloutCollector(SkirmishRows(SMALL, 4), net(), num_steps=40, seed=0, env_seed=5)
    plain.rollout()
    assert torch.equal(plain.generator.get_state(), with_opponents.generator.get_state())


def test_opponents_act_by_chance():
    """EB12: as they did when they learned."""
    league = League(net())
    league.add()
    league.heuristic_share = 0.0
    made = []

    class Kept(SkirmishRows):
        def step(self, actions):
            made.append(actions.copy())
            return super().step(actions)

    group = SelfPlay(Kept(SMALL, 2, agent_ids="*"), league)
    for seed in (1, 2):
        group.reset(seed)
        group.reset([4, 4], indices=[0, 1])
        group.step(np.zeros((group.num_rows, 3), dtype=int))
    assert not np.array_equal(made[0], made[1])


def test_training_against_past_selves():
    """E34, EB12: copies join on the way, rows of learners alone are learned from, and the ratio stays 1."""
    policy = net()
    league = League(policy, size=2, heuristic_share=0.3)
    group = SelfPlay(SkirmishRows(SMALL, 4, agent_ids="*"), league)
    trainer = PPOTrainer(policy, group, device="cpu", seed=0, rollout_steps=24, minibatch_size=64, n_epochs=1)
    met = set()
    for _ in range(4):
        rollout = trainer.collect_rollout()
        assert rollout.num_rows == 8
        met |= {episode.info["opponent"] for episode in rollout.episodes}
        metrics = trainer.update(rollout)
        assert np.isfinite(metrics["loss"])
        league.add()
    assert HEURISTIC in met
    assert any(name.startswith("past_") for name in met)
    versions = [member.policy.version for member in league.members]
    assert versions[0] < versions[1] == policy.version


# ---------------------------------------------------------------------- the rest of a group


def test_calls_and_closing_reach_the_environments():
    env = Teams(2)
    group = SelfPlay(env, counters(0))
    assert group.call("name") == ["name", "name"]
    assert (group.possible_agents, group.agent_ids) == (AGENTS, ("blue_0", "blue_1"))
    assert group.observation_space is env.observation_space
    group.close()
    group.close()
    assert env.closed


def test_what_cannot_be_played_is_refused():
    with pytest.raises(ConfigError, match="covers all 5 agents"):
        SelfPlay(Teams(1), counters(0), "*")
    with pytest.raises(EnvError, match="names 'green_"):
        SelfPlay(Teams(1), counters(0), "green_*")
    with pytest.raises(EnvError, match="step was called before reset"):
        SelfPlay(Teams(1), counters(0)).step(np.zeros(2))


def test_nobody_to_play_against():
    """EB12: an environment without a scripted player says what can be done."""

    class Lonely(Teams):
        def call(self, name, *args, indices=None):
            return [getattr(self, name)() for _ in range(self.num_envs)]

    league = counters(0, heuristic_share=0.0)
    group = SelfPlay(Lonely(1), league)
    group.reset(0)
    with pytest.raises(EnvError, match=r"'Lonely' object has no attribute 'scripted_actions'.*pass heuristic="):
        group.step(np.zeros(2, dtype=int))
    league.add()
    group.reset(0)
    group.step(np.zeros(2, dtype=int))


def test_another_scripted_player_can_be_given():
    """EB12: what plays until the first copy joins is a value, too."""
    env = Teams(1)
    group = SelfPlay(env, counters(0), heuristic=lambda: np.arange(5))
    group.reset(0)
    group.step(np.array([90, 91]))
    assert env.actions[-1].tolist() == [90, 1, 91, 3, 4]


def test_matches_go_on_from_a_checkpoint_also_against_a_copy_that_has_left(tmp_path):
    """C16, E34: opponents, their memory, results and random numbers are those of the run that never stopped."""

    def made(seed):
        rows = SkirmishRows(EnvConfig(team=("light", "heavy"), max_seconds=20), 3, seed=seed, agent_ids="*")
        policy = make_policy(rows, AgentConfig(hidden_size=8, memory="gru", memory_size=4), seed=seed)
        league = League(policy, size=1, heuristic_share=0.0)
        arena = SelfPlay(rows, league, seed=seed)
        settings = {"rollout_steps": 16, "bptt_length": 4, "update_epochs": 1, "device": "cpu", "lr": 1e-2}
        trainer = PPOTrainer(policy, arena, seed=seed, **settings)
        trainer.companions["league"] = league
        return trainer, league, arena

    trainer, league, arena = made(1)
    league.add(name="first")
    trainer.learn(trainer.collect_rollouts(16))
    league.add(name="second")  # takes the place of the first, against whom all matches still go on
    trainer.learn(trainer.collect_rollouts(16))
    assert {member.name for member in arena.opponents} == {"first"}
    trainer.save_checkpoint(tmp_path / "cut")
    again, _, other_arena = made(2)
    again.load_checkpoint(tmp_path / "cut")
    assert not again.restart_reason
    assert {member.name for member in other_arena.opponents} == {"first"}
    for one in (trainer, again):
        for _ in range(6):
            one.learn(one.collect_rollouts(16))
    assert "second" in {member.name for member in arena.opponents}, "new matches have begun"
    packs = [pack(one.state_dict()) for one in (trainer, again)]
    assert json.dumps(packs[0][1]) == json.dumps(packs[1][1])
    assert all(torch.equal(packs[0][0][name], packs[1][0][name]) for name in packs[0][0])
