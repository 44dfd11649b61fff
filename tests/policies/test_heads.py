"""From features to distributions and from actions into the space, for every kind of action space."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from twostep.errors import ConfigError, PolicyError
from twostep.policies import distributions
from twostep.policies.heads import head_for
from twostep.tree import tree_leaves, tree_structure

FEATURES = 8


def box(low, high, dtype=np.float32):
    return spaces.Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)


SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)

NESTED = spaces.Dict(
    {
        "type": spaces.Discrete(3, start=2),
        "b": spaces.Tuple((spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])), spaces.Box(-2, 3, (2, 2)))),
        "c": spaces.MultiBinary((2, 3)),
        "z": spaces.Box(0, 1, ()),
    }
)
SPACES = {
    "discrete": spaces.Discrete(4),
    "discrete from 5": spaces.Discrete(4, start=5),
    "discrete from -1": spaces.Discrete(2, start=-1),
    "multidiscrete": spaces.MultiDiscrete([3, 3]),
    "multidiscrete ragged from": spaces.MultiDiscrete([2, 5, 3], start=[10, -1, 0]),
    "multidiscrete 2d": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[0, 1], [2, 3]])),
    "multibinary": spaces.MultiBinary(4),
    "multibinary 2d": spaces.MultiBinary((2, 3)),
    "box": spaces.Box(-1, 1, (3,)),
    "box uneven": box([-2.0, 0.1, 5.0], [0.0, 0.3, 1000.0], np.float64),
    "box 2d": spaces.Box(-0.3, 0.7, (2, 2)),
    "box of one number": spaces.Box(0, 1, ()),
    "box without width": box([-1.0, 2.0], [1.0, 2.0]),
    "dict": NESTED,
    "tuple": spaces.Tuple((spaces.Discrete(2), spaces.Box(-1, 1, (2,)))),
}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def features(*shape, scale=1.0):
    return scale * torch.randn(*shape, FEATURES, generator=seeded(1))


def first_row(tree, space):
    """Row 0 of a tree of `[N, ...]` tensors, as the space's own arrays."""
    if isinstance(space, spaces.Dict):
        return {name: first_row(tree[name], part) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(first_row(leaf, part) for leaf, part in zip(tree, space.spaces, strict=True))
    expected = torch.float32 if isinstance(space, spaces.Box) else torch.int64
    assert tree.dtype == expected
    return tree[0].numpy().astype(space.dtype)


def rows(tree, row):
    if isinstance(tree, dict):
        return {name: rows(leaf, row) for name, leaf in tree.items()}
    if isinstance(tree, tuple):
        return tuple(rows(leaf, row) for leaf in tree)
    return tree[row : row + 1]


# Every space


@pytest.mark.parametrize("std", ["learned", "fixed", "state"])
@pytest.mark.parametrize("action_dist", ["auto", "gaussian", "squashed", "beta"])
@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_actions_are_members_of_the_space(space, action_dist, std):
    """L25: every distribution and every source of the deviation, also where samples go far out."""
    head = head_for(space, FEATURES, action_dist=action_dist, std=std, init_std=2.0, gain=10.0)
    with torch.no_grad():
        distribution = head(features(20))
        for actions in (distribution.sample(seeded()), distribution.mode()):
            in_space = head.to_env(actions)
            for row in range(20):
                assert space.contains(first_row(rows(in_space, row), space))
            assert distribution.log_prob(actions).shape == (20,)


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
@given(shape=SHAPES)
@settings(max_examples=8, deadline=None)
def test_any_leading_shape(space, shape):
    head = head_for(space, FEATURES)
    distribution = head(features(*shape))
    actions = distribution.sample(seeded())
    assert distribution.log_prob(actions).shape == shape
    assert distribution.entropy().shape == shape

    def has_shape(tree, part):
        if isinstance(part, spaces.Dict):
            return all(has_shape(tree[name], inner) for name, inner in part.spaces.items())
        if isinstance(part, spaces.Tuple):
            return all(has_shape(leaf, inner) for leaf, inner in zip(tree, part.spaces, strict=True))
        return tree.shape == (*shape, *part.shape)

    assert has_shape(head.to_env(actions), space)


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_training_starts_nearly_indifferent(space):
    """Small gain and no bias: features hardly matter at first; weights are orthogonal."""
    head = head_for(space, FEATURES)
    linears = [module for module in head.modules() if isinstance(module, torch.nn.Linear)]
    for linear in linears:
        assert (linear.bias == 0).all()
        rank = min(linear.weight.shape)
        torch.testing.assert_close(torch.linalg.svdvals(linear.weight)[:rank], torch.full((rank,), 0.01))
    entropies = head(features(50)).entropy()
    assert entropies.std() < 0.05


@pytest.mark.parametrize("action_dist", ["gaussian", "squashed", "beta"])
@pytest.mark.parametrize("std", ["learned", "fixed", "state"])
def test_gradients_reach_every_parameter_and_are_finite(action_dist, std):
    head = head_for(NESTED, FEATURES, action_dist=action_dist, std=std)
    distribution = head(features(6))
    (distribution.log_prob(distribution.sample(seeded())) + distribution.entropy()).sum().backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all()
        assert parameter.grad.abs().sum() > 0


def test_part_names_that_modules_use_themselves():
    space = spaces.Dict({"type": spaces.Discrete(2), "forward": spaces.Discrete(2), "a.b": spaces.Discrete(2)})
    assert head_for(space, FEATURES)(features(3)).sample().keys() == space.spaces.keys()


# Offsets and bounds


def test_discrete_actions_count_from_start():
    head = head_for(spaces.Discrete(4, start=5), FEATURES)
    assert head.to_env(torch.tensor([[0, 3]])).tolist() == [[5, 8]]


def test_multidiscrete_actions_count_from_their_starts():
    head = head_for(SPACES["multidiscrete 2d"], FEATURES)
    assert head.to_env(torch.tensor([[1, 2, 3, 4]])).tolist() == [[[1, 3], [5, 7]]]


def test_gaussian_actions_are_clipped_only_where_there_is_a_bound():
    space = box([-1.0, -np.inf, 0.0], [np.inf, 2.0, 1.0])
    head = head_for(space, FEATURES)
    actions = torch.tensor([[-9.0, -9.0, 0.5], [9.0, 9.0, 9.0]])
    assert head.to_env(actions).tolist() == [[-1.0, -9.0, 0.5], [9.0, 2.0, 1.0]]


def test_squashed_actions_are_stored_before_tanh_and_fill_the_bounds():
    """EB6: `to_env` squashes; what is stored and learned from is not squashed."""
    head = head_for(box([-2.0, 10.0], [4.0, 20.0]), FEATURES, action_dist="squashed")
    actions = torch.tensor([[-50.0, 50.0], [0.0, 0.5]])
    expected = torch.tensor([[-2.0, 20.0], [1.0, 15.0 + 5.0 * math.tanh(0.5)]])
    torch.testing.assert_close(head.to_env(actions), expected)
    far_out = head(features(1000)).sample(seeded())
    assert far_out.abs().max() > 1.0


def test_beta_actions_fill_the_bounds():
    """L25"""
    head = head_for(spaces.Box(-2.0, 4.0, (1,)), FEATURES, action_dist="beta")
    torch.testing.assert_close(head.to_env(torch.tensor([[0.0], [0.25], [1.0]])), torch.tensor([[-2.0], [-0.5], [4.0]]))
    distribution = head(features(100, scale=100.0))
    assert (distribution.alpha >= 1.0).all()
    assert (distribution.beta >= 1.0).all()


def test_float64_bounds_are_not_crossed_by_rounding():
    """The float32 nearest to 0.1 lies above it, and the one nearest to -0.1 below."""
    space = box([-0.1], [0.1], np.float64)
    for action_dist in ("gaussian", "squashed"):
        out = head_for(space, FEATURES, action_dist=action_dist).to_env(torch.tensor([[-99.0], [99.0]])).double()
        assert out[0].item() >= -0.1
        assert out[1].item() <= 0.1


@pytest.mark.parametrize("action_dist", ["squashed", "beta"])
@pytest.mark.parametrize("high", [np.inf, np.finfo(np.float32).max, np.finfo(np.float64).max])
def test_stretching_needs_finite_bounds(action_dist, high):
    space = box([-1.0, 0.0], [1.0, high], np.float64)
    with pytest.raises(ConfigError, match=rf"action_dist='{action_dist}'.*without end.*action_dist='gaussian'"):
        head_for(space, FEATURES, action_dist=action_dist)
    head_for(space, FEATURES)


# Deviations


def test_std_fixed():
    """L25: a constant 0.5, which no optimizer sees and a checkpoint keeps."""
    head = head_for(SPACES["box"], FEATURES, std="fixed", init_std=0.5)
    torch.testing.assert_close(head(features(2)).log_std.exp(), torch.full((3,), 0.5))
    assert not [name for name, _ in head.named_parameters() if "std" in name]
    assert [name for name in head.state_dict() if name.endswith("log_std")]


def test_std_learned():
    """L25: one parameter per axis, the same in every state."""
    head = head_for(SPACES["box"], FEATURES, std="learned", init_std=0.7)
    parameters = [parameter for name, parameter in head.named_parameters() if "log_std" in name]
    assert [parameter.shape for parameter in parameters] == [(3,)]
    torch.testing.assert_close(parameters[0].exp(), torch.full((3,), 0.7))


@pytest.mark.parametrize("init_std", [0.05, 0.5, 1.0, 7.0])
def test_std_of_the_state(init_std):
    """L25: starts at init_std, follows the features, never leaves [exp(-5), exp(2)]."""
    head = head_for(SPACES["box"], FEATURES, std="state", init_std=init_std)
    at_start = head(torch.zeros(1, FEATURES)).log_std.exp()
    torch.testing.assert_close(at_start, torch.full((1, 3), init_std), atol=1e-4, rtol=1e-4)
    torch.nn.init.normal_(head.linear.weight)
    log_std = head(features(500, scale=100.0)).log_std
    assert log_std.shape == (500, 3)
    assert log_std.std() > 1.0
    assert log_std.min() >= -5.0
    assert log_std.max() <= 2.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"action_dist": "gausian"}, "action_dist='gausian'.*Did you mean 'gaussian'"),
        ({"action_dist": "laplace"}, "action_dist='laplace' is not one of auto, gaussian, squashed, beta"),
        ({"std": "learnt"}, "std='learnt'.*Did you mean 'learned'"),
        ({"init_std": 0.0}, "init_std=0.0 must be positive"),
        ({"init_std": math.inf}, "init_std=inf must be positive and finite"),
        ({"init_std": 9.0, "std": "state"}, "init_std=9.0.*between 0.0067 and 7.3891"),
    ],
)
def test_settings_that_cannot_work(settings, message):
    with pytest.raises(ConfigError, match=message):
        head_for(SPACES["box"], FEATURES, **settings)


@pytest.mark.parametrize(
    "space",
    [spaces.Text(3), spaces.Dict({}), spaces.Tuple((spaces.Discrete(2), spaces.Text(3))), spaces.Box(0, 1, (0,))],
    ids=str,
)
def test_spaces_without_a_head(space):
    with pytest.raises(ConfigError, match=r"no action head for.*wrap the environment"):
        head_for(space, FEATURES)


def test_box_of_whole_numbers():
    with pytest.raises(ConfigError, match=r"whole numbers.*MultiDiscrete"):
        head_for(spaces.Box(0, 255, (2,), dtype=np.uint8), FEATURES)


# Masks


def test_masks_reach_every_part():
    """Masks: dict parts may be left out, tuple parts and boxes have None."""
    head = head_for(NESTED, FEATURES)
    masks = {
        "type": torch.tensor([False, True, False]).expand(1000, 3),
        "b": (torch.tensor([True, False] + [False, False, True] + [True] * 9).expand(1000, 14), None),
        "c": torch.tensor([[True, False, False], [False, False, True]]).expand(1000, 2, 3),
    }
    head.require_form(masks)
    assert not head.stuck(masks).any()
    drawn = head.to_env(head(features(1000), masks).sample(seeded()))
    assert (drawn["type"] == 3).all()
    assert (drawn["b"][0][:, 0, 0] == 0).all()
    assert (drawn["b"][0][:, 0, 1] == 2).all()
    assert (drawn["b"][0][:, 1, 1]).unique().tolist() == [0, 1, 2, 3, 4]
    assert (drawn["c"].bool() <= masks["c"]).all()
    assert drawn["c"][:, 0, 0].unique().tolist() == [0, 1]
    flat = {"c": masks["c"].flatten(1)}
    head.require_form(flat)
    assert (head(features(1000), flat).sample(seeded())["c"].bool() <= flat["c"]).all()


def test_distribution_kinds():
    kinds = {name: type(head_for(space, FEATURES)(features(1))) for name, space in SPACES.items()}
    assert kinds["discrete"] is distributions.Categorical
    assert kinds["multidiscrete"] is distributions.MultiDiscrete
    assert kinds["multibinary"] is distributions.Bernoulli
    assert kinds["box"] is distributions.Gaussian
    assert kinds["dict"] is kinds["tuple"] is distributions.Joint


@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
class TestStuck:
    """Masks: rows in which nothing is allowed are told, whatever holds the masks."""

    def test_one_choice(self, convert):
        masks = convert([[True, False, False, False], [False] * 4])
        assert head_for(SPACES["discrete"], FEATURES).stuck(masks).tolist() == [False, True]

    def test_rows_of_sequences(self, convert):
        masks = convert([[[True, False, False, True]], [[False] * 4]])
        assert head_for(SPACES["discrete"], FEATURES).stuck(masks).tolist() == [[False], [True]]

    def test_every_choice_needs_an_option(self, convert):
        """Masks: for MultiDiscrete each choice by itself."""
        masks = convert([[True] * 6, [True] * 3 + [False] * 3, [False] * 3 + [True] * 3])
        assert head_for(SPACES["multidiscrete"], FEATURES).stuck(masks).tolist() == [False, True, True]

    def test_switches_may_all_be_off(self, convert):
        assert head_for(SPACES["multibinary"], FEATURES).stuck(convert([[False] * 4])) is None

    def test_any_part_is_enough(self, convert):
        head = head_for(NESTED, FEATURES)
        masks = {"type": convert([[True] * 3, [False] * 3, [True] * 3]), "c": convert([[False] * 6] * 3)}
        masks["b"] = (convert([[True] * 14, [True] * 14, [False] * 2 + [True] * 12]), None)
        assert head.stuck(masks).tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("space", "masks", "message"),
    [
        ("discrete", np.ones((2, 3), bool), r"shape \(2, 3\) must end in 4"),
        ("discrete", torch.ones(2, 4), r"float32 must be bool.*masks != 0"),
        ("multidiscrete", np.ones((2, 3), bool), "must end in 6"),
        ("multibinary 2d", np.ones((2, 5), bool), r"\(2, 5\) do not fit.*\(2, 3\) or \(6,\)"),
        ("multibinary", np.ones((2, 4)), "must be bool"),
        ("box", np.ones((2, 3), bool), "Action masks came for a box"),
        ("dict", {"tipe": np.ones((2, 3), bool)}, "keys are out of.*type"),
        ("dict", np.ones((2, 3), bool), "must be a dict"),
        ("tuple", (None,), "tuple of 2"),
    ],
)
def test_masks_that_do_not_fit(space, masks, message):
    with pytest.raises(PolicyError, match=message):
        head_for(SPACES[space], FEATURES).require_form(masks)


def test_masks_that_fit():
    head_for(SPACES["multibinary"], FEATURES).require_form(np.zeros((2, 4), bool))
    head_for(SPACES["tuple"], FEATURES).require_form((np.ones((2, 2), bool), None))


@pytest.mark.parametrize("action_dist", ["auto", "squashed", "beta"])
@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_what_is_sampled_is_never_misplaced(space, action_dist):
    """Data that fit: `example` has the form of a sample, and every sample passes."""
    head = head_for(space, FEATURES, action_dist=action_dist, gain=10.0)
    with torch.no_grad():
        actions = head(features(50)).sample(seeded())
    assert tree_structure(head.example()) == tree_structure(actions)
    for one, many in zip(tree_leaves(head.example()), tree_leaves(actions), strict=True):
        assert (one.shape, one.dtype) == (many.shape[1:], many.dtype)
    misplaced = head.misplaced(actions)
    assert misplaced.shape == (50,)
    assert not misplaced.any()


@pytest.mark.parametrize(
    ("space", "action_dist", "actions"),
    [
        ("discrete", "auto", [0, 4]),
        ("discrete", "auto", [0, -1]),
        ("multidiscrete ragged from", "auto", [[1, 4, 2], [1, 4, 3]]),
        ("multibinary", "auto", [[0, 1, 0, 1], [0, 1, 0, 2]]),
        ("box", "auto", [[9.0, 0.0, 0.0], [0.0, math.nan, 0.0]]),
        ("box", "beta", [[0.9, 0.1, 0.5], [0.9, 1.0, 0.5]]),
    ],
)
def test_actions_of_no_such_space_are_told(space, action_dist, actions):
    head = head_for(SPACES[space], FEATURES, action_dist=action_dist)
    assert head.misplaced(torch.tensor(actions)).tolist() == [False, True]


def test_a_box_does_not_swallow_masks():
    with pytest.raises(PolicyError, match="for a box"):
        head_for(SPACES["box"], FEATURES)(features(2), torch.ones(2, 3, dtype=torch.bool))
