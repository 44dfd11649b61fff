"""The loss: literal numbers, an independent definition in plain floats, and nothing from where nobody was."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from twostep import PPOConfig, ppo_loss
from twostep.learn.losses import clipped_surrogate, normalized, squared_value_error

COLUMNS = ("new_logprobs", "new_values", "entropies", "old_logprobs", "old_values", "advantages", "returns")


def plain_loss(rows, config, scale=1.0):
    """The definition, one transition at a time: `rows` are the seven numbers of each."""
    parts = {name: 0.0 for name in ("policy_loss", "value_loss", "entropy", "approx_kl", "clipfrac")}
    low, high = 1 - config.clip_coef, 1 + config.clip_coef
    for new_logprob, new_value, entropy, old_logprob, old_value, advantage, value_target in rows:
        ratio = math.exp(new_logprob - old_logprob)
        parts["policy_loss"] -= min(ratio * advantage, min(max(ratio, low), high) * advantage)
        value, old, target = new_value / scale, old_value / scale, value_target / scale
        error = (value - target) ** 2
        if config.clip_vloss:
            reach = config.vf_clip_coef or config.clip_coef
            error = max(error, (old + min(max(value - old, -reach), reach) - target) ** 2)
        parts["value_loss"] += config.value_loss_scale * error
        parts["entropy"] += entropy
        parts["approx_kl"] += ratio - 1 - math.log(ratio)
        parts["clipfrac"] += abs(ratio - 1) > config.clip_coef
    parts = {name: total / max(1, len(rows)) for name, total in parts.items()}
    loss = parts["policy_loss"] + config.vf_coef * parts["value_loss"] - config.ent_coef * parts["entropy"]
    return {"loss": loss, **parts}


def random_columns(seed, shape):
    generator = torch.Generator().manual_seed(seed)
    columns = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name in COLUMNS}
    columns["new_logprobs"] = columns["old_logprobs"] + 0.3 * columns["new_logprobs"]
    return columns


def test_literal_numbers():
    """E14, L11, M9: ratios 1.5 and 0.5 with advantages 1 and -1, worked by hand."""
    old = torch.zeros(1, 4)
    loss, metrics = ppo_loss(
        torch.tensor([[1.5, 0.5, 1.5, 0.5]]).log(),
        torch.tensor([[1.0, 2.0, 3.0, 4.0]]),
        torch.tensor([[0.5, 0.7, 0.1, 0.3]]),
        old_logprobs=old,
        old_values=old,
        advantages=torch.tensor([[1.0, 1.0, -1.0, -1.0]]),
        returns=torch.full((1, 4), 2.0),
        config=PPOConfig(clip_coef=0.2, vf_coef=0.5, ent_coef=0.01, value_loss_scale=0.5),
    )
    # surrogates: 1.2 (clipped), 0.5, -1.5, -0.8 (clipped): mean -0.15; squared errors 1, 0, 1, 4: mean 1.5
    assert metrics["policy_loss"].item() == pytest.approx(0.15)
    assert metrics["value_loss"].item() == pytest.approx(0.75)
    assert metrics["entropy"].item() == pytest.approx(0.4)
    assert metrics["clipfrac"].item() == 1.0
    assert metrics["approx_kl"].item() == pytest.approx((0.0945349 + 0.1931472) / 2, abs=1e-6)
    assert loss.item() == pytest.approx(0.15 + 0.5 * 0.75 - 0.01 * 0.4)
    assert metrics["loss"].item() == loss.item()


@pytest.mark.parametrize(
    ("new", "target", "expected"),
    [(2.0, 1.5, 0.25), (2.0, 3.0, 3.24), (1.1, 3.0, 3.61), (0.0, 1.0, 1.0), (0.0, -3.0, 14.44)],
)
def test_value_clipping_by_hand(new, target, expected):
    """L11, C16: the old value 1 may move by 0.2; the larger of both errors counts."""
    error = squared_value_error(torch.tensor(new), torch.tensor(1.0), torch.tensor(target), clip=0.2)
    assert error.item() == pytest.approx(expected)


def test_values_are_clipped_in_the_unit_that_the_critic_learns_in():
    """C16, R5: with returns in units of 10, a move by 0.2 units is a move by 2."""
    raw = [torch.tensor(number) for number in (20.0, 10.0, 15.0)]
    assert squared_value_error(*raw, clip=0.2, scale=torch.tensor(10.0)).item() == pytest.approx(0.25)
    assert squared_value_error(torch.tensor(20.0), *raw[1:2], torch.tensor(30.0), 0.2, torch.tensor(10.0)).item() == (
        pytest.approx(1.8**2)
    )


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    shape=st.tuples(st.integers(1, 4), st.integers(1, 6)),
    clip_vloss=st.booleans(),
    vf_clip_coef=st.sampled_from([None, 0.05, 0.5]),
    clip_coef=st.sampled_from([0.1, 0.2, 0.3]),
    value_loss_scale=st.sampled_from([0.5, 1.0]),
    scale=st.sampled_from([None, 3.0]),
    valid_share=st.sampled_from([None, 0.5, 0.0]),
    poison=st.sampled_from([math.nan, math.inf, -math.inf]),
)
def test_equals_the_definition_in_plain_floats(
    seed, shape, clip_vloss, vf_clip_coef, clip_coef, value_loss_scale, scale, valid_share, poison
):
    """E14, L11, C15, C16, R6, EB4: valid transitions only; what stands elsewhere reaches neither loss nor gradient."""
    config = PPOConfig(
        clip_coef=clip_coef, clip_vloss=clip_vloss, vf_clip_coef=vf_clip_coef, value_loss_scale=value_loss_scale
    )
    columns = random_columns(seed, shape)
    valid = None
    counted = torch.ones(shape, dtype=torch.bool)
    if valid_share is not None:
        valid = counted = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < valid_share
        columns = {name: torch.where(valid, column, poison) for name, column in columns.items()}
    rows = torch.stack(list(columns.values()), dim=-1)[counted].tolist()
    for name in COLUMNS[:3]:
        columns[name].requires_grad_()
    unit = None if scale is None else torch.tensor(scale, dtype=torch.float64)
    loss, metrics = ppo_loss(**columns, config=config, valid=valid, value_scale=unit)
    for name, expected in plain_loss(rows, config, scale or 1.0).items():
        assert metrics[name].item() == pytest.approx(expected, rel=1e-7, abs=1e-12), name
    loss.backward()
    for name in COLUMNS[:3]:
        assert bool(columns[name].grad.isfinite().all()), name
        assert columns[name].grad[~counted].abs().sum().item() == 0.0


def test_given_the_count_of_the_whole_pieces_add_up():
    """MB6, N18."""
    columns, config = random_columns(3, (4, 6)), PPOConfig()
    whole, metrics = ppo_loss(**columns, config=config)
    parts = [
        ppo_loss(**{name: column[:, at] for name, column in columns.items()}, config=config, count=24)
        for at in (slice(0, 1), slice(1, 6))
    ]
    assert sum(loss for loss, _ in parts).item() == pytest.approx(whole.item())
    assert sum(part["approx_kl"] for _, part in parts).item() == pytest.approx(metrics["approx_kl"].item())


@pytest.mark.parametrize(
    ("ratio", "advantage", "slope"),
    [(1.5, 1.0, 0.0), (1.1, 1.0, -1.0), (1.5, -1.0, 1.0), (0.5, 1.0, -1.0), (0.5, -1.0, 0.0)],
)
def test_no_gradient_where_the_ratio_left_its_range_for_the_better(ratio, advantage, slope):
    """L11: and a full one where it left it for the worse."""
    ratio = torch.tensor(ratio, requires_grad=True)
    clipped_surrogate(ratio, torch.tensor(advantage), 0.2).backward()
    assert ratio.grad.item() == slope


def test_ratio_of_one_is_the_policy_gradient():
    """Before the first step the gradient of the log-probabilities is minus the advantage; nothing is clipped yet."""
    columns = random_columns(5, (2, 8)) | {"entropies": torch.zeros(2, 8, dtype=torch.float64)}
    columns["new_logprobs"] = columns["old_logprobs"].clone().requires_grad_()
    loss, metrics = ppo_loss(**columns, config=PPOConfig())
    loss.backward()
    torch.testing.assert_close(columns["new_logprobs"].grad, -columns["advantages"] / 16)
    assert metrics["approx_kl"].item() == metrics["clipfrac"].item() == 0.0


def test_metrics_carry_no_gradient():
    columns = random_columns(5, (2, 3))
    columns["new_values"].requires_grad_()
    loss, metrics = ppo_loss(**columns, config=PPOConfig())
    assert loss.requires_grad
    assert not any(value.requires_grad for value in metrics.values())


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), size=st.integers(2, 200), offset=st.sampled_from([0.0, -50.0, 1e4]))
def test_normalized_advantages_have_mean_zero_and_deviation_one(seed, size, offset):
    """J41, L10: over what counts, and by the same numbers for all."""
    generator = torch.Generator().manual_seed(seed)
    advantages = 7 * torch.randn(size, 3, generator=generator) + offset
    valid = torch.rand(size, 3, generator=generator) < 0.7
    if int(valid.sum()) < 2:
        return
    poisoned = torch.where(valid, advantages, math.nan)
    wide = advantages[valid].double()
    expected = (wide - wide.mean()) / (wide.std() + 1e-8)
    torch.testing.assert_close(
        normalized(poisoned, valid)[valid].double(), expected, rtol=0, atol=0.01 if offset == 1e4 else 1e-4
    )
    assert normalized(advantages).std().item() == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("number", [0.1, 1000.1, -33.3])
@pytest.mark.parametrize("size", [1, 2, 3, 1000, 4097])
def test_advantages_without_spread_become_zero(number, size):
    """EB13, MB8, R4: one sample alone is no NaN, and rounding errors are not blown up to deviations of 1."""
    assert normalized(torch.full((size, 1), number)).abs().max().item() == 0.0


def test_normalizing_nothing_is_harmless():
    """J37."""
    nothing = torch.zeros(3, 2, dtype=torch.bool)
    assert torch.equal(normalized(torch.ones(3, 2), nothing), torch.ones(3, 2))
    alone = nothing.clone()
    alone[1, 1] = True
    assert normalized(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), alone)[1, 1].item() == 0.0
