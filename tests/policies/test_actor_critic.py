"""The default policy: one function for acting and learning over any spaces, with values in raw units."""

from __future__ import annotations

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from twostep import ActorCritic, AgentConfig, make_policy
from twostep.errors import ConfigError, PolicyError
from twostep.protocols import Policy
from twostep.tree import tree_leaves, tree_map

MEMORIES = ("none", "gru", "lstm")
BODY = spaces.Dict(
    {
        "commands": spaces.Box(-1, 1, (3,), np.float32),
        "proprioception": spaces.Box(-1, 1, (6,), np.float32),
        "scandots": spaces.Box(-1, 1, (4, 3), np.float32),
    }
)
JOINTS = spaces.Box(-1, 1, (12,), np.float32)
VECTOR = spaces.Box(-1, 1, (3,), np.float32)
FOUR = spaces.Discrete(4)


def small(**settings):
    return AgentConfig(**{"hidden_size": 8, "memory_size": 5, **settings})


def build(observation_space=VECTOR, action_space=FOUR, seed=0, **settings):
    torch.manual_seed(seed)
    policy = ActorCritic(observation_space, action_space, small(**settings))
    with torch.no_grad():  # heads start nearly the same everywhere, which would hide what they see
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return policy


def obs_of(space, steps, rows, seed=0):
    if isinstance(space, spaces.Dict):
        return {name: obs_of(part, steps, rows, seed + n) for n, (name, part) in enumerate(space.spaces.items())}
    space.seed(seed)
    flat = [torch.as_tensor(space.sample()) for _ in range(steps * rows)]
    return torch.stack(flat).unflatten(0, (steps, rows))


def parameters_of(distribution):
    """Return the tensors that a distribution is made of."""
    return distribution.log_probs if hasattr(distribution, "log_probs") else distribution.mean


def call(policy, obs, starts=None, state=None, **conditions):
    shape = tree_leaves(obs)[0].shape[:2]
    starts = torch.zeros(shape, dtype=torch.bool) if starts is None else starts
    return policy(obs, policy.initial_state(shape[1]) if state is None else state, starts, **conditions)


def test_follows_the_protocol():
    assert isinstance(build(), Policy)


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_walking_robot(memory):
    """L1, L2, L3, L4: named groups, an encoder for scandots, memory, 12 joint targets and one value per row."""
    policy = build(BODY, JOINTS, memory=memory, encoders={"scandots": (6,)}, action_hidden=(7,), memory_layers=2)
    output = call(policy, obs_of(BODY, 5, 3))
    actions = output.distribution.sample()
    assert actions.shape == (5, 3, 12)
    assert output.values.shape == output.distribution.log_prob(actions).shape == (5, 3)
    assert policy.to_env(actions[0]).shape == (3, 12)
    assert [leaf.shape for leaf in tree_leaves(output.state)] == [(3, 2, 2, 5)] * MEMORIES.index(memory)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("shared", [True, False])
def test_learning_sees_what_acting_saw(memory, shared):
    """One call over a sequence is as many calls over single steps, memory and resets included."""
    policy = build(BODY, JOINTS, memory=memory, shared=shared, memory_layers=2, value_hidden=(6,))
    obs, starts = obs_of(BODY, 9, 4), torch.rand(9, 4) < 0.3
    whole = call(policy, obs, starts)
    state = policy.initial_state(4)
    for t in range(9):
        step = policy(tree_map(lambda leaf, t=t: leaf[t : t + 1], obs), state, starts[t : t + 1])
        state = step.state
        assert torch.allclose(step.values[0], whole.values[t], atol=1e-5)
        assert torch.allclose(step.distribution.mean[0], whole.distribution.mean[t], atol=1e-5)
    for ours, theirs in zip(tree_leaves(state), tree_leaves(whole.state), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("memory", MEMORIES)
def test_rows_do_not_touch_each_other(memory):
    policy = build(memory=memory)
    obs = obs_of(VECTOR, 6, 4)
    changed = obs.clone()
    changed[:, 1] += 1.0
    before, after = call(policy, obs), call(policy, changed)
    others = [0, 2, 3]
    assert torch.allclose(before.values[:, others], after.values[:, others], atol=1e-6)
    assert not torch.allclose(before.values[:, 1], after.values[:, 1], atol=1e-3)


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_memory_reaches_forward_only(memory):
    """A change at one step is seen by later ones until the episode ends, and never by earlier ones."""
    policy = build(memory=memory)
    obs, starts = obs_of(VECTOR, 6, 2), torch.zeros(6, 2, dtype=torch.bool)
    starts[4, 0] = True
    changed = obs.clone()
    changed[2] += 1.0
    moved = (call(policy, obs, starts).values - call(policy, changed, starts).values).abs() > 1e-6
    assert moved.tolist() == [[False] * 2, [False] * 2, [True] * 2, [True] * 2, [False, True], [False, True]]


@pytest.mark.parametrize("memory", MEMORIES)
def test_actor_and_critic_share_nothing_by_default(memory):
    """The value's gradient reaches no weight of the actor, nor the other way round."""
    policy = build(memory=memory)
    output = call(policy, obs_of(VECTOR, 5, 3))
    output.values.square().sum().backward(retain_graph=True)
    assert all(
        parameter.grad is None or not parameter.grad[0].any()
        for module in (policy.encoder, policy.memory or torch.nn.Module())
        for parameter in module.parameters()
    )
    assert policy.action_head.linear.weight.grad is None
    policy.zero_grad()
    output.distribution.entropy().sum().backward()
    assert not policy.encoder.trunk.weight_0.grad[1].any()
    assert policy.encoder.trunk.weight_0.grad[0].any()
    assert policy.value_head.weight.grad is None


def test_a_shared_trunk_is_shared():
    """L4: a separate value head on shared features, where that is asked for."""
    policy = build(shared=True, memory="gru")
    assert policy.towers == 1
    assert sum(p.numel() for p in policy.parameters()) < sum(p.numel() for p in build(memory="gru").parameters())
    output = call(policy, obs_of(VECTOR, 5, 3))
    output.values.sum().backward(retain_graph=True)
    from_values = policy.encoder.trunk.weight_0.grad.clone()
    policy.zero_grad()
    output.distribution.entropy().sum().backward()
    assert from_values.any()
    assert policy.encoder.trunk.weight_0.grad.any()


@pytest.mark.parametrize(
    ("space", "towers"),
    [
        (VECTOR, 2),
        (spaces.Box(0, 255, (1, 9, 9), np.uint8), 1),
        (spaces.Dict({"a": spaces.Box(0, 255, (9, 9), np.uint8), "b": spaces.Box(0, 255, (9, 9, 3), np.uint8)}), 1),
        (spaces.Dict({"a": spaces.Box(0, 255, (9, 9), np.uint8), "b": VECTOR}), 2),
    ],
)
def test_only_pictures_are_shared_by_default(space, towers):
    assert ActorCritic(space, FOUR, small()).towers == towers
    assert ActorCritic(space, FOUR, small(shared=False)).towers == 2


@pytest.mark.parametrize("memory", MEMORIES)
def test_what_only_the_critic_sees_never_reaches_the_actor(memory):
    """Neither as a number nor through memory nor as a gradient."""
    policy = build(BODY, JOINTS, memory=memory, critic_only=("scandots",), encoders={"scandots": (4,)})
    obs = obs_of(BODY, 5, 3)
    changed = {**obs, "scandots": -obs["scandots"]}
    first, second = call(policy, obs), call(policy, changed)
    assert torch.equal(first.distribution.mean, second.distribution.mean)
    assert not torch.allclose(first.values, second.values)
    first.distribution.mean.square().sum().backward()
    scandots = policy.encoder.groups[2]
    assert scandots.path == "scandots"
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in scandots.parameters())


@pytest.mark.parametrize("memory", MEMORIES)
def test_context_conditions_both(memory):
    """J20: actor and critic see what they are conditioned on, row by row."""
    policy = build(memory=memory, context_size=2)
    obs, context = obs_of(VECTOR, 4, 3), torch.randn(4, 3, 2)
    other = context.clone()
    other[:, 1] += 1
    first, second = call(policy, obs, context=context), call(policy, obs, context=other)
    for ours, theirs in ((first.values, second.values), (first.distribution.log_probs, second.distribution.log_probs)):
        assert torch.allclose(ours[:, [0, 2]], theirs[:, [0, 2]], atol=1e-6)
        assert not torch.allclose(ours[:, 1], theirs[:, 1], atol=1e-3)


def test_a_missing_or_unexpected_context_is_named():
    with pytest.raises(PolicyError, match="context_size=2"):
        call(build(context_size=2), obs_of(VECTOR, 4, 3))
    with pytest.raises(PolicyError, match="AgentConfig\\(context_size=5\\)"):
        call(build(), obs_of(VECTOR, 4, 3), context=torch.zeros(4, 3, 5))


def test_masks_reach_the_distribution():
    policy = build()
    masks = torch.rand(4, 3, 4) < 0.5
    masks[..., 2] = True
    distribution = call(policy, obs_of(VECTOR, 4, 3), action_masks=masks).distribution
    assert (distribution.probs[~masks] == 0).all()
    assert (distribution.probs[masks] > 0).all()


def test_the_unit_of_values_can_change_unnoticed():
    """EB2, C34: what the critic says in raw units stays what it was; only the weights' unit moves."""
    policy = build(value_hidden=(6,))
    obs = obs_of(VECTOR, 4, 3)
    before = call(policy, obs).values.detach()
    weight = policy.value_head.weight.detach().clone()
    for scale in (250.0, 0.01, 3.0):
        policy.set_value_scale(scale)
        assert torch.allclose(call(policy, obs).values, before, rtol=1e-5, atol=1e-6)
        assert torch.allclose(policy.value_head.weight * scale, weight, rtol=1e-5)
        assert float(policy.value_scale) == pytest.approx(scale)


def test_statistics_are_those_set_last():
    """Means and deviations by path; what they do not name is left as it is, and categories have none."""
    space = spaces.Dict({"a": VECTOR, "b": VECTOR, "c": spaces.Discrete(3)})
    policy = build(space)
    obs = obs_of(space, 2, 3)
    policy.set_observation_statistics({"a": (np.full(3, 2.0), np.full(3, 4.0)), "unknown": (np.ones(1), np.ones(1))})
    changed = {**obs, "a": obs["a"] * 4 + 2}
    assert torch.allclose(call(policy, changed).values, call(build(space), obs).values, atol=1e-5)


def test_round_trip_through_a_state_dict():
    """Weights, the unit of values and observation statistics all come along."""
    policy = build(memory="lstm")
    policy.set_value_scale(7.0)
    policy.set_observation_statistics({"": (np.full(3, 0.5), np.full(3, 2.0))})
    other = build(memory="lstm", seed=1)
    other.load_state_dict(policy.state_dict())
    obs = obs_of(VECTOR, 4, 3)
    assert torch.equal(call(policy, obs).values, call(other, obs).values)
    assert torch.equal(call(policy, obs).distribution.log_probs, call(other, obs).distribution.log_probs)
    assert all(isinstance(value, torch.Tensor) for value in policy.state_dict().values())


def test_a_copy_is_a_policy_of_its_own():
    policy = build(memory="gru")
    policy.set_observation_statistics({"": (np.full(3, 0.5), np.full(3, 2.0))})
    obs = obs_of(VECTOR, 4, 3)
    twin = copy.deepcopy(policy)
    before = call(twin, obs).values.detach()
    assert torch.equal(before, call(policy, obs).values)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(1.0)
    policy.set_observation_statistics({"": (np.zeros(3), np.ones(3))})
    assert torch.equal(before, call(twin, obs).values)


def test_a_seed_makes_the_weights_and_leaves_the_world_alone():
    env = gym.make("CartPole-v1")
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first = make_policy(env, small(), seed=3)
    assert torch.equal(torch.rand(1), expected)
    second, third = make_policy(env, small(), seed=3), make_policy(env, small(), seed=4)
    env.close()
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first.parameters(), third.parameters(), strict=True))


def test_vector_environments_are_read_by_the_row():
    env = gym.make_vec("CartPole-v1", num_envs=2)
    policy = make_policy(env)
    env.close()
    assert policy.observation_space.shape == (4,)
    assert policy.action_space == spaces.Discrete(2)


def test_what_is_no_environment_is_named():
    with pytest.raises(PolicyError, match="int has no observation_space"):
        make_policy(3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_size": 0}, "hidden_size=0"),
        ({"memory_layers": 0}, "memory_layers=0"),
        ({"context_size": -1}, "context_size=-1"),
        ({"num_layers": -1}, "num_layers=-1"),
        ({"action_hidden": (0,)}, "action_hidden"),
        ({"init_std": 0.0}, "init_std"),
        ({"critic_only": "map"}, "write \\('map',\\)"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        AgentConfig(**settings)


@pytest.mark.parametrize("settings", [{"num_layers": 0}, {"num_layers": 0, "memory": "gru"}, {"shared": True}])
def test_nets_of_few_layers(settings):
    """No layer at all is a linear policy; what is passed on is not changed on the way."""
    policy = build(**settings)
    obs = obs_of(VECTOR, 4, 3)
    before = obs.clone()
    output = call(policy, obs)
    (output.values.sum() + output.distribution.entropy().sum()).backward()
    assert torch.equal(obs, before)


def test_fresh_policies_are_undecided():
    """A small gain in the action head: the first actions do not depend on what is seen."""
    torch.manual_seed(0)
    policy = ActorCritic(VECTOR, FOUR, AgentConfig())
    probabilities = call(policy, obs_of(VECTOR, 4, 3)).distribution.probs
    assert torch.allclose(probabilities, torch.full((4, 3, 4), 0.25), atol=0.02)


def test_versions_are_not_shared():
    """A rollout knows which policy acted: two fresh policies never count as one."""
    assert build().version != build().version


@pytest.mark.parametrize("memory", MEMORIES)
def test_half_precision_stays_near(memory):
    """L24: products in bfloat16, memory, heads and values in float32."""
    policy = build(memory=memory)
    obs = obs_of(VECTOR, 5, 3)
    exact = call(policy, obs)
    policy.autocast_dtype = torch.bfloat16
    rough = call(policy, obs)
    assert rough.values.dtype == rough.distribution.log_probs.dtype == torch.float32
    assert torch.allclose(exact.values, rough.values, atol=0.1)
    assert not torch.equal(exact.values, rough.values)
    rough.values.sum().backward()
    assert all(p.grad is None or p.grad.dtype == torch.float32 for p in policy.parameters())
