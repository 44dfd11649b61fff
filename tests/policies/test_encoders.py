"""Observations of every kind become features: categories, bytes, pictures, groups, and what only a critic sees."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from twostep import AgentConfig
from twostep.errors import ConfigError, PolicyError
from twostep.policies.encoders import ConvNet, Encoder, Vector, is_image

VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float32)
BODY = {"commands": spaces.Box(-1, 1, (3,), np.float32), "proprioception": spaces.Box(-1, 1, (5,), np.float32)}
SCANDOTS = spaces.Dict({**BODY, "scandots": spaces.Box(-1, 1, (4, 3), np.float32)})
DEPTH = spaces.Dict({**BODY, "depth": spaces.Box(0, 255, (1, 12, 10), np.uint8)})


def batch_of(space, rows, seed=0):
    """Return observations of a space as a tree of tensors `[rows, ...]`."""
    if isinstance(space, spaces.Dict):
        return {name: batch_of(part, rows, seed + n) for n, (name, part) in enumerate(space.spaces.items())}
    if isinstance(space, spaces.Tuple):
        return tuple(batch_of(part, rows, seed + n) for n, part in enumerate(space.spaces))
    space.seed(seed)
    return torch.as_tensor(np.stack([space.sample() for _ in range(rows)]))


@given(nvec=st.lists(st.integers(1, 4), min_size=1, max_size=4), start=st.integers(-2, 3), rows=st.integers(1, 4))
@settings(max_examples=20, deadline=None)
def test_categories_are_one_hot(nvec, start, rows):
    """As Gymnasium flattens them, wherever they start counting."""
    for space in (spaces.MultiDiscrete(nvec, start=[start] * len(nvec)), spaces.Discrete(nvec[0], start=start)):
        obs = batch_of(space, rows)
        expected = np.stack([spaces.flatten(space, member) for member in obs.numpy()])
        features = Vector(space)(obs)
        assert features.dtype == torch.float32
        assert np.array_equal(features.numpy(), expected)


def test_grids_of_categories_keep_their_order():
    space = spaces.MultiDiscrete([[2, 3], [4, 1]], start=[[0, 1], [2, 0]])
    obs = batch_of(space, 6)
    options = [(0, 1), (1, 2, 3), (2, 3, 4, 5), (0,)]
    cells = obs.reshape(6, 4).tolist()
    expected = [[float(cell == one) for cell, some in zip(row, options, strict=True) for one in some] for row in cells]
    assert Vector(space)(obs).tolist() == expected


def test_numbers_are_flattened_and_bytes_scaled():
    switches = spaces.MultiBinary((2, 2))
    obs = batch_of(switches, 3)
    assert torch.equal(Vector(switches)(obs), obs.reshape(3, 4).float())
    whole = spaces.Box(-500, 500, (2,), np.int32)
    assert torch.equal(Vector(whole)(torch.tensor([[-500, 7]], dtype=torch.int32)), torch.tensor([[-500.0, 7.0]]))
    memory = spaces.Box(0, 255, (4,), np.uint8)
    scaled = Vector(memory)(torch.tensor([[0, 51, 102, 255]], dtype=torch.uint8))
    assert torch.allclose(scaled, torch.tensor([[0.0, 0.2, 0.4, 1.0]]))
    grid = spaces.Box(-1, 1, (4, 3), np.float32)
    obs = batch_of(grid, 3)
    assert torch.equal(Vector(grid)(obs), obs.reshape(3, 12))


def test_statistics_are_frozen_until_set():
    """The identity until told otherwise; then cut at ten deviations."""
    vector = Vector(VECTOR)
    obs = torch.tensor([[1.0, 2.0, 1000.0]])
    assert torch.equal(vector(obs), obs)
    vector.mean.copy_(torch.tensor([1.0, 0.0, 0.0]))
    vector.inverse_std.copy_(torch.tensor([3.0, 0.25, 1.0]))
    vector.refresh()
    assert vector(obs).tolist() == [[0.0, 0.5, 10.0]]
    assert vector(-obs)[0, 2] == -10.0
    assert torch.equal(obs, torch.tensor([[1.0, 2.0, 1000.0]]))


def test_loaded_statistics_are_used():
    vector, other = Vector(VECTOR), Vector(VECTOR)
    vector.mean.fill_(1.0)
    other.load_state_dict(vector.state_dict())
    assert other(torch.ones(1, 3)).tolist() == [[0.0, 0.0, 0.0]]
    other.load_state_dict(Vector(VECTOR).state_dict())
    assert other(torch.ones(1, 3)).tolist() == [[1.0, 1.0, 1.0]]


@pytest.mark.parametrize("space", [spaces.Text(5), spaces.Sequence(spaces.Discrete(2)), spaces.Graph(VECTOR, None)])
def test_spaces_without_encoder_are_named(space):
    with pytest.raises(ConfigError, match="No encoder"):
        Vector(space)


@pytest.mark.parametrize(
    ("shape", "dtype", "image"),
    [
        ((3, 8, 8), np.uint8, True),
        ((8, 8, 3), np.float32, True),
        ((8, 8), np.uint8, True),
        ((8, 8), np.float32, False),
        ((8,), np.uint8, False),
    ],
)
def test_what_counts_as_a_picture(shape, dtype, image):
    space = spaces.Box(0, 1, shape, dtype)
    assert is_image(space) is image
    assert not is_image(space, "mlp")


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_channels_may_come_first_or_last(dtype):
    """The same picture in either order gives the same features; bytes are read as 0..1."""
    first, last = spaces.Box(0, 255, (3, 12, 10), dtype), spaces.Box(0, 255, (12, 10, 3), dtype)
    net, other = ConvNet(first, ((4, 3, 2), (5, 3, 1))), ConvNet(last, ((4, 3, 2), (5, 3, 1)))
    other.load_state_dict(net.state_dict())
    obs = batch_of(first, 4)
    features = net(obs)
    assert features.shape == (4, net.out_features)
    assert torch.allclose(features, other(obs.permute(0, 2, 3, 1)), atol=1e-6)
    scale = 255.0 if dtype == np.uint8 else 1.0
    assert torch.allclose(features, net.body(obs.double().div(scale).float()), atol=1e-4 if scale == 1.0 else 1e-6)


def test_pictures_without_channels():
    """Two sides in bytes: one channel."""
    net = ConvNet(spaces.Box(0, 255, (9, 11), np.uint8), ((4, 3, 2),))
    obs = torch.randint(0, 256, (2, 9, 11), dtype=torch.uint8)
    assert torch.allclose(net(obs), net.body(obs[:, None] / 255.0), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "shape", "filters"),
    [
        ("auto", (4, 84, 84), (32, 64, 64)),
        ("auto", (36, 36, 3), (32, 64, 64)),
        ("auto", (35, 84, 3), (16, 32)),
        ("simple_cnn", (4, 84, 84), (16, 32)),
        ("nature_cnn", (3, 40, 40), (32, 64, 64)),
    ],
)
def test_convolutions_fit_the_picture(name, shape, filters):
    encoder = Encoder(spaces.Box(0, 255, shape, np.uint8), 1, AgentConfig(name=name, hidden_size=16))
    layers = [layer for layer in encoder.modules() if isinstance(layer, torch.nn.Conv2d)]
    assert tuple(layer.out_channels for layer in layers) == filters
    assert encoder.out_features == (16 if name == "simple_cnn" else 512)


def test_an_mlp_flattens_pictures():
    """M2: `name` says how observations are read; "mlp" means what it says, in bytes scaled to 0..1."""
    encoder = Encoder(spaces.Box(0, 255, (2, 4, 4), np.uint8), 2, AgentConfig(name="mlp", hidden_size=8))
    assert not [layer for layer in encoder.modules() if isinstance(layer, torch.nn.Conv2d)]
    bright, dark = torch.full((1, 2, 4, 4), 255, dtype=torch.uint8), torch.zeros(1, 2, 4, 4, dtype=torch.uint8)
    assert torch.equal(encoder(bright), encoder.trunk(torch.ones(2, 1, 32)))
    assert torch.equal(encoder(dark), encoder.trunk(torch.zeros(2, 1, 32)))


def test_pictures_too_small_are_refused():
    with pytest.raises(ConfigError, match="too small"):
        Encoder(spaces.Box(0, 255, (3, 20, 20), np.uint8), 1, AgentConfig(name="nature_cnn"))


@pytest.mark.parametrize("towers", [1, 2])
def test_groups_of_phase_one(towers):
    """L1, L2, L3: scandots go through layers of their own, then all groups are joined in the order of their names."""
    config = AgentConfig(hidden_size=8, num_layers=1, encoders={"scandots": (7, 6)})
    encoder = Encoder(SCANDOTS, towers, config)
    obs = batch_of(SCANDOTS, 4)
    groups = dict(zip(sorted(SCANDOTS.spaces), encoder.groups, strict=True))
    dots = groups["scandots"](obs["scandots"])
    assert dots.shape == (towers, 4, 6)
    raw = [obs[name].expand(towers, -1, -1) for name in ("commands", "proprioception")]
    assert torch.equal(encoder(obs), encoder.trunk(torch.cat([*raw, dots], -1)))
    assert encoder(obs).shape == (towers, 4, 8)


def test_groups_of_phase_two():
    """L1, L2: depth pictures beside vectors go through convolutions of each tower, then all is joined."""
    encoder = Encoder(DEPTH, 2, AgentConfig(hidden_size=8))
    obs = batch_of(DEPTH, 4)
    depth = dict(zip(sorted(DEPTH.spaces), encoder.groups, strict=True))["depth"]
    features = depth(obs["depth"])
    assert features.shape[:2] == (2, 4)
    assert not torch.allclose(features[0], features[1])
    joined = torch.cat((obs["commands"].expand(2, -1, -1), features, obs["proprioception"].expand(2, -1, -1)), -1)
    assert torch.equal(encoder(obs), encoder.trunk(joined))


def test_nested_observations():
    """Groups inside groups are named by their paths; tuples by position."""
    space = spaces.Dict({"a": spaces.Dict({"b": VECTOR, "c": spaces.Discrete(3)}), "d": spaces.Tuple((VECTOR, VECTOR))})
    encoder = Encoder(space, 2, AgentConfig(hidden_size=4, encoders={"a/b": (5,)}, critic_only=("d/1",)))
    obs = batch_of(space, 3)
    assert encoder(obs).shape == (2, 3, 4)
    changed = {**obs, "d": (obs["d"][0], obs["d"][1] + 1)}
    assert torch.equal(encoder(obs)[0], encoder(changed)[0])
    assert not torch.allclose(encoder(obs)[1], encoder(changed)[1])
    assert sorted(encoder.vectors()) == ["a/b", "d/0", "d/1"]


@pytest.mark.parametrize("hidden", ["scandots", "depth"])
def test_what_only_the_critic_sees(hidden):
    """The actor's features do not change with it, and it gets no gradient from them, to the last bit."""
    space = SCANDOTS if hidden == "scandots" else DEPTH
    layers = {"scandots": (4,)} if hidden == "scandots" else {}
    encoder = Encoder(space, 2, AgentConfig(hidden_size=8, critic_only=(hidden,), encoders=layers))
    obs = batch_of(space, 4)
    features = encoder(obs)
    changed = encoder({**obs, hidden: batch_of(space[hidden], 4, seed=9)})
    assert torch.equal(features[0], changed[0])
    assert not torch.allclose(features[1], changed[1])
    features[0].sum().backward()
    group = encoder.groups[list(encoder.critic_only).index(True)]
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in group.parameters())
    width = group.out_features
    first = sum(other.out_features for other in list(encoder.groups)[: list(encoder.critic_only).index(True)])
    gradient = encoder.trunk.weight_0.grad
    assert not gradient[0, first : first + width].any()
    assert gradient[0].any()
    assert not gradient[1].any()


def test_context_is_joined_for_both_towers():
    """J20: a task embedding beside the observation."""
    encoder = Encoder(VECTOR, 2, AgentConfig(hidden_size=8, num_layers=1, context_size=2))
    obs, context = torch.randn(4, 3), torch.randn(4, 2)
    expected = encoder.trunk(torch.cat((obs, context), -1).expand(2, -1, -1))
    assert torch.equal(encoder(obs, context), expected)


@pytest.mark.parametrize(("context_size", "given_size"), [(0, 2), (2, None), (2, 3)])
def test_a_context_of_another_size_is_refused(context_size, given_size):
    encoder = Encoder(VECTOR, 2, AgentConfig(context_size=context_size))
    with pytest.raises(PolicyError, match=f"context_size={context_size}"):
        encoder(torch.randn(4, 3), None if given_size is None else torch.randn(4, given_size))


@pytest.mark.parametrize(
    ("space", "settings", "message"),
    [
        (SCANDOTS, {"encoders": {"scandot": (4,)}}, "encoders names 'scandot'.*scandots"),
        (SCANDOTS, {"critic_only": ("heights",)}, "critic_only names 'heights'.*scandots"),
        (SCANDOTS, {"critic_only": ("scandots",), "shared": True}, "shared=False"),
        (DEPTH, {"encoders": {"depth": (4,)}}, "'depth'.*convolutions"),
        (VECTOR, {"critic_only": ("x",)}, "no named groups"),
    ],
)
def test_settings_that_do_not_fit_are_refused(space, settings, message):
    towers = 1 if settings.get("shared") else 2
    with pytest.raises(ConfigError, match=message):
        Encoder(space, towers, AgentConfig(**settings))


def test_no_layers_pass_features_on():
    encoder = Encoder(VECTOR, 2, AgentConfig(num_layers=0))
    obs = torch.randn(4, 3)
    assert encoder.out_features == 3
    assert torch.equal(encoder(obs), obs.expand(2, -1, -1))


def test_gymnasium_environments_have_encodable_observations():
    env = gym.make("CartPole-v1")
    encoder = Encoder(env.observation_space, 2, AgentConfig())
    obs, _ = env.reset(seed=0)
    env.close()
    assert encoder(torch.as_tensor(obs)[None]).shape == (2, 1, 64)
