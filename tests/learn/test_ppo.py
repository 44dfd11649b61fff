"""PPOOptimizer: the gradient is that of the loss, steps are taken only where they should be, and metrics tell it."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace

import gymnasium as gym
import pytest
import torch
from torch import nn

from twostep import (
    NumericsError,
    PolicyError,
    PPOConfig,
    PPOOptimizer,
    RatioError,
    RolloutBuffer,
    TwostepError,
    combine_rollouts,
    create_fake_rollout_data,
    make_env,
    ppo_loss,
)
from twostep.advantages import explained_variance
from twostep.learn.losses import normalized
from twostep.sequences import Sequences

FREE = {"max_grad_norm": math.inf, "norm_adv": "none"}


@pytest.fixture(params=["called", "compiled"])
def both_ways(request):
    """Once as torch computes it, and once in machine code."""
    if request.param == "compiled":
        request.getfixturevalue("machine_code_at_once")


def whole_minibatch(rollout, number=1):
    """Return the first of `number` minibatches."""
    if rollout.advantages is None:
        rollout.compute_gae(gamma=0.99, gae_lambda=0.95)
    sequences = Sequences(rollout, rollout.advantages, rollout.returns)
    return next(sequences.epoch(number, torch.Generator().manual_seed(0)))


def gradients(learner):
    return torch.cat([parameter.grad.reshape(-1) for parameter in learner.parameters]).clone()


def weights(learner):
    return torch.cat([parameter.detach().reshape(-1) for parameter in learner.parameters]).clone()


def with_holes(rollout):
    """Make some steps, a whole row's end and a whole row invalid."""
    rollout.valid[3:5, 0] = False
    rollout.valid[10:, 1] = False
    rollout.valid[:, 2] = False
    return rollout


def plain_gradient(policy, minibatch, config):
    """Return what autograd says of the loss over a minibatch, unclipped."""
    policy.zero_grad()
    output = policy(minibatch.obs, minibatch.states, minibatch.episode_starts, **minibatch.conditions)
    loss, metrics = ppo_loss(
        output.distribution.log_prob(minibatch.actions),
        output.values,
        output.distribution.entropy(),
        old_logprobs=minibatch.logprobs,
        old_values=minibatch.values,
        advantages=minibatch.advantages,
        returns=minibatch.returns,
        config=config,
        valid=minibatch.valid,
    )
    loss.backward()
    return loss, metrics


# ------------------------------------------------------------------ the gradient


@pytest.mark.parametrize("memory", ["none", "gru", "lstm"])
@pytest.mark.parametrize("holes", [False, True])
def test_gradient_is_that_of_the_loss(collected, both_ways, memory, holes):
    """E15, L11, N10: however it is computed, it is what autograd says, and so is every metric."""
    rollout, policy = collected(num_steps=20, memory=memory, bptt_length=4)
    if holes:
        with_holes(rollout)
    config = PPOConfig(**FREE, clip_vloss=True)
    learner = PPOOptimizer(policy, config=config)
    for _ in range(2):  # the second time is a replay of the first
        with torch.no_grad():
            for parameter in learner.parameters:
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
        minibatch = whole_minibatch(rollout)
        measured = learner.gradient(minibatch)
        got = gradients(learner)
        _, metrics = plain_gradient(policy, minibatch, config)
        torch.testing.assert_close(got, gradients(learner), rtol=1e-5, atol=1e-6)
        for name, value in metrics.items():
            torch.testing.assert_close(measured[name], value, rtol=1e-5, atol=1e-6)
        assert measured["grad_norm"].item() == pytest.approx(got.norm().item(), rel=1e-5)


@pytest.mark.parametrize("max_norm", [1e-3, 0.5, 1e6])
def test_clipping_is_that_of_torch(collected, max_norm):
    """L11, E9: longer gradients are scaled to the limit, shorter ones stay; the metric is the length before."""
    rollout, policy = collected()
    minibatch = whole_minibatch(rollout)
    learner = PPOOptimizer(policy, config=PPOConfig(max_grad_norm=max_norm, norm_adv="none"))
    measured = learner.gradient(minibatch)
    got = gradients(learner)
    plain_gradient(policy, minibatch, learner.config)
    length = nn.utils.clip_grad_norm_(policy.parameters(), max_norm)
    torch.testing.assert_close(got, gradients(learner), rtol=1e-5, atol=1e-7)
    assert measured["grad_norm"].item() == pytest.approx(length.item(), rel=1e-5)


@pytest.mark.parametrize("memory", ["none", "gru"])
@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("accumulate", [2, 3, 7, 1000])
def test_pieces_accumulate_to_the_whole(collected, memory, holes, accumulate):
    """MB6, N18, L24: the same gradient within 1e-6, clipped as a whole, with the same metrics."""
    rollout, policy = collected(num_steps=20, memory=memory)
    if holes:
        with_holes(rollout)
    rollout.compute_gae()
    rollout.advantages, rollout.returns = normalized(rollout.advantages, rollout.valid), rollout.returns / 10
    minibatch = whole_minibatch(rollout)
    minibatch.logprobs = minibatch.logprobs + 0.01 * minibatch.obs[..., 1]
    whole = PPOOptimizer(policy, config=PPOConfig())
    expected_metrics, expected = whole.gradient(minibatch), gradients(whole)
    parts = PPOOptimizer(policy, config=PPOConfig(accumulate=accumulate))
    metrics = parts.gradient(minibatch)
    assert (gradients(parts) - expected).abs().max().item() < 1e-6
    for name, value in expected_metrics.items():
        assert metrics[name].item() == pytest.approx(value.item(), rel=1e-4, abs=1e-6), name


def test_accumulation_changes_no_training(collected, both_ways):
    """L24: a whole update in pieces leads to the same weights."""
    results = []
    for accumulate in (1, 3):
        rollout, policy = collected(num_steps=24, memory="gru", bptt_length=4)
        config = PPOConfig(accumulate=accumulate, norm_adv="minibatch", num_minibatches=2)
        learner = PPOOptimizer(policy, config=config, seed=3)
        learner.update(with_holes(rollout))
        results.append(weights(learner))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)


def test_invalid_steps_change_nothing(collected, both_ways):
    """EB4, R6: whatever stands where nobody was, NaN included, the weights come out the same."""
    results = []
    for poison in (0.0, 1e3, math.nan):
        rollout, policy = collected(num_steps=24)
        with_holes(rollout)
        rollout.compute_gae()
        for column in (rollout.obs, rollout.rewards, rollout.values, rollout.logprobs, rollout.next_values):
            column[~rollout.valid] = poison
        rollout.returns[~rollout.valid] = rollout.advantages[~rollout.valid] = poison
        learner = PPOOptimizer(policy, config=PPOConfig(normalize_obs=True, normalize_returns=True))
        metrics = learner.update(rollout)
        assert all(math.isfinite(value) for value in metrics.values())
        results.append(weights(learner))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("change", [{"clip_coef": 1e-6}, {"vf_coef": 5.0}, {"ent_coef": 1.0}, {"clip_vloss": True}])
def test_new_settings_take_effect_at_once(collected, both_ways, change):
    """C25: a gradient computed before with the same shapes must not be replayed with old settings."""
    rollout, policy = collected()
    minibatch = whole_minibatch(rollout)
    minibatch.logprobs = minibatch.logprobs + 0.1
    minibatch.values = minibatch.values + 1.0
    learner = PPOOptimizer(policy, config=PPOConfig(**FREE))
    learner.gradient(minibatch)
    learner.reconfigure(replace(learner.config, **change))
    learner.gradient(minibatch)
    got = gradients(learner)
    plain_gradient(policy, minibatch, learner.config)
    torch.testing.assert_close(got, gradients(learner), rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------ updates


def test_metrics_are_plain_floats(collected):
    """JB16, M7, E13: every value is a float that JSON can say, and the names are the known ones."""
    rollout, policy = collected()
    metrics = PPOOptimizer(policy, config=PPOConfig()).update(rollout)
    assert {type(value) for value in metrics.values()} == {float}
    known = "loss policy_loss value_loss entropy approx_kl clipfrac grad_norm explained_variance ratio_error lr epochs"
    assert set(metrics) == set(known.split())
    assert all(math.isfinite(value) for value in metrics.values())
    assert 0 < metrics["entropy"] <= math.log(2) + 1e-6
    assert metrics["ratio_error"] < 1e-5


def test_metrics_are_means_over_all_minibatches(collected):
    """Measured before each step: with a rate of almost 0, every minibatch is the first."""
    rollout, policy = collected()
    config = PPOConfig(lr=1e-12, norm_adv="none", update_epochs=3)
    metrics = PPOOptimizer(policy, config=config).update(rollout)
    _, expected = plain_gradient(policy, whole_minibatch(rollout), config)
    for name in ("loss", "policy_loss", "value_loss", "entropy"):
        assert metrics[name] == pytest.approx(expected[name].item(), rel=1e-4), name


def test_explained_variance_is_of_the_whole_rollout_before_learning(collected):
    """LB17, L16: not of the last minibatch, not with the values after."""
    rollout, policy = collected(num_steps=64)
    rollout.compute_gae(gamma=0.99, gae_lambda=0.95)
    expected = explained_variance(rollout.values, rollout.returns).item()
    metrics = PPOOptimizer(policy, config=PPOConfig(lr=0.01)).update(rollout)
    assert metrics["explained_variance"] == pytest.approx(expected, abs=1e-6)


def test_all_steps_are_taken(collected):
    """LB11, E9: epochs times minibatches, leftovers included; nothing more."""
    rollout, policy = collected(num_steps=25, num_envs=3)
    learner = PPOOptimizer(policy, config=PPOConfig(update_epochs=3, minibatch_size=20))
    learner.update(rollout)
    assert {int(state["step"]) for state in learner.optimizer.state.values()} == {3 * 4}


@pytest.mark.parametrize(("target", "epochs"), [(None, 6), (1e-9, 1), (1e9, 6)])
def test_target_kl_stops_after_the_epoch_that_went_too_far(collected, target, epochs):
    """C25: an epoch is finished; the next one is not begun."""
    rollout, policy = collected()
    learner = PPOOptimizer(policy, config=PPOConfig(lr=1e-2, update_epochs=6, target_kl=target))
    assert learner.update(rollout)["epochs"] == epochs
    assert {int(state["step"]) for state in learner.optimizer.state.values()} == {4 * epochs}


@pytest.mark.parametrize("norm_adv", ["batch", "minibatch", "none"])
def test_what_advantages_are_normalised_over(collected, norm_adv):
    """J41, MB8, C17: the rollout, each minibatch, or nothing; the rollout's own stay raw."""
    rollout, policy = collected(num_steps=30)
    rollout.compute_gae(gamma=0.99, gae_lambda=0.95)
    raw = rollout.advantages.clone()
    seen = []

    def spy(policy, obs, actions, rewards, values, advantages):
        seen.append(advantages.flatten().clone())
        return 0.0 * values.sum()

    config = PPOConfig(norm_adv=norm_adv, num_minibatches=5, update_epochs=2)
    PPOOptimizer(policy, config=config).update(rollout, [spy])
    assert torch.equal(rollout.advantages, raw)
    moments = torch.tensor([[part.mean(), part.std()] for part in seen])
    one = torch.tensor([0.0, 1.0])
    epoch = torch.cat(seen[:5])
    if norm_adv == "minibatch":
        torch.testing.assert_close(moments, one.expand(10, 2), rtol=1e-4, atol=1e-4)
    elif norm_adv == "batch":
        torch.testing.assert_close(torch.stack([epoch.mean(), epoch.std()]), one, rtol=1e-4, atol=1e-4)
        assert (moments - one).abs().max().item() > 1e-2
    else:
        assert torch.equal(epoch.sort().values, raw.flatten().sort().values)


@pytest.mark.parametrize("norm_adv", ["batch", "minibatch"])
def test_minibatches_of_one_transition_are_no_nan(collected, norm_adv):
    """EB13, MB8, R4."""
    rollout, policy = collected(num_steps=3, num_envs=1)
    learner = PPOOptimizer(policy, config=PPOConfig(norm_adv=norm_adv, minibatch_size=1, update_epochs=1))
    assert all(math.isfinite(value) for value in learner.update(rollout).values())
    assert bool(weights(learner).isfinite().all())


@pytest.mark.parametrize("size", [0, 5])
def test_nothing_to_learn_from_changes_nothing(collected, size):
    """J37, EB4: no transition, or none that counts."""
    _, policy = collected(num_steps=4)
    empty = RolloutBuffer.from_dict(create_fake_rollout_data(size))
    empty.valid[:] = False
    learner = PPOOptimizer(policy, config=PPOConfig())
    before, version = weights(learner), policy.version
    metrics = learner.update(empty)
    assert all(math.isnan(value) for value in metrics.values())
    assert torch.equal(weights(learner), before)
    assert policy.version == version


def test_the_same_seed_gives_the_same_weights(collected):
    """R10: minibatches are ordered by the learner's own generator, whatever the global one does."""
    results = []
    for seed, disturbance in ((5, 0), (5, 1), (6, 0)):
        rollout, policy = collected()
        torch.manual_seed(disturbance)
        learner = PPOOptimizer(policy, config=PPOConfig(), seed=seed)
        learner.update(rollout)
        results.append(weights(learner))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_recomputed_values_are_those_of_the_present_critic(collected):
    """JB11: values, and with them advantages, of old data; flags stay."""
    rollout, policy = collected(num_steps=40, memory="gru")
    learner = PPOOptimizer(policy, config=PPOConfig(lr=1e-2))
    learner.update(rollout)
    anew = learner.revalued(rollout)
    assert anew.advantages is None
    assert not torch.allclose(anew.values, rollout.values, atol=1e-3)
    state = rollout.states[0]
    with torch.no_grad():
        for t in range(40):
            output = policy(rollout.obs[t : t + 1], state, rollout.episode_starts[t : t + 1])
            torch.testing.assert_close(anew.values[t], output.values[0], rtol=1e-4, atol=1e-4)
            state = output.state
    ended = rollout.terminated | rollout.truncated
    assert bool(ended[:-1].any())
    ended[-1] = True
    behind = rollout.next_values + (anew.values - rollout.values)
    assert torch.equal(anew.next_values[ended], behind[ended]), "unknown states move with those before them"
    assert torch.equal(anew.next_values[:-1][~ended[:-1]], anew.values[1:][~ended[:-1]])


# ------------------------------------------------------------------ the checks


def test_changed_weights_are_noticed_before_the_first_step(collected):
    """R3: the policy that learns must be the one that acted; nothing is learned otherwise."""
    rollout, policy = collected()
    learner = PPOOptimizer(policy, config=PPOConfig())
    with torch.no_grad():
        policy.action_head.linear.weight.add_(torch.randn_like(policy.action_head.linear.weight))
    before = weights(learner)
    with pytest.raises(RatioError, match=r"max \|ratio - 1\| = .*before the first step.*policy_version=None"):
        learner.update(rollout)
    assert torch.equal(weights(learner), before)
    rollout.policy_version = None
    assert learner.update(rollout)["ratio_error"] > 1e-3


def test_a_nan_in_the_policy_is_no_ratio_of_one(collected):
    """Not greater than the tolerance is not the same as within it."""
    rollout, policy = collected()
    with torch.no_grad():
        policy.action_head.linear.bias.fill_(math.nan)
    with pytest.raises(RatioError):
        PPOOptimizer(policy, config=PPOConfig()).update(rollout)


def test_old_data_are_learned_from_without_complaint(collected):
    """J7, JB11: after an update the policy has another version, and the ratio shows how old the data are."""
    rollout, policy = collected()
    learner = PPOOptimizer(policy, config=PPOConfig(lr=1e-2))
    version = policy.version
    assert learner.update(rollout)["ratio_error"] < 1e-5
    assert policy.version == version + 1
    assert learner.update(rollout)["approx_kl"] > 1e-4


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_numbers_that_are_not_finite_are_named(collected, bad):
    """J38, R4."""
    rollout, policy = collected()
    rollout.rewards[5, 1] = bad
    with pytest.raises(NumericsError, match=r"nan|inf"):
        PPOOptimizer(policy, config=PPOConfig()).update(rollout)


def test_a_policy_without_parameters_is_refused():
    class Nothing(nn.Module):
        def forward(self, obs):
            return obs[..., :2], obs[..., 0]

        def initial_state(self, batch):
            return ()

        def to_env(self, actions):
            return actions

    with pytest.raises(PolicyError, match="no parameters"):
        PPOOptimizer(Nothing())


@pytest.mark.parametrize("setting", [{"precision": "bf16"}, {"normalize_obs": True}, {"normalize_returns": True}])
def test_settings_that_a_foreign_network_cannot_have_are_refused(setting):
    class Foreign(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, obs):
            out = self.linear(obs)
            return out[..., :2], out[..., 2]

    from twostep import as_policy

    policy = as_policy(Foreign(), gym.spaces.Discrete(2))
    with pytest.raises(PolicyError, match="need an ActorCritic"):
        PPOOptimizer(policy, config=PPOConfig(**setting))


# ------------------------------------------------------------------ optimizers and rates


def test_adamw_decays_weights_apart_from_the_gradient(collected):
    """L13, C9: where the gradient is 0, each step multiplies every weight by 1 - lr * decay, and Adam does nothing."""
    for kind, factor in (("adamw", (1 - 0.01 * 0.1) ** 8), ("adam", 1.0)):
        rollout, policy = collected(num_steps=16)
        rollout.advantages, rollout.returns = torch.zeros_like(rollout.values), rollout.values.clone()
        decay = 0.1 if kind == "adamw" else 0.0
        config = PPOConfig(lr=0.01, optimizer=kind, weight_decay=decay, ent_coef=0, vf_coef=0, update_epochs=2, **FREE)
        learner = PPOOptimizer(policy, config=config)
        before = weights(learner)
        learner.update(rollout)
        assert type(learner.optimizer).__name__.lower() == kind
        torch.testing.assert_close(weights(learner), before * factor, rtol=1e-5, atol=1e-7)


def test_any_optimizer_can_be_passed(collected):
    """C9, M6: PPOOptimizer(policy, optimizer, device, config)."""
    rollout, policy = collected()
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    minibatch = whole_minibatch(rollout)
    learner = PPOOptimizer(policy, optimizer, "cpu", PPOConfig(update_epochs=1, num_minibatches=1, **FREE))
    before = weights(learner)
    plain_gradient(policy, minibatch, learner.config)
    expected = before - 0.1 * gradients(learner)
    metrics = learner.update(rollout)
    torch.testing.assert_close(weights(learner), expected, rtol=1e-4, atol=1e-5)
    assert metrics["lr"] == 0.1


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [("constant", (1.0, 1.0, 1.0)), ("linear", (1.0, 0.5, 0.0)), ("cosine", (1.0, 0.55, 0.1))],
)
def test_rates_follow_progress(collected, schedule, rates):
    """L14, C10, LB8, N7."""
    _, policy = collected(num_steps=4)
    learner = PPOOptimizer(policy, config=PPOConfig(lr=1e-3, lr_schedule=schedule))
    for progress, rate in zip((0.0, 0.5, 1.0), rates, strict=True):
        learner.set_progress(progress)
        assert learner.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 * rate)


@pytest.mark.parametrize(("desired_kl", "expected"), [(1e-9, 1e-3 / 1.5), (1e9, 1e-3 * 1.5)])
def test_rates_follow_the_kl(collected, desired_kl, expected):
    """C10: after an update that moved the policy too far the rate falls, after one that hardly moved it it rises."""
    rollout, policy = collected()
    learner = PPOOptimizer(policy, config=PPOConfig(lr=1e-3, lr_schedule="adaptive_kl", desired_kl=desired_kl))
    assert learner.update(rollout)["lr"] == pytest.approx(expected)
    learner.set_progress(0.7)
    assert learner.optimizer.param_groups[0]["lr"] == pytest.approx(expected), "progress does not undo it"


def test_going_on_from_a_state_is_never_having_stopped(collected):
    """J28, R7: optimizer, rate, normalisers, minibatch size and order."""
    config = PPOConfig(
        lr=1e-3, lr_schedule="adaptive_kl", normalize_obs=True, normalize_returns=True, adaptive_minibatch=(8, 64)
    )
    rollout, policy = collected(num_steps=40)
    rollout.policy_version = None
    learner = PPOOptimizer(policy, config=config, seed=1)
    learner.update(rollout)
    state, policy_state = deepcopy((learner.state_dict(), policy.state_dict()))
    other_rollout, other_policy = collected(num_steps=40, seed=9)
    other = PPOOptimizer(other_policy, config=config, seed=2)
    other.update(other_rollout)
    other_policy.load_state_dict(policy_state)
    other.load_state_dict(state)
    first, second = learner.update(rollout), other.update(rollout)
    assert torch.equal(weights(learner), weights(other))
    assert first == second
    assert learner.minibatch_size == other.minibatch_size


# ------------------------------------------------------------------ custom losses


def stay_small(policy, obs, actions, rewards, values, advantages):
    """Custom loss with a gradient that can be told by hand: 2 * values / n."""
    return values.square().mean()


def prefer_zero(policy, obs, actions, rewards, values, advantages):
    """Custom loss over the policy's own weights, with a metric."""
    size = sum(parameter.square().sum() for parameter in policy.parameters())
    return 0.01 * size, {"weight_size": size, "rewards_seen": float(rewards.mean())}


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("memory", ["none", "gru"])
def test_gradients_of_custom_losses_are_added(collected, accumulate, memory):
    """M3, M4, M8, N18: several at once, in pieces too."""
    rollout, policy = collected(num_steps=24, memory=memory)
    minibatch = whole_minibatch(rollout)
    config = PPOConfig(**FREE, accumulate=accumulate)
    learner = PPOOptimizer(policy, config=config)
    without = learner.gradient(minibatch)
    plain = gradients(learner)
    metrics = learner.gradient(minibatch, [stay_small, prefer_zero])
    got = gradients(learner)
    policy.zero_grad()
    values = policy(minibatch.obs, minibatch.states, minibatch.episode_starts).values
    small = stay_small(policy, None, None, None, values, None)
    zero, _ = prefer_zero(policy, None, None, minibatch.rewards, values, None)
    (small + zero).backward()
    added = torch.cat(
        [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in learner.parameters]
    )
    torch.testing.assert_close(got, plain + added, rtol=1e-4, atol=1e-5)
    assert added.abs().max().item() > 1e-3
    expected = without["loss"].item() + small.item() + zero.item()
    assert metrics["loss"].item() == pytest.approx(expected, rel=1e-5)


def test_custom_losses_are_measured_by_their_names(collected):
    """M8: their own metrics too, as plain floats, means over all minibatches."""
    rollout, policy = collected()
    learner = PPOOptimizer(policy, config=PPOConfig(lr=1e-12, update_epochs=2))
    metrics = learner.update(rollout, custom_loss_fns=[stay_small, prefer_zero])
    assert {"stay_small", "prefer_zero", "weight_size", "rewards_seen"} <= set(metrics)
    assert {type(value) for value in metrics.values()} == {float}
    assert metrics["rewards_seen"] == pytest.approx(rollout.rewards.mean().item())
    assert metrics["prefer_zero"] == pytest.approx(0.01 * metrics["weight_size"])


def test_custom_losses_see_what_the_six_arguments_say(collected):
    """M4: policy, obs, actions, rewards, values with a gradient, advantages, all of the same transitions."""
    rollout, policy = collected()
    calls = []

    def look(given, obs, actions, rewards, values, advantages):
        calls.append(given)
        shape = rewards.shape
        assert obs.shape == (*shape, 4)
        assert actions.shape == values.shape == advantages.shape == shape
        assert values.requires_grad
        return values.sum() * 0.0

    PPOOptimizer(policy, config=PPOConfig(update_epochs=1)).update(rollout, [look])
    assert calls == [policy] * 4


# ------------------------------------------------------------------ precision and normalisers


def test_bf16_learns_nearly_the_same(collected):
    """N19, L24: the products are coarser, the weights stay 32 bits wide, and the ratio check knows."""
    gradient = {}
    for precision in ("fp32", "bf16"):
        rollout, policy = collected(hidden_size=32)
        learner = PPOOptimizer(policy, config=PPOConfig(precision=precision, norm_adv="none", max_grad_norm=math.inf))
        learner.gradient(whole_minibatch(rollout))
        gradient[precision] = gradients(learner)
        assert learner.update(rollout)["ratio_error"] < 0.05
        assert {parameter.dtype for parameter in learner.parameters} == {torch.float32}
    away = (gradient["bf16"] - gradient["fp32"]).norm() / gradient["fp32"].norm()
    assert 0 < away.item() < 0.05


def test_scaling_the_critic_leaves_its_raw_values(collected):
    """EB1, R5: another unit inside, the same numbers outside."""
    rollout, policy = collected(memory="gru")
    states = rollout.states[0]
    for scale in (10.0, 0.02, 1.0):
        policy.set_value_scale(scale)
        values = policy(rollout.obs, states, rollout.episode_starts).values
        assert policy.value_scale.item() == pytest.approx(scale)
        torch.testing.assert_close(values, rollout.values, rtol=1e-4, atol=1e-4)


def test_the_value_loss_is_in_units_of_the_running_deviation(collected, both_ways):
    """EB1, EB2, E22, C34: raw returns divided by their deviation; the mean is not subtracted."""
    rollout, policy = collected(num_steps=64)
    rollout.compute_gae(gamma=0.99, gae_lambda=0.95)
    rollout.returns, rollout.values = 100 * rollout.returns + 500, 100 * rollout.values
    rollout.policy_version = None
    config = PPOConfig(normalize_returns=True, lr=1e-12, vf_coef=1.0, num_minibatches=1, update_epochs=1)
    learner = PPOOptimizer(policy, config=config)
    with torch.no_grad():
        values = policy(rollout.obs, (), rollout.episode_starts).values
    deviation = rollout.returns.std(correction=0)
    metrics = learner.update(rollout)
    expected = 0.5 * ((values - rollout.returns) / deviation).square().mean().item()
    assert metrics["value_loss"] == pytest.approx(expected, rel=1e-3)
    assert policy.value_scale.item() == pytest.approx(deviation.item(), rel=1e-4)


def test_observation_statistics_stand_still_until_learning_is_over(collected, both_ways):
    """R5, STYLE: what acts is what learns; then the statistics move, and the next rollout fits the new policy."""
    rollout, policy = collected(num_steps=40)
    (vector,) = policy.encoder.vectors().values()
    seen = []

    def spy(given, obs, actions, rewards, values, advantages):
        seen.append(vector.mean.clone())
        return 0.0 * values.sum()

    learner = PPOOptimizer(policy, config=PPOConfig(normalize_obs=True))
    learner.update(rollout, [spy])
    assert all(torch.equal(mean, torch.zeros(4)) for mean in seen)
    first = rollout.obs.flatten(0, 1)
    torch.testing.assert_close(vector.mean, first.mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(1 / vector.inverse_std, first.std(0, correction=0), rtol=1e-3, atol=1e-5)
    second, _ = collected(num_steps=40, policy=policy, seed=1)
    assert learner.update(second)["ratio_error"] < 1e-4
    both = torch.cat([first, second.obs.flatten(0, 1)])
    torch.testing.assert_close(vector.mean, both.mean(0), rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------ the parts of the loss


def test_compute_ppo_loss_says_its_parts(collected):
    """M9: the six names, and a total that can be learned from."""
    rollout, policy = collected()
    rollout.compute_gae(gamma=0.99, gae_lambda=0.95)
    columns = [column.flatten(0, 1) for column in (rollout.obs, rollout.actions, rollout.logprobs)]
    columns += [column.flatten() for column in (rollout.advantages, rollout.returns, rollout.values)]
    learner = PPOOptimizer(policy, None, "cpu", PPOConfig(**FREE))
    losses = learner.compute_ppo_loss(*columns)
    assert {"policy_loss", "value_loss", "entropy_loss", "total_loss", "approx_kl", "clipfrac"} <= set(losses)
    policy.zero_grad()
    losses["total_loss"].backward()
    got = gradients(learner)
    learner.gradient(whole_minibatch(rollout))
    torch.testing.assert_close(got, gradients(learner), rtol=1e-4, atol=1e-5)
    parts = losses["policy_loss"] + 0.5 * losses["value_loss"] + 0.01 * losses["entropy_loss"]
    assert parts.item() == pytest.approx(losses["total_loss"].item(), rel=1e-4)


def test_learning_from_several_rollouts_takes_them_as_one(collected):
    """J13, J10: five short rollouts joined are one large batch."""
    rollouts, policy = [], None
    for seed in range(5):
        rollout, policy = collected(num_steps=8, num_envs=1, policy=policy, seed=seed)
        rollouts.append(rollout)
    learner = PPOOptimizer(policy, config=PPOConfig(minibatch_size=10, update_epochs=1))
    metrics = learner.update(combine_rollouts(rollouts))
    assert metrics["ratio_error"] < 1e-5
    assert {int(state["step"]) for state in learner.optimizer.state.values()} == {4}


def test_continuous_actions_learn_too(collected, small_policy):
    """L25: the same update for a Gaussian over boxes."""
    from twostep.collect.collector import RolloutCollector

    env = make_env("Pendulum-v1", 2)
    policy = small_policy(env)
    rollout = RolloutCollector(env, policy, num_steps=16, seed=0, env_seed=0).rollout()
    env.close()
    learner = PPOOptimizer(policy, config=PPOConfig())
    before = weights(learner)
    assert learner.update(rollout)["ratio_error"] < 1e-4
    assert not torch.equal(weights(learner), before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"obs": torch.zeros(32, 4, 3)}, r"obs of the rollout has shape \[3\] per step.*wants \[4\]"),
        ({"obs": {"seen": torch.zeros(32, 4, 4)}}, "obs of the rollout is .*seen"),
        ({"actions": torch.zeros(32, 4, 2)}, r"actions of the rollout has shape \[2\] per step.*wants \[\]"),
        ({"actions": torch.full((32, 4), 7)}, r"actions at step 0, row 0 of the rollout is no action of Discrete\(2\)"),
        ({"action_masks": torch.ones(32, 4, 2)}, "float32 must be bool"),
        ({"action_masks": torch.zeros(32, 4, 2, dtype=torch.bool)}, "action_masks at step 0, row 0.*forbids every"),
    ],
)
def test_data_that_the_policy_cannot_have_collected_are_refused(collected, change, message):
    """Each is one clear error, and the weights stay what they were."""
    rollout, policy = collected()
    learner = PPOOptimizer(policy, config=PPOConfig())
    foreign = replace(rollout, policy_version=None, **change)
    before = weights(learner)
    with pytest.raises(TwostepError, match=message):
        learner.update(foreign)
    assert torch.equal(weights(learner), before)
