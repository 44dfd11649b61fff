"""Matches against the scripted opponent: played by scripted models whose results are known, or played again by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from twostep import AgentConfig, ConfigError, EvalStats, PPOTrainer, evaluate_vs_heuristic, make_policy
from twostep.evaluation import matches
from twostep.protocols import PolicyOutput
from twostep.worlds.skirmish import EnvConfig, HeuristicPolicy, SkirmishEnv, SkirmishRows, load_replay, save_replay
from twostep.worlds.skirmish.control import Orders, encode

SMALL = EnvConfig(team=("scout", "heavy"), max_seconds=40, zone_seconds=6, walls=4)


def net(config=SMALL, seed=0, **agent):
    return make_policy(
        SkirmishRows(config, 1), AgentConfig(**{"hidden_size": 16, "memory_size": 8, **agent}), seed=seed
    )


class Fixed:
    """A distribution that is certain."""

    def __init__(self, actions):
        self.actions = actions

    def mode(self):
        return self.actions

    def sample(self, generator=None):
        return self.actions


class Always:
    """A model without memory that computes its actions `[B, n]` from the observations `[B, ...]`."""

    def __init__(self, actions_for):
        self.actions_for = actions_for

    def __call__(self, obs, state, episode_starts, **conditions):
        actions = torch.as_tensor(np.asarray(self.actions_for(obs[0])))
        return PolicyOutput(Fixed(actions[None]), torch.zeros(episode_starts.shape), state)

    def initial_state(self, batch):
        return ()

    def to_env(self, actions):
        return actions


class Stand:
    """An opponent that does nothing."""

    def plan(self, sim):
        zeros, never = np.zeros(sim.shape, dtype=np.float32), np.zeros(sim.shape, dtype=np.bool_)
        return Orders(zeros, zeros, zeros, never, never)


def drive_to_zone(obs):
    """Turn towards the zone, drive, and stop in it; never shoot."""
    ahead, left, inside = obs[:, 6], obs[:, 7], obs[:, 9] > 0
    turn = torch.where(left > 0.15, 1, torch.where(left < -0.15, 3, 2))
    turn = torch.where(ahead < 0, torch.where(left > 0, 0, 4), turn)
    move = torch.where(inside | (ahead < 0.5), 0, 1)
    return torch.stack([move, turn, torch.zeros_like(move)], -1)


def stand(obs):
    """Neither move nor turn nor shoot."""
    return torch.tensor([0, 2, 0]).expand(len(obs), 3)


@pytest.fixture
def seen_rows(monkeypatch):
    """Every environment that evaluation makes, newest last."""
    made = []

    class Seen(SkirmishRows):
        def __init__(self, *args, **settings):
            super().__init__(*args, **settings)
            made.append(self)

    monkeypatch.setattr(matches, "SkirmishRows", Seen)
    return made


# ---------------------------------------------------------------------- the numbers


@pytest.mark.parametrize(
    ("wins", "count", "low", "high"),
    [(50, 100, 0.40383, 0.59617), (0, 10, 0.0, 0.27753), (10, 10, 0.72247, 1.0), (1, 3, 0.06149, 0.79234)],
)
def test_the_interval_is_wilsons(wins, count, low, high):
    """E24: against published values of the score interval."""
    stats = EvalStats(wins / count, 0.0, 1.0, count)
    assert stats.win_interval == pytest.approx((low, high), abs=1e-5)


def test_the_interval_covers_as_often_as_it_says():
    """E24: of players who truly win anything from 5 % to 95 %, the intervals of 95 % hold that number."""
    random = np.random.default_rng(0)
    rates = random.uniform(0.05, 0.95, size=4000)
    wins = random.binomial(60, rates)
    intervals = [EvalStats(number / 60, 0.0, 1.0, 60).win_interval for number in wins.tolist()]
    covered = [low <= rate <= high for rate, (low, high) in zip(rates, intervals, strict=True)]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.012)


def test_statistics_say_it_in_a_line_and_in_json():
    """E24: the four numbers, and what follows from them."""
    stats = EvalStats(
        win_rate=0.6,
        mean_hp_margin=0.125,
        mean_episode_length=88.25,
        episodes=10,
        draws=1,
        mean_return=1.5,
        ends={"zone": 6, "elimination": 3, "time": 1},
    )
    assert (stats.wins, stats.losses, stats.draws) == (6, 3, 1)
    line = "6 of 10 matches won, 1 drawn: 60.0% (95 % interval 31.3% to 83.2%), hit points +12.5%, length 88.2, "
    assert str(stats) == line + "ended 6 by zone, 3 by elimination, 1 by time"
    told = json.loads(json.dumps(stats.to_dict(), allow_nan=False))
    assert told["win_interval"] == list(stats.win_interval)
    assert {name: told[name] for name in ("wins", "losses", "draws", "ends")} == {
        "wins": 6,
        "losses": 3,
        "draws": 1,
        "ends": {"zone": 6, "elimination": 3, "time": 1},
    }


def test_four_numbers_are_enough():
    """E24: whoever has only these can make it, and what is unknown is not invented."""
    stats = EvalStats(win_rate=0.5, mean_hp_margin=0.0, mean_episode_length=10.0, episodes=4)
    assert stats.to_dict()["mean_return"] is None
    assert str(stats).endswith("length 10.0")
    assert all(math.isnan(bound) for bound in EvalStats(0.0, 0.0, 0.0, 0).win_interval)


# ---------------------------------------------------------------------- the matches


@pytest.mark.parametrize("control", ["discrete", "continuous"])
def test_matches_are_those_of_their_seeds(control):
    """E25, EB9: match i is the one that seeds[i] begins, played alone, the model's memory empty at its start."""
    config = EnvConfig(**{**SMALL.to_dict(), "control": control})
    seeds, policy = [5, 3, 5, 11], net(config, memory="gru")
    stats, _ = evaluate_vs_heuristic(policy, config, 4, seeds)
    alone = [evaluate_vs_heuristic(policy, config, 1, [seed])[0] for seed in seeds]
    played = [by_hand(policy, config, seed) for seed in seeds]
    assert [one.mean_episode_length for one in alone] == [frames for frames, _, _ in played]
    assert [one.mean_hp_margin for one in alone] == pytest.approx([margin for _, margin, _ in played])
    assert [one.mean_return for one in alone] == pytest.approx([earned for _, _, earned in played], abs=1e-5)
    for name in ("win_rate", "mean_hp_margin", "mean_episode_length", "mean_return"):
        assert getattr(stats, name) == pytest.approx(np.mean([getattr(one, name) for one in alone])), name
    assert stats.ends == {reason: sum(one.ends[reason] for one in alone) for reason in stats.ends}


def by_hand(policy, config, seed):
    """Play one match with a loop over agents: steps, margin of hit points, mean return."""
    env, opponent = SkirmishEnv(config), HeuristicPolicy()
    blue = [agent for agent in env.possible_agents if agent.startswith("blue")]
    observations, _ = env.reset(seed)
    state, starts, total, frames = policy.initial_state(len(blue)), torch.ones(1, len(blue), dtype=torch.bool), 0.0, 0
    nothing = np.zeros(env.observation_space(blue[0]).shape, dtype=np.float32)
    infos = {}
    while env.agents:
        obs = torch.from_numpy(np.stack([observations.get(agent, nothing) for agent in blue]))
        with torch.no_grad():
            output = policy(obs[None], state, starts)
        actions = policy.to_env(output.distribution.mode()[0]).numpy()
        red = {agent: opponent.act(env, agent) for agent in env.agents if agent not in blue}
        mine = {agent: action for agent, action in zip(blue, actions, strict=True) if agent in env.agents}
        observations, rewards, _, _, infos = env.step(mine | red)
        observations = {agent: observations[agent] for agent in env.agents}
        total += sum(rewards.get(agent, 0.0) for agent in blue) / len(blue)
        state, starts, frames = output.state, torch.zeros_like(starts), frames + 1
    own, other = next(iter(infos.values()))["outcome"]["hp"]
    return frames, own - other, total


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_number_at_once_changes_nothing(deterministic):
    """E25: to the last bit, also where the last round and the last call are not full."""
    policy = net(memory="lstm")
    few, all_at_once, again = (
        evaluate_vs_heuristic(policy, SMALL, 37, 4, deterministic=deterministic, num_envs=number, save_replay=True)
        for number in (1, 64, 64)
    )
    assert few[0] == all_at_once[0] == again[0]
    assert few[0].episodes == 37
    same_replays(few[1], all_at_once[1])


def test_seeds_that_are_drawn():
    """E25: a single number stands for seeds that another number does not share, and no match of training has."""
    first, other, more = (matches._match_seeds(count, seed) for count, seed in ((20, 0), (20, 1), (30, np.int64(0))))
    assert more[:20] == first
    assert not set(first) & set(other)
    assert min(first + other) >= 2**31
    assert matches._match_seeds(3, range(3)) == [0, 1, 2]


def test_sampling_differs_by_seed_and_from_the_mode():
    """EB9: acting by the mode is the default, sampling is asked for."""
    policy = net()
    mode, sampled, other = (
        evaluate_vs_heuristic(policy, SMALL, 4, seeds, deterministic=how)[0]
        for seeds, how in (([1, 2, 3, 4], True), ([1, 2, 3, 4], False), ([1, 2, 3, 5], False))
    )
    assert mode != sampled != other
    assert mode == evaluate_vs_heuristic(policy, SMALL, 4, [1, 2, 3, 4])[0]


def test_each_match_counts_once(seen_rows):
    """EB9: who ends early plays on while others are not done, but only the first match of each row is counted."""
    agents = len(SMALL.team)

    def some_drive(obs):
        return torch.where(torch.arange(len(obs))[:, None] < 2 * agents, drive_to_zone(obs), stand(obs))

    stats, _ = evaluate_vs_heuristic(Always(some_drive), SMALL, 4, [0, 1, 2, 3], opponent=Stand)
    assert len(seen_rows) == 1
    assert seen_rows[0].num_envs == 4
    models = (drive_to_zone, drive_to_zone, stand, stand)
    alone = [
        evaluate_vs_heuristic(Always(model), SMALL, 1, [seed], opponent=Stand)[0] for seed, model in enumerate(models)
    ]
    lengths = [one.mean_episode_length for one in alone]
    assert 2 * max(lengths[:2]) < min(lengths[2:])
    assert stats.mean_episode_length == np.mean(lengths)
    assert stats.mean_return == pytest.approx(np.mean([one.mean_return for one in alone]))
    assert (stats.wins, stats.draws) == (2, 2)


def test_a_zone_win_ends_the_match_and_counts():
    """EB10: a team that holds the zone wins as soon as it has held it for long enough, with time left."""
    stats, replay = evaluate_vs_heuristic(
        Always(drive_to_zone), SMALL, 4, [0, 1, 2, 3], save_replay=True, opponent=Stand
    )
    assert stats.win_rate == 1.0
    assert stats.ends == {"zone": 4, "elimination": 0, "time": 0}
    assert stats.mean_episode_length < SMALL.max_steps
    score = replay["frames"]["zone_score"][:, 0]
    assert (score[:-1] < 1 - 1e-6).all()
    assert score[-1] == pytest.approx(1.0, abs=1e-6)
    assert replay["outcome"]["reason"] == "zone"


def test_nobody_coming_is_a_draw_by_time():
    """E24: draws are no wins, and count in the rate."""
    stats, _ = evaluate_vs_heuristic(Always(stand), SMALL, 2, 0, opponent=Stand)
    assert (stats.win_rate, stats.draws, stats.ends["time"]) == (0.0, 2, 2)
    assert (stats.mean_hp_margin, stats.mean_episode_length) == (0.0, SMALL.max_steps)


@pytest.mark.slow
def test_the_heuristic_as_a_model_is_its_own_equal(seen_rows):
    """E25: the same player on both sides wins half of the decided matches; hit points are even."""
    planner = HeuristicPolicy()

    def mimic(obs):
        rows = seen_rows[-1]
        actions = encode(planner.plan(rows.simulation), "discrete")[:, 0].reshape(-1, 3)
        return np.concatenate([actions, np.zeros((len(obs) - len(actions), 3), dtype=actions.dtype)])

    stats, _ = evaluate_vs_heuristic(Always(mimic), EnvConfig(), 160, 0, num_envs=16)
    assert (stats.wins + stats.draws / 2) / 160 == pytest.approx(0.5, abs=0.12)
    assert stats.mean_hp_margin == pytest.approx(0.0, abs=0.1)


def test_a_random_policy_loses():
    """E25: who acts at random practically never beats the heuristic."""
    generator = np.random.default_rng(0)
    stats, _ = evaluate_vs_heuristic(
        Always(lambda obs: generator.integers([5, 5, 3], size=(len(obs), 3))), SMALL, 48, 0
    )
    assert stats.win_rate < 0.1
    assert stats.mean_hp_margin < 0


def test_one_short_match_from_end_to_end(tmp_path):
    """E26, E32: a new net, one match, a replay in a file."""
    stats, replay = evaluate_vs_heuristic(net(), SMALL, 1, [7], torch.device("cpu"), True)
    assert stats.episodes == 1
    assert 0 < stats.mean_episode_length <= SMALL.max_steps
    assert load_replay(save_replay(replay, tmp_path / "match.npz"))["outcome"] == replay["outcome"]
    assert evaluate_vs_heuristic(net(), SMALL, 1, [7])[1] is None


# ---------------------------------------------------------------------- replays


@pytest.mark.parametrize("control", ["discrete", "continuous"])
def test_the_replay_is_the_first_match_exactly(control, seen_rows):
    """EB9: the match of seeds[0] as it was played, frame by frame, whatever the configuration records by itself."""
    config = EnvConfig(**{**SMALL.to_dict(), "control": control})
    policy, seeds = net(config), [9, 1, 2]
    frames = []

    class Watched(HeuristicPolicy):
        def plan(self, sim):
            if not frames or sim.steps[0] > frames[-1]["steps"]:
                frames.append({name: getattr(sim, name)[0].copy() for name in ("x", "y", "hp", "heading", "steps")})
            return super().plan(sim)

    stats, replay = evaluate_vs_heuristic(policy, config, 3, seeds, save_replay=True, opponent=Watched)
    assert replay["seed"] == 9
    outcome = replay["outcome"]
    assert outcome["frames"] == len(replay["frames"]["x"]) - 1
    for at, frame in enumerate(frames[: outcome["frames"]]):
        for name in ("x", "y", "hp", "heading"):
            np.testing.assert_array_equal(replay["frames"][name][at], frame[name].ravel(), err_msg=f"{name} at {at}")
    assert not config.record_replay
    alone, again = evaluate_vs_heuristic(policy, config, 1, [9], save_replay=True)
    assert alone.mean_episode_length == outcome["frames"]
    same_replays(replay, again)
    assert replay["rewards"][:, : len(config.team)].sum() / len(config.team) == pytest.approx(
        alone.mean_return, abs=1e-4
    )
    assert stats.episodes == 3


def test_the_replay_of_an_opponent_that_never_plays_the_same_twice():
    """EB9: what is shown is what happened, not what would happen now."""

    class Moody(HeuristicPolicy):
        def __init__(self):
            super().__init__()
            self.random = np.random.default_rng()

        def plan(self, sim):
            orders = super().plan(sim)
            orders.forward = self.random.uniform(-1, 1, sim.shape).astype(np.float32)
            return orders

    stats, replay = evaluate_vs_heuristic(Always(drive_to_zone), SMALL, 1, [3], save_replay=True, opponent=Moody)
    own, other = replay["outcome"]["hp"]
    assert replay["outcome"]["frames"] == stats.mean_episode_length
    assert own - other == pytest.approx(stats.mean_hp_margin)
    assert replay["outcome"]["winner"] == ("blue" if stats.wins else "draw" if stats.draws else "red")


def same_replays(one, other):
    assert one.keys() == other.keys()
    for name in one:
        if name == "frames":
            for column in one["frames"]:
                np.testing.assert_array_equal(one["frames"][column], other["frames"][column], err_msg=column)
        else:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)


# ---------------------------------------------------------------------- what it leaves alone


class Foreign(nn.Module):
    """A network of its own kind, with memory and a normaliser that moves whenever it is trained."""

    def __init__(self, config=SMALL):
        super().__init__()
        rows = SkirmishRows(config, 1)
        self.body = nn.Linear(rows.observation_space.shape[0], 8)
        self.cell, self.choice, self.value = nn.GRUCell(8, 8), nn.Linear(8, 13), nn.Linear(8, 1)
        self.register_buffer("calls_in_training", torch.zeros(()))

    def forward(self, obs, hidden):
        if self.training:
            self.calls_in_training += 1
        hidden = self.cell(self.body(obs).tanh(), hidden)
        return self.choice(hidden), self.value(hidden).squeeze(-1), hidden


def test_any_network_is_taken():
    """E25: by the same adapter that training uses."""
    torch.manual_seed(0)
    network = Foreign()
    before = network.state_dict()
    stats, _ = evaluate_vs_heuristic(network, SMALL, 2, [0, 1])
    assert stats == evaluate_vs_heuristic(network, SMALL, 2, [0, 1])[0]
    assert network.training
    assert network.calls_in_training == 0
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())


def test_training_goes_on_as_if_nobody_had_looked():
    """EB9: weights, normalisers, memory, modes and random streams of a run are those of one without evaluations."""

    def trained(evaluated):
        torch.manual_seed(3)
        env = SkirmishRows(SMALL, 2, seed=0)
        trainer = PPOTrainer(
            net(memory="gru"), env, device="cpu", seed=0, rollout_steps=16, minibatch_size=16, n_epochs=1
        )
        for _ in range(3):
            trainer.learn(trainer.collect_rollouts(16))
            if evaluated:
                evaluate_vs_heuristic(trainer.policy, SMALL, 2, 0, deterministic=False)
                evaluate_vs_heuristic(trainer.policy, SMALL, 2, 0)
        return trainer, torch.get_rng_state()

    (plain, plain_stream), (watched, watched_stream) = trained(False), trained(True)
    assert torch.equal(plain_stream, watched_stream)
    assert plain.policy.training == watched.policy.training
    weights = watched.policy.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in plain.policy.state_dict().items())


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"episodes": 3, "seeds": [1, 2]}, "2 seeds came for episodes=3.*episodes=2, or a single number"),
        ({"episodes": 0, "seeds": []}, "episodes=0 must be 1 or more"),
        ({"episodes": 1, "seeds": 0, "num_envs": 0}, "num_envs=0 must be 1 or more"),
    ],
)
def test_what_cannot_be_played_is_refused(settings, words):
    """C37, EB9: a wrong number of seeds is a ValueError that says the way out."""
    with pytest.raises(ConfigError, match=words) as caught:
        evaluate_vs_heuristic(Always(drive_to_zone), SMALL, **settings)
    assert isinstance(caught.value, ValueError)
