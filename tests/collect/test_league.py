"""Who is in a league, who is met how often, who leaves, and what a checkpoint holds of it."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from twostep import ActorCritic, AgentConfig, ConfigError, League, PolicyError, as_policy
from twostep.checkpoint import load_state, save_state
from twostep.collect.league import HEURISTIC, all_alike, prefer_even, prefer_hard


def net(seed=0, **agent):
    torch.manual_seed(seed)
    return ActorCritic(
        spaces.Box(-1, 1, (3,), np.float32),
        spaces.Discrete(4),
        AgentConfig(**{"hidden_size": 8, "memory": "gru", "memory_size": 4, **agent}),
    )


def said(policy, rows=5):
    obs = torch.linspace(-1, 1, 3 * rows).view(1, rows, 3)
    with torch.no_grad():
        output = policy(obs, policy.initial_state(rows), torch.ones(1, rows, dtype=torch.bool))
    return output.values, output.distribution.log_prob(torch.zeros(1, rows, dtype=torch.long))


def beaten(league, name, score, times=30):
    for _ in range(times):
        league.results[name].add(score)


def test_copies_never_change():
    """EB12: what joined stays as it was, whatever becomes of the policy; it learns nothing and acts as if evaluated."""
    policy = net()
    league = League(policy)
    policy.train()
    before = said(policy)
    league.add(name="first")
    version = policy.version
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(1.0)
    policy.set_observation_statistics({"": (np.ones(3), np.full(3, 2.0))})
    policy.version += 1
    frozen = league.members[0].policy
    assert all(torch.equal(then, now) for then, now in zip(before, said(frozen), strict=True))
    assert not any(torch.equal(then, now) for then, now in zip(before, said(policy), strict=True))
    assert frozen.version == version
    assert not frozen.training
    assert policy.training
    assert not any(parameter.requires_grad for parameter in frozen.parameters())
    assert all(parameter.requires_grad for parameter in policy.parameters())


def test_an_adapted_network_joins():
    """EB12: a copy of somebody else's network shares nothing with it either."""

    class Foreign(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.value = nn.Linear(3, 4), nn.Linear(3, 1)

        def forward(self, obs):
            return self.body(obs), self.value(obs).squeeze(-1)

    network = Foreign()
    league = League(as_policy(network, spaces.Discrete(4)))
    league.add()
    before = said(league.members[0].policy)
    with torch.no_grad():
        network.body.weight.add_(1.0)
    assert all(torch.equal(then, now) for then, now in zip(before, said(league.members[0].policy), strict=True))


def test_the_heuristic_alone_plays_until_somebody_joins():
    """EB12: a new league has an opponent."""
    league = League(net(), heuristic_share=0.0)
    assert league.chances().tolist() == [1.0]
    assert {member.name for member in league.draw(10, np.random.default_rng(0))} == {HEURISTIC}
    league.add()
    assert league.chances().tolist() == [0.0, 1.0]


def test_hard_opponents_are_met_more():
    """EB12: who is beaten less is met more, in the proportions of the weighting, beside the heuristic's share."""
    league = League(net(), heuristic_share=0.2)
    for name, score in (("easy", 1.0), ("even", 0.5), ("hard", 0.0)):
        league.add(name=name)
        beaten(league, name, score)
    rates = np.array([league.results[name].win_rate for name in ("easy", "even", "hard")])
    assert rates[0] > 0.9
    assert rates[1] == pytest.approx(0.5)
    assert rates[2] < 0.1
    expected = np.array([0.2, *(0.8 * (1 - rates) ** 2 / ((1 - rates) ** 2).sum())])
    np.testing.assert_allclose(league.chances(), expected)
    drawn = league.draw(20_000, np.random.default_rng(0))
    met = [sum(member.name == name for member in drawn) / len(drawn) for name in (HEURISTIC, "easy", "even", "hard")]
    np.testing.assert_allclose(met, expected, atol=0.015)


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [(prefer_hard, [0.25, 0.0625]), (prefer_even, [0.25, 0.1875]), (all_alike, [1.0, 1.0])],
)
def test_weightings(weighting, expected):
    np.testing.assert_allclose(weighting(np.array([0.5, 0.75])), expected)


def test_weights_of_zero_mean_all_alike():
    league = League(net(), heuristic_share=0.5, weighting=np.zeros_like)
    league.add()
    league.add()
    assert league.chances().tolist() == [0.5, 0.25, 0.25]


def test_win_rates_follow_recent_matches():
    """Drawn matches count as half, and a policy that has learned to win is soon known to."""
    league = League(net())
    results = league.results[HEURISTIC]
    assert results.win_rate == 0.5
    results.add(1.0)
    assert 0.5 < results.win_rate < 0.75
    beaten(league, HEURISTIC, 0.0, 500)
    assert results.win_rate < 0.05
    beaten(league, HEURISTIC, 0.5, 500)
    assert results.win_rate == pytest.approx(0.5, abs=0.01)
    beaten(league, HEURISTIC, 1.0, 100)
    assert results.win_rate > 0.8
    assert results.matches == 1101


def test_the_easiest_leaves():
    """EB12: a full league lets go whom the policy beats most; of two alike the older; never the newcomer."""
    league = League(net(), size=3)
    assert [league.add() for _ in range(3)] == ["past_0", "past_1", "past_2"]
    beaten(league, "past_1", 1.0)
    beaten(league, "past_0", 0.0)
    assert league.add() == "past_3"
    assert [member.name for member in league.members] == ["past_0", "past_2", "past_3"]
    league.add()
    assert [member.name for member in league.members] == ["past_0", "past_3", "past_4"]


def test_metrics():
    league = League(net())
    assert league.metrics() == {"league_size": 0.0}
    league.add(name="a")
    league.add(name="b")
    beaten(league, "a", 1.0)
    beaten(league, HEURISTIC, 0.5)
    assert set(league.metrics()) == {"league_size", "win_rate_heuristic", "win_rate_past", "win_rate_hardest"}
    assert league.metrics()["win_rate_past"] == league.metrics()["win_rate_hardest"] == league.results["a"].win_rate


def test_a_checkpoint_holds_it(tmp_path):
    """EB12: members, versions, results and names go on as if nothing had happened."""
    policy = net()
    league = League(policy, size=3)
    for seed in range(4):
        league.add(net(seed))
        beaten(league, f"past_{seed}", seed / 4, 3)
    beaten(league, HEURISTIC, 1.0, 2)
    save_state(tmp_path / "league", league.state_dict())
    again = League(net(9), size=3)
    again.load_state_dict(load_state(tmp_path / "league")[0])
    assert again.results == league.results
    np.testing.assert_array_equal(again.chances(), league.chances())
    for one, other in zip(league.members, again.members, strict=True):
        assert one.policy.version == other.policy.version
        assert all(torch.equal(then, now) for then, now in zip(said(one.policy), said(other.policy), strict=True))
        assert not any(parameter.requires_grad for parameter in other.policy.parameters())
    assert again.add() == league.add() == "past_4"


def test_a_state_shares_nothing_that_moves():
    league = League(net())
    league.add()
    state = league.state_dict()
    before = copy.deepcopy(state)
    beaten(league, "past_0", 1.0)
    assert state["members"][0]["results"] == before["members"][0]["results"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: League(net(), size=0), "size=0 must be 1 or more"),
        (lambda: League(net(), heuristic_share=1.5), "heuristic_share=1.5 must be between 0 and 1"),
    ],
)
def test_settings_that_cannot_work(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_names_are_taken_once():
    league = League(net())
    league.add(name="a")
    for name in ("a", HEURISTIC):
        with pytest.raises(ConfigError, match=f"name='{name}' is taken: there are heuristic, a"):
            league.add(name=name)
    assert len(league.members) == 1


def test_members_are_built_alike():
    league = League(net())
    with pytest.raises(PolicyError, match="built differently"):
        league.add(net(memory_size=5))
    other = League(net(memory_size=5))
    other.add()
    with pytest.raises(PolicyError, match="past_0 does not fit"):
        league.load_state_dict(other.state_dict())


@pytest.mark.parametrize("wrong", [lambda rates: rates[:-1], lambda rates: rates - 5, lambda rates: rates * np.nan])
def test_a_weighting_that_cannot_work(wrong):
    league = League(net(), weighting=wrong)
    league.add()
    with pytest.raises(ConfigError, match=r"weighting returned .* for the win rates"):
        league.chances()
