"""Every distribution against torch.distributions, against its own samples, and at the edges that break training."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributions as reference

from twostep.policies.distributions import (
    OPEN_EDGE,
    Bernoulli,
    Beta,
    Categorical,
    Gaussian,
    Joint,
    MultiDiscrete,
    SquashedGaussian,
)
from twostep.policies.squashing import expected_log_tanh_slope, log_tanh_slope

SHAPES = st.lists(st.integers(1, 4), max_size=3).map(tuple)
NVECS = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)
SEEDS = st.integers(0, 2**31 - 1)
DRAWS = 100_000
FEW = settings(max_examples=25, deadline=None)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=seeded(seed), dtype=dtype)


def some_mask(*shape, seed=0):
    """At least one True in every row."""
    mask = torch.rand(*shape, generator=seeded(seed)) < 0.5
    sure = torch.randint(shape[-1], shape[:-1], generator=seeded(seed + 1))
    return mask.scatter(-1, sure.unsqueeze(-1), True)


def examples(shape, seed=0, dtype=torch.float32):
    """One of each distribution with leading shape `shape`."""
    logits, mean = normal(*shape, 5, seed=seed, dtype=dtype), normal(*shape, 3, seed=seed + 1, dtype=dtype)
    log_std = torch.tensor([-0.7, 0.0, 0.4], dtype=dtype)
    above_one = 1.0 + mean.abs()
    return {
        "categorical": Categorical(logits),
        "categorical masked": Categorical(logits, some_mask(*shape, 5, seed=seed)),
        "multidiscrete equal": MultiDiscrete(torch.cat([logits, logits[..., :1]], -1), (2, 2, 2)),
        "multidiscrete ragged": MultiDiscrete(logits, (1, 4)),
        "bernoulli": Bernoulli(logits),
        "bernoulli masked": Bernoulli(logits, some_mask(*shape, 5, seed=seed)),
        "gaussian": Gaussian(mean, log_std),
        "gaussian of the state": Gaussian(mean, mean.sin()),
        "squashed": SquashedGaussian(mean, log_std),
        "beta": Beta(above_one, above_one.flip(-1)),
        "joint": Joint({"b": Categorical(logits), "a": (Gaussian(mean, log_std), Bernoulli(logits))}),
    }


NAMES = sorted(examples((1,)))


def assert_same_tree(one, other):
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        one, other = tuple(one.values()), tuple(other[key] for key in one)
    if isinstance(one, tuple):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_same_tree(*pair)
        return
    assert torch.equal(one, other)


# What all of them have in common


@pytest.mark.parametrize("name", NAMES)
@given(shape=SHAPES, seed=SEEDS)
@FEW
def test_one_number_per_row_for_any_leading_shape(name, shape, seed):
    distribution = examples(shape, seed % 1000)[name]
    for actions in (distribution.sample(seeded(seed)), distribution.mode()):
        log_prob = distribution.log_prob(actions)
        assert log_prob.shape == shape
        assert log_prob.isfinite().all()
    assert distribution.entropy().shape == shape
    assert distribution.entropy().isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_the_generator_alone_decides_the_sample(name):
    """The global stream is neither read nor moved, so a rollout repeats from its generator."""
    distribution = examples((64,))[name]
    torch.manual_seed(1)
    untouched = torch.get_rng_state()
    first = distribution.sample(seeded(3))
    assert torch.equal(torch.get_rng_state(), untouched)
    torch.manual_seed(2)
    assert_same_tree(first, distribution.sample(seeded(3)))
    with pytest.raises(AssertionError):
        assert_same_tree(first, distribution.sample(seeded(4)))


@pytest.mark.parametrize("name", NAMES)
def test_entropy_is_the_mean_surprise_of_its_samples(name):
    """EB7: for squashed actions too, where the density is that after tanh."""
    distribution = examples((DRAWS,), seed=5)[name]
    surprise = -distribution.log_prob(distribution.sample(seeded(0)))
    difference = (surprise - distribution.entropy()).double()
    assert abs(difference.mean()) < 5.0 * difference.std() / math.sqrt(DRAWS)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_half_precision_is_raised_and_float64_stays(name, dtype):
    distribution = examples((7,), dtype=dtype)[name]
    expected = torch.float64 if dtype == torch.float64 else torch.float32
    assert distribution.log_prob(distribution.sample(seeded())).dtype == expected
    assert distribution.entropy().dtype == expected


@pytest.mark.parametrize("kind", [Gaussian, SquashedGaussian, Beta])
def test_samples_carry_no_gradient(kind):
    """An action is data: a gradient through it would turn the policy gradient into another estimator."""
    parameters = [1.0 + normal(4, 3, seed=seed).abs().requires_grad_() for seed in range(2)]
    distribution = kind(*parameters)
    assert not distribution.sample(seeded()).requires_grad
    assert distribution.log_prob(distribution.sample(seeded()) * 0.5).requires_grad


@pytest.mark.parametrize("name", NAMES)
def test_inference_mode_draws_the_same(name):
    with torch.inference_mode():
        actions = examples((3,))[name].sample(seeded())
    assert_same_tree(actions, examples((3,))[name].sample(seeded()))


# Categorical


@given(shape=SHAPES, n=st.integers(1, 6), seed=SEEDS)
@FEW
def test_categorical_equals_torch(shape, n, seed):
    logits = 3.0 * normal(*shape, n, seed=seed)
    ours, theirs = Categorical(logits), reference.Categorical(logits=logits)
    actions = theirs.sample()
    torch.testing.assert_close(ours.log_prob(actions), theirs.log_prob(actions), atol=1e-5, rtol=0)
    torch.testing.assert_close(ours.entropy(), theirs.entropy(), atol=1e-5, rtol=0)
    torch.testing.assert_close(ours.probs, theirs.probs, atol=1e-5, rtol=0)
    assert torch.equal(ours.mode(), theirs.mode)
    assert ours.sample().dtype == torch.int64


@given(shape=SHAPES, n=st.integers(1, 6), seed=SEEDS, scale=st.sampled_from([0.0, 1.0, 100.0]))
@FEW
def test_masked_choices_do_not_exist(shape, n, seed, scale):
    """Masks: probability exactly 0, never drawn, the rest renormalised, entropy that of the allowed alone."""
    logits, mask = scale * normal(*shape, n, seed=seed), some_mask(*shape, n, seed=seed)
    masked = Categorical(logits, mask)
    assert (masked.probs[~mask] == 0).all()
    torch.testing.assert_close(masked.probs.sum(-1), torch.ones(shape))
    assert masked.log_probs.isfinite().all()
    for row in range(math.prod(shape)):
        row_mask = mask.reshape(-1, n)[row]
        allowed = reference.Categorical(logits=logits.reshape(-1, n)[row][row_mask])
        torch.testing.assert_close(masked.probs.reshape(-1, n)[row][row_mask], allowed.probs, atol=1e-5, rtol=0)
        torch.testing.assert_close(masked.entropy().reshape(-1)[row], allowed.entropy(), atol=1e-5, rtol=0)
    assert mask.gather(-1, masked.mode().unsqueeze(-1)).all()


def test_masked_choices_are_never_drawn():
    """Masks: not once in 10^6 draws, also where the only allowed choice is unlikely or alone."""
    mask = torch.tensor([[True, False, True, False], [False, True, False, False], [False, False, True, True]])
    logits = torch.tensor([[0.0, 50.0, 0.0, 0.0], [-80.0, -80.0, 80.0, 0.0], [9.0, 9.0, -9.0, 0.0]])
    drawn = Categorical(logits.expand(350_000, 3, 4), mask.expand(350_000, 3, 4)).sample(seeded())
    counts = torch.nn.functional.one_hot(drawn, 4).sum(0)
    assert (counts[~mask] == 0).all()
    assert counts[1].tolist() == [0, 350_000, 0, 0]
    assert (counts[0, [0, 2]] > 170_000).all()


def test_categorical_frequencies():
    """Chi-square: 6 degrees of freedom stay below 22.5 with probability 0.999."""
    logits = torch.tensor([0.0, 1.0, -2.0, 0.5, -5.0, 2.0, -0.3])
    distribution = Categorical(logits.expand(DRAWS, 7))
    counts = distribution.sample(seeded()).bincount(minlength=7)
    expected = DRAWS * logits.softmax(-1)
    assert ((counts - expected) ** 2 / expected).sum() < 22.5


def test_a_row_that_allows_nothing_stays_finite():
    """Masks: rows of agents that are gone may be all False; they must not poison the batch."""
    distribution = Categorical(normal(2, 3), torch.tensor([[False] * 3, [True] * 3]))
    torch.testing.assert_close(distribution.probs[0], torch.full((3,), 1.0 / 3.0))
    assert distribution.entropy().isfinite().all()


def test_gradients_under_masks_are_finite_and_pass_by_masked_logits():
    """Masks: no 0 * infinity in log-probability or entropy, and nothing is taught to a masked logit."""
    logits = normal(6, 5).requires_grad_()
    mask = some_mask(6, 5)
    distribution = Categorical(logits, mask)
    (distribution.log_prob(distribution.sample(seeded())) + distribution.entropy()).sum().backward()
    assert logits.grad.isfinite().all()
    assert (logits.grad[~mask] == 0).all()
    assert logits.grad[mask].abs().sum() > 0


def test_logits_of_minus_infinity_are_masks_too():
    """Masks: networks from elsewhere mask so; entropy and its gradient stay finite."""
    logits = torch.tensor([[0.3, -math.inf, 1.0]], requires_grad=True)
    distribution = Categorical(logits)
    distribution.entropy().sum().backward()
    torch.testing.assert_close(distribution.entropy(), Categorical(torch.tensor([[0.3, 1.0]])).entropy())
    assert logits.grad.isfinite().all()
    assert (Categorical(logits.expand(10_000, 3)).sample(seeded()) != 1).all()


def test_categorical_gradcheck():
    mask, actions = some_mask(4, 5), torch.tensor([0, 1, 2, 3])

    def results(logits):
        distribution = Categorical(logits, mask)
        return distribution.entropy(), Categorical(logits).log_prob(actions)

    assert torch.autograd.gradcheck(results, normal(4, 5, dtype=torch.float64).requires_grad_())


# MultiDiscrete


@given(shape=SHAPES, nvec=NVECS, seed=SEEDS, masked=st.booleans())
@FEW
def test_multidiscrete_is_its_categoricals(shape, nvec, seed, masked):
    """Masks: for equal and for ragged choices, padding is never drawn and never counts."""
    logits = normal(*shape, sum(nvec), seed=seed)
    masks = [some_mask(*shape, n, seed=seed) for n in nvec]
    whole = MultiDiscrete(logits, nvec, torch.cat(masks, -1) if masked else None)
    parts = [
        Categorical(part, mask if masked else None)
        for part, mask in zip(logits.split(list(nvec), -1), masks, strict=True)
    ]
    actions = whole.sample(seeded(seed))
    assert actions.shape == (*shape, len(nvec))
    assert actions.dtype == torch.int64
    assert (actions < torch.tensor(nvec)).all()
    log_probs = [part.log_prob(actions[..., i]) for i, part in enumerate(parts)]
    torch.testing.assert_close(whole.log_prob(actions), torch.stack(log_probs).sum(0), atol=1e-5, rtol=0)
    torch.testing.assert_close(whole.entropy(), torch.stack([p.entropy() for p in parts]).sum(0), atol=1e-5, rtol=0)
    assert torch.equal(whole.mode(), torch.stack([part.mode() for part in parts], -1))
    if masked:
        assert all(masks[i].gather(-1, actions[..., i : i + 1]).all() for i in range(len(nvec)))


def test_multidiscrete_draws_no_masked_and_no_missing_option():
    """Masks: also not in a row that allows nothing, where a drawn padding would crash the environment."""
    mask = torch.tensor([True, False, False, True, False, True, False, False, False, False])
    drawn = MultiDiscrete(normal(10).expand(DRAWS, 10), (2, 5, 3), mask.expand(DRAWS, 10)).sample(seeded())
    assert (drawn[:, 0] == 0).all()
    assert set(drawn[:, 1].unique().tolist()) == {1, 3}
    assert set(drawn[:, 2].unique().tolist()) == {0, 1, 2}


def test_multidiscrete_gradients_are_finite():
    logits = normal(5, 6).requires_grad_()
    mask = torch.cat([some_mask(5, 2), some_mask(5, 4)], -1)
    distribution = MultiDiscrete(logits, (2, 4), mask)
    (distribution.entropy() + distribution.log_prob(distribution.mode())).sum().backward()
    assert logits.grad.isfinite().all()
    assert (logits.grad[~mask] == 0).all()


# Bernoulli


@given(shape=SHAPES, n=st.integers(1, 5), seed=SEEDS)
@FEW
def test_bernoulli_equals_torch(shape, n, seed):
    logits, mask = 3.0 * normal(*shape, n, seed=seed), some_mask(*shape, n, seed=seed)
    theirs = reference.Independent(reference.Bernoulli(logits=logits), 1)
    actions = theirs.sample()
    torch.testing.assert_close(Bernoulli(logits).log_prob(actions.long()), theirs.log_prob(actions), atol=1e-5, rtol=0)
    torch.testing.assert_close(Bernoulli(logits).entropy(), theirs.entropy(), atol=1e-5, rtol=0)
    per_switch = reference.Bernoulli(logits=logits)
    masked = Bernoulli(logits, mask)
    only_allowed = (per_switch.log_prob(actions) * mask).sum(-1)
    torch.testing.assert_close(masked.log_prob(actions.long() * mask), only_allowed, atol=1e-5, rtol=0)
    torch.testing.assert_close(masked.entropy(), (per_switch.entropy() * mask).sum(-1), atol=1e-5, rtol=0)


def test_masked_switches_stay_off():
    """Masks: always off, with log-probability 0, entropy 0 and finite gradients; the others keep their odds."""
    logits = torch.tensor([4.0, 0.0, 30.0], requires_grad=True)
    mask = torch.tensor([False, True, False])
    drawn = Bernoulli(logits.expand(DRAWS, 3), mask.expand(DRAWS, 3)).sample(seeded())
    assert drawn.dtype == torch.int64
    assert (drawn[:, [0, 2]] == 0).all()
    assert abs(drawn[:, 1].float().mean() - 0.5) < 0.01
    alone = Bernoulli(logits[[0, 2]], torch.tensor([False, False]))
    assert alone.log_prob(torch.tensor([0, 0])) == 0
    assert alone.entropy() == 0
    assert alone.mode().tolist() == [0, 0]
    (Bernoulli(logits, mask).entropy() + Bernoulli(logits, mask).log_prob(torch.tensor([0, 1, 0]))).backward()
    assert logits.grad.isfinite().all()
    assert (logits.grad[~mask] == 0).all()
    assert logits.grad[1] != 0


def test_bernoulli_gradcheck():
    actions = torch.tensor([[0, 1, 1], [1, 0, 0]])

    def results(logits):
        return Bernoulli(logits).entropy(), Bernoulli(logits).log_prob(actions)

    assert torch.autograd.gradcheck(results, normal(2, 3, dtype=torch.float64).requires_grad_())


# Gaussian


@given(shape=SHAPES, d=st.integers(1, 4), seed=SEEDS, kind=st.sampled_from(["axes", "one", "rows"]))
@FEW
def test_gaussian_equals_torch(shape, d, seed, kind):
    mean = normal(*shape, d, seed=seed)
    log_std = {"axes": normal(d, seed=seed), "one": normal(1, seed=seed), "rows": normal(*shape, d, seed=seed)}[kind]
    theirs = reference.Independent(reference.Normal(mean, log_std.exp()), 1)
    actions = theirs.sample()
    ours = Gaussian(mean, log_std)
    torch.testing.assert_close(ours.log_prob(actions), theirs.log_prob(actions), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(ours.entropy(), theirs.entropy(), atol=1e-5, rtol=1e-5)
    assert torch.equal(ours.mode(), mean)


def test_gaussian_samples_have_its_moments():
    mean, log_std = torch.tensor([1.0, -2.0]), torch.tensor([0.5, -1.0])
    drawn = Gaussian(mean.expand(DRAWS, 2), log_std).sample(seeded())
    torch.testing.assert_close(drawn.mean(0), mean, atol=0.03, rtol=0)
    torch.testing.assert_close(drawn.std(0), log_std.exp(), atol=0.03, rtol=0)


@pytest.mark.parametrize("kind", [Gaussian, SquashedGaussian])
def test_normal_gradcheck(kind):
    actions = normal(3, 2, seed=9, dtype=torch.float64)

    def results(mean, log_std):
        return kind(mean, log_std).entropy(), kind(mean, log_std).log_prob(actions)

    inputs = normal(3, 2, dtype=torch.float64).requires_grad_(), normal(2, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(results, inputs)


# SquashedGaussian


@given(shape=SHAPES, seed=SEEDS)
@FEW
def test_squashed_log_prob_equals_torch(shape, seed):
    """EB6: the action stays as it was before tanh, so the log-probability needs no atanh."""
    mean, log_std = normal(*shape, 2, seed=seed).double(), normal(2, seed=seed + 1).double()
    theirs = reference.Independent(
        reference.TransformedDistribution(reference.Normal(mean, log_std.exp()), reference.TanhTransform()), 1
    )
    actions = mean.sin()
    ours = SquashedGaussian(mean, log_std).log_prob(actions)
    torch.testing.assert_close(ours, theirs.log_prob(actions.tanh()), atol=1e-5, rtol=0)


def test_squashed_log_prob_holds_where_tanh_is_exactly_one():
    """EB6: at u = 30 a float32 tanh is 1 and atanh infinite; the log-slope there is 2 log 2 - 2u."""
    actions = torch.tensor([[30.0], [-30.0], [0.0]], requires_grad=True)
    assert actions[0].tanh() == 1.0
    slope = log_tanh_slope(actions)
    torch.testing.assert_close(slope[:2, 0], torch.full((2,), 2 * math.log(2) - 60.0))
    assert slope[2] == 0
    slope.sum().backward()
    torch.testing.assert_close(actions.grad, -2.0 * actions.detach().tanh())


def test_squashed_log_prob_recomputed_is_the_one_stored():
    """EB6: whether acting on rows or learning on shuffled ones, and for saturated actions as well."""
    mean, log_std = 10.0 * normal(1000, 3), torch.tensor([1.5, 0.0, -3.0])
    acting = SquashedGaussian(mean, log_std)
    actions = acting.sample(seeded())
    assert (actions.tanh().abs() == 1.0).any()
    order = torch.randperm(1000, generator=seeded())
    ratio = (SquashedGaussian(mean[order], log_std).log_prob(actions[order]) - acting.log_prob(actions)[order]).exp()
    torch.testing.assert_close(ratio, torch.ones(1000), atol=1e-5, rtol=0)


@pytest.mark.parametrize("std", [0.01, 0.3, 1.0, 2.0, 7.0])
@pytest.mark.parametrize("mean", [0.0, -0.5, 3.0, 20.0])
def test_squashed_entropy_against_a_fine_sum(mean, std):
    """EB7: the expectation of the log-slope, right for narrow, wide and saturated Gaussians, and so is its gradient."""
    moments = torch.tensor([mean, math.log(std)], dtype=torch.float64, requires_grad=True)
    points = torch.linspace(-10, 10, 20_001, dtype=torch.float64)
    weights = (-0.5 * points.square()).softmax(-1)
    exact = (weights * log_tanh_slope(moments[0] + moments[1].exp() * points)).sum()
    ours = expected_log_tanh_slope(moments[:1], moments[1:])[0]
    assert abs(ours - exact) < 3e-6
    (exact_gradient,) = torch.autograd.grad(exact, moments)
    (gradient,) = torch.autograd.grad(ours, moments)
    torch.testing.assert_close(gradient, exact_gradient, atol=3e-5, rtol=0)


def test_squashed_entropy_falls_when_the_gaussian_grows_too_wide():
    """EB7: the Gaussian's own entropy would reward an ever larger deviation, which ends in bang-bang actions."""
    log_std = torch.tensor([3.0], requires_grad=True)
    SquashedGaussian(torch.zeros(1), log_std).entropy().backward()
    assert log_std.grad < 0


# Beta


@given(shape=SHAPES, d=st.integers(1, 3), seed=SEEDS)
@FEW
def test_beta_equals_torch(shape, d, seed):
    alpha, beta = (1.0 + 3.0 * normal(*shape, d, seed=seed + i).abs() for i in range(2))
    theirs = reference.Independent(reference.Beta(alpha, beta), 1)
    actions = theirs.sample().clamp(OPEN_EDGE, 1 - OPEN_EDGE)
    torch.testing.assert_close(Beta(alpha, beta).log_prob(actions), theirs.log_prob(actions), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(Beta(alpha, beta).entropy(), theirs.entropy(), atol=1e-4, rtol=1e-5)


def test_beta_samples_have_its_moments_and_stay_inside():
    alpha, beta = torch.tensor([1.0, 2.0, 1.0, 300.0]), torch.tensor([1.0, 5.0, 200.0, 1.0])
    drawn = Beta(alpha.expand(DRAWS, 4), beta.expand(DRAWS, 4)).sample(seeded())
    theirs = reference.Beta(alpha, beta)
    torch.testing.assert_close(drawn.mean(0), theirs.mean, atol=0.005, rtol=0)
    torch.testing.assert_close(drawn.var(0), theirs.variance, atol=0.003, rtol=0)
    assert drawn.min() >= OPEN_EDGE
    assert drawn.max() <= 1.0 - OPEN_EDGE


def test_beta_log_prob_is_finite_at_the_edges():
    distribution = Beta(torch.full((2, 1), 40.0), torch.full((2, 1), 1.0))
    assert distribution.log_prob(torch.tensor([[OPEN_EDGE], [1.0 - OPEN_EDGE]])).isfinite().all()


def test_beta_acts_by_its_mean():
    """Where the density is highest a nearly flat one sits at a bound, far from what was learned."""
    distribution = Beta(torch.tensor([2.0, 3.0, 1.0, 1.0, 4.0]), torch.tensor([2.0, 2.0, 1.0, 3.0, 1.0]))
    expected = torch.tensor([0.5, 0.6, 0.5, 0.25, 0.8])
    torch.testing.assert_close(distribution.mode(), expected)


def test_beta_gradcheck():
    actions = normal(3, 2, seed=9, dtype=torch.float64).sigmoid()

    def results(alpha, beta):
        return Beta(alpha, beta).entropy(), Beta(alpha, beta).log_prob(actions)

    inputs = tuple((1.1 + normal(3, 2, seed=i, dtype=torch.float64).abs()).requires_grad_() for i in range(2))
    assert torch.autograd.gradcheck(results, inputs)


# Joint


def test_joint_adds_up_over_nested_trees():
    inner = {"x": Gaussian(normal(4, 2), torch.zeros(2)), "b": Bernoulli(normal(4, 3))}
    first, last = Categorical(normal(4, 5)), MultiDiscrete(normal(4, 5), (2, 3))
    joint = Joint((first, Joint(inner), {"deep": (last,)}))
    actions = joint.sample(seeded())
    assert actions[1].keys() == inner.keys()
    by_hand = first.log_prob(actions[0]) + last.log_prob(actions[2]["deep"][0])
    by_hand = by_hand + sum(part.log_prob(actions[1][name]) for name, part in inner.items())
    torch.testing.assert_close(joint.log_prob(actions), by_hand)
    entropies = first.entropy() + last.entropy() + sum(part.entropy() for part in inner.values())
    torch.testing.assert_close(joint.entropy(), entropies)
    assert torch.equal(joint.mode()[2]["deep"][0], last.mode())


def test_joint_does_not_depend_on_the_order_of_keys():
    parts = {"a": Categorical(normal(6, 4)), "b": Gaussian(normal(6, 2), torch.zeros(1))}
    swapped = {"b": parts["b"], "a": parts["a"]}
    assert_same_tree(Joint(parts).sample(seeded()), Joint(swapped).sample(seeded()))


# Densities


@pytest.mark.parametrize("kind", ["squashed", "beta"])
def test_density_over_the_box_integrates_to_one(kind):
    """EB6: as seen by the environment, in [-2, 3], after the change of variables."""
    low, high = -2.0, 3.0
    edges = torch.linspace(0, 1, 200_001, dtype=torch.float64)
    fractions = ((edges[1:] + edges[:-1]) / 2).unsqueeze(-1)
    one = torch.ones(1, dtype=torch.float64)
    if kind == "squashed":
        log_prob = SquashedGaussian(0.3 * one, -0.2 * one).log_prob((2 * fractions - 1).atanh())
        log_prob = log_prob - math.log((high - low) / 2)
    else:
        log_prob = Beta(2.5 * one, 1.3 * one).log_prob(fractions) - math.log(high - low)
    assert abs(log_prob.exp().mean() * (high - low) - 1.0) < 1e-4
