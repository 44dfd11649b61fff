"""Running statistics against float64 numpy over everything at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from twostep.errors import RolloutError
from twostep.normalization import ObservationNormalizer, ReturnNormalizer, RunningMeanStd


def relative_error(measured, expected):
    return np.max(np.abs(measured - expected) / np.abs(expected))


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=8).filter(lambda sizes: sum(sizes) > 1),
    shape=st.sampled_from([(), (3,), (2, 2)]),
    mean=st.sampled_from([0.0, -3.0, 1e6]),
    seed=st.integers(0, 2**32 - 1),
    as_tensor=st.booleans(),
)
def test_any_split_into_batches_gives_the_whole(sizes, shape, mean, seed, as_tensor):
    """E21, E23, N14, EB2: mean and population variance, whatever the batches, empty ones included."""
    samples = np.random.default_rng(seed).normal(mean, 1.0, size=(sum(sizes), *shape))
    statistics = RunningMeanStd(shape)
    for batch in np.split(samples, np.cumsum(sizes)[:-1]):
        statistics.update(torch.tensor(batch) if as_tensor else batch)
    assert statistics.count == sum(sizes)
    assert statistics.mean.shape == statistics.var.shape == shape
    np.testing.assert_allclose(statistics.mean, samples.mean(axis=0), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(statistics.var, samples.var(axis=0), rtol=1e-6)


@pytest.mark.parametrize("mean", [0.5, 1e6])
def test_a_million_samples_stay_accurate(mean):
    """E23, N14: relative error below 1e-6 for mean 1e6 and deviation 1, in batches of all sizes."""
    samples = np.random.default_rng(0).normal(mean, 1.0, size=1_000_000)
    statistics = RunningMeanStd()
    for batch in np.split(samples, [*range(1, 3000), 5000, 5001, 40_000, 40_007, 500_000]):
        statistics.update(batch)
    assert statistics.count == 1_000_000
    assert relative_error(statistics.mean, samples.mean()) < 1e-6
    assert relative_error(statistics.var, samples.var()) < 1e-6


def test_literal_numbers_and_population_variance():
    """EB2: divided by n, not by n - 1."""
    statistics = RunningMeanStd()
    statistics.update(np.array([1.0, 3.0]))
    statistics.update(np.array(5.0))
    assert statistics.mean == 3.0
    assert statistics.var == pytest.approx(8 / 3, rel=1e-12)
    assert isinstance(statistics.mean, np.ndarray)
    assert isinstance(statistics.var, np.ndarray)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64])
def test_normalize_is_its_definition(dtype):
    """E21: `(x - mean) / sqrt(var + epsilon)`, also far from 0, in the precision of the input."""
    statistics = RunningMeanStd((2,))
    samples = np.random.default_rng(1).normal(size=(500, 2)) * [1.0, 50.0] + [100.0, -7.0]
    statistics.update(samples)
    x = torch.tensor([[101.0, 3.0], [99.0, -60.0]], dtype=dtype)
    expected = (x.double().numpy() - samples.mean(axis=0)) / np.sqrt(samples.var(axis=0) + 1e-8)
    normalized = statistics.normalize(x)
    assert normalized.dtype == (dtype if dtype.is_floating_point else torch.float32)
    tolerance = max(torch.finfo(normalized.dtype).eps, 1e-9)
    np.testing.assert_allclose(normalized.double().numpy(), expected, rtol=tolerance)


def test_constants_and_nothing_at_all_are_left_in_their_own_unit():
    """What never varied has no deviation to divide by: no explosion, no NaN."""
    untouched = RunningMeanStd((3,)).normalize(torch.tensor([1.0, -2.0, 0.0]))
    assert untouched.tolist() == pytest.approx([1.0, -2.0, 0.0])
    statistics = RunningMeanStd()
    for size in (1, 7, 100):
        statistics.update(np.full(size, 0.1, dtype=np.float32))
    assert statistics.normalize(torch.tensor([0.1, 1.1])).tolist() == pytest.approx([0.0, 1.0], abs=1e-6)


def test_masked_samples_do_not_count():
    """EB4, R6: whatever stands in invalid rows, NaN included."""
    valid = np.array([[True, False], [True, True]])
    x = np.array([[[1.0, 2.0], [np.nan, np.inf]], [[3.0, 4.0], [5.0, 9.0]]])
    for convert in (lambda array: array, torch.tensor):
        statistics = RunningMeanStd((2,))
        statistics.update(convert(x), convert(valid))
        assert statistics.count == 3
        assert statistics.mean.tolist() == [3.0, 5.0]
        statistics.update(convert(x), convert(np.zeros_like(valid)))
        assert statistics.count == 3


def test_samples_of_another_shape_are_refused():
    with pytest.raises(RolloutError, match=r"\[4, 3\] do not end in \[2\]"):
        RunningMeanStd((2,)).update(np.zeros((4, 3)))
    with pytest.raises(RolloutError, match=r"\[\] do not end in \[2\]"):
        RunningMeanStd((2,)).update(np.zeros(()))
    with pytest.raises(RolloutError, match=r"shape \[3\], these of \[2\]"):
        RunningMeanStd((2,)).load_state_dict(RunningMeanStd((3,)).state_dict())


def test_state_is_a_copy_and_continues_exactly():
    """R7, EB1: statistics survive a save bit for bit, and later updates do not reach what was saved."""
    rng = np.random.default_rng(2)
    statistics, resumed = RunningMeanStd((4,)), RunningMeanStd((4,))
    statistics.update(rng.normal(size=(11, 4)))
    state = statistics.state_dict()
    later = rng.normal(size=(5, 4))
    statistics.update(later)
    resumed.load_state_dict(state)
    resumed.update(later)
    assert np.array_equal(resumed.mean, statistics.mean)
    assert np.array_equal(resumed.var, statistics.var)
    assert resumed.count == statistics.count == 16


def test_returns_are_divided_by_their_deviation_only():
    """E22, EB2, C34: the mean stays, and denormalising is the inverse."""
    normalizer = ReturnNormalizer()
    returns = torch.tensor([[90.0, 110.0], [90.0, 110.0]])
    assert normalizer.scale == 1.0
    assert torch.equal(normalizer.normalize(returns), returns)
    normalizer.update(returns)
    assert normalizer.scale == pytest.approx(10.0)
    assert normalizer.normalize(returns).flatten().tolist() == pytest.approx([9.0, 11.0, 9.0, 11.0])
    torch.testing.assert_close(normalizer.denormalize(normalizer.normalize(returns)), returns)
    assert normalizer.rms.count == 4


def test_equal_returns_keep_their_unit():
    """EB1: a constant-reward task must not blow its targets up by 1 / sqrt(epsilon)."""
    normalizer = ReturnNormalizer()
    normalizer.update(torch.full((64, 4), 100.0))
    assert normalizer.scale == 1.0


def test_returns_of_invalid_steps_do_not_count_and_state_continues():
    """EB4, R7."""
    normalizer, resumed = ReturnNormalizer(), ReturnNormalizer()
    normalizer.update(torch.tensor([1.0, 3.0, 1e9]), torch.tensor([True, True, False]))
    assert normalizer.scale == pytest.approx(1.0)
    assert normalizer.rms.mean == 2.0
    resumed.load_state_dict(normalizer.state_dict())
    assert resumed.scale == normalizer.scale


def test_only_floating_leaves_of_observations_are_measured():
    """Pictures in bytes and categories pass untouched; everything else is measured leaf by leaf."""
    rng = np.random.default_rng(3)
    speed = rng.normal(5.0, 2.0, size=(6, 3, 4)).astype(np.float32)
    obs = {
        "camera": np.zeros((6, 3, 8, 8), dtype=np.uint8),
        "body": (torch.tensor(speed), torch.zeros(6, 3, dtype=torch.int64)),
        "height": rng.normal(size=(6, 3)),
    }
    normalizer = ObservationNormalizer()
    normalizer.update(obs)
    frozen = normalizer.frozen()
    assert set(frozen) == {"body/0", "height"}
    mean, std = frozen["body/0"]
    np.testing.assert_allclose(mean, speed.astype(np.float64).mean(axis=(0, 1)), rtol=1e-9)
    np.testing.assert_allclose(std, np.sqrt(speed.astype(np.float64).var(axis=(0, 1)) + 1e-8), rtol=1e-9)
    assert frozen["height"][0].shape == ()


def test_frozen_statistics_do_not_move():
    """The freezing rule: a copy taken before a rollout stays what it was."""
    normalizer, resumed = ObservationNormalizer(), ObservationNormalizer()
    assert normalizer.frozen() == {}
    normalizer.update(torch.randn(5, 2, 3))
    frozen, state = normalizer.frozen(), normalizer.state_dict()
    before = [part.copy() for part in frozen[""]]
    normalizer.update(torch.full((5, 2, 3), 100.0), valid=torch.ones(5, 2, dtype=torch.bool))
    assert all(np.array_equal(now, then) for now, then in zip(frozen[""], before, strict=True))
    assert normalizer.leaves[""].count == 20
    resumed.load_state_dict(state)
    assert all(np.array_equal(now, then) for now, then in zip(resumed.frozen()[""], before, strict=True))
