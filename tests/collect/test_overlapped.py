"""Collectors in threads, and collecting while learning: J10, J11, JB13."""

from __future__ import annotations

import time

import pytest
import torch

from twostep import (
    AgentConfig,
    CollectorTeam,
    EnvError,
    OverlappedCollector,
    PPOConfig,
    PPOOptimizer,
    RolloutCollector,
    as_policy,
    combine_rollouts,
    make_env,
    make_policy,
)
from twostep.runtime import fast_products
from twostep.tree import tree_items


def same(a, b):
    for name in ("obs", "actions", "logprobs", "values", "rewards", "next_values", "terminated", "truncated", "states"):
        for (_, mine), (_, others) in zip(tree_items(getattr(a, name)), tree_items(getattr(b, name)), strict=True):
            if not torch.equal(mine, others):
                return False
    return True


@pytest.fixture
def team(request):
    """A function: a team in three environments, and the policy that it copies."""

    def build(memory="none", rows=2, steps=24, dropout=False):
        envs = [make_env("CartPole-v1", rows) for _ in range(3)]
        policy = make_policy(envs[0], AgentConfig(hidden_size=8, memory=memory, memory_size=4), seed=0)
        if dropout:
            net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 3))
            with pytest.warns(UserWarning, match="act differently in training"):
                policy = as_policy(Split(net), envs[0].action_space)
        made = CollectorTeam(envs, policy, steps, bptt_length=8, seed=7)
        request.addfinalizer(made.close)
        return made, policy

    return build


class Split(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, obs):
        out = self.net(obs)
        return out[..., :2], out[..., 2]


@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_a_team_collects_what_its_collectors_collect_one_after_the_other(team, memory):
    """J10, JB13: bit for bit, whoever is faster; a policy that acted is the policy that learns."""
    together, policy = team(memory)
    seeds = [(collector.generator.initial_seed(), collector.env_seed) for collector in together.collectors]
    alone = [
        RolloutCollector(
            make_env("CartPole-v1", 2), policy, num_steps=24, bptt_length=8, seed=actions, env_seed=env_seed
        )
        for actions, env_seed in seeds
    ]
    learner = PPOOptimizer(policy, config=PPOConfig(update_epochs=1))
    for _ in range(3):
        rollout = together.rollout()
        assert same(rollout, combine_rollouts(collector.rollout() for collector in alone))
        assert rollout.num_rows == 6
        assert learner.update(rollout)["ratio_error"] < 1e-5
    assert len(set(seeds)) == 3


def test_the_copies_share_nothing_with_the_learner(team):
    """JB13: the policy may learn and move while its copies act."""
    together, policy = team()
    for collector in together.collectors:
        assert collector.policy is not policy
        assert not any(parameter.requires_grad for parameter in collector.policy.parameters())
    before = [parameter.clone() for parameter in policy.parameters()]
    finish = together.begin()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.fill_(0.0)
    policy.double()
    rollout = finish()
    assert rollout.logprobs.dtype == torch.float32
    assert rollout.logprobs.std() > 0
    acted = together.collectors[0].policy.parameters()
    assert all(torch.equal(a, b) for a, b in zip(before, acted, strict=True))


def test_collecting_overlaps_with_learning_at_a_lag_of_one(team):
    """J11: every rollout but the first is of the policy before the last update, whatever took how long."""
    together, policy = team()
    expected_from, other = team()
    overlapped = OverlappedCollector(together)
    learner, other_learner = (PPOOptimizer(p, config=PPOConfig(update_epochs=2)) for p in (policy, other))
    lags, waiting = [], expected_from.begin()
    for update in range(4):
        rollout = overlapped.rollout()
        lags.append(overlapped.lag)
        expected = waiting()
        waiting = expected_from.begin()
        assert same(rollout, expected)
        if update % 2:
            time.sleep(0.02)
        metrics = learner.update(rollout)
        other_learner.update(expected)
        assert (metrics["ratio_error"] < 1e-5) == (overlapped.lag == 0)
    assert lags == [0, 1, 1, 1]
    assert all(map(torch.equal, policy.parameters(), other.parameters()))
    waiting()


def test_what_fails_in_a_thread_is_raised_where_it_is_waited_for(team):
    """J11: the next rollout begins anew."""
    together, _ = team()
    env = together.collectors[1].vecenv
    step, env.step = env.step, lambda actions: (_ for _ in ()).throw(EnvError("the simulator is gone"))
    overlapped = OverlappedCollector(together)
    with pytest.raises(EnvError, match="the simulator is gone"):
        overlapped.rollout()
    env.step = step
    assert overlapped.rollout().episode_starts[0, 2:4].all()


def test_nobody_to_collect_from():
    with pytest.raises(EnvError, match=r"vecenvs=\[\] leaves nothing"):
        CollectorTeam([], torch.nn.Linear(1, 1), 1)


def test_networks_of_ones_own_are_copied_too(team):
    """JB8, JB13: dropout is off in the copies."""
    together, policy = team(dropout=True)
    metrics = PPOOptimizer(policy, config=PPOConfig(update_epochs=1)).update(together.rollout())
    assert metrics["ratio_error"] < 1e-5


def test_threads_round_alike(team):
    """J11: which kernel multiplies is the process's to choose, so it does not change while threads compute."""
    before = torch.get_float32_matmul_precision()
    together, _ = team()
    with fast_products(10**6, torch.device("cpu")):
        assert torch.get_float32_matmul_precision() == before
    together.close()
    together.close()
    with fast_products(10**6, torch.device("cpu")):
        pass
    assert torch.get_float32_matmul_precision() == before
