"""Towers: K nets in one product are K plain nets; the fast tanh is tanh."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from twostep.policies.towers import LAYERS, TowerMlp, orthogonal, tanh_layer

PLAIN = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "silu": nn.SiLU, "gelu": nn.GELU}


def plain_mlp(mlp, tower, activation):
    """One tower as the net everybody would write."""
    layers = []
    parameters = list(mlp.parameters())
    for weight, bias in zip(parameters[::2], parameters[1::2], strict=True):
        linear = nn.Linear(*weight.shape[1:])
        with torch.no_grad():
            linear.weight.copy_(weight[tower].T)
            linear.bias.copy_(bias[tower, 0])
        layers += [linear, PLAIN[activation]()]
    return nn.Sequential(*layers)


@pytest.mark.parametrize("activation", LAYERS)
@given(hidden=st.lists(st.integers(1, 6), max_size=3), rows=st.integers(1, 5), seed=st.integers(0, 99))
@settings(max_examples=8, deadline=None)
def test_towers_are_plain_nets_side_by_side(activation, hidden, rows, seed):
    torch.manual_seed(seed)
    mlp = TowerMlp(2, 3, hidden, activation)
    with torch.no_grad():
        for parameter in mlp.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    x = torch.randn(2, rows, 3, requires_grad=True)
    outputs = mlp(x)
    (gradient,) = torch.autograd.grad(outputs.square().sum(), x)
    assert mlp.out_features == outputs.shape[-1] == (hidden[-1] if hidden else 3)
    for tower in range(2):
        mine = x.detach()[tower].clone().requires_grad_()
        expected = plain_mlp(mlp, tower, activation)(mine)
        assert torch.allclose(outputs[tower], expected, atol=1e-6)
        if hidden:
            (expected_gradient,) = torch.autograd.grad(expected.square().sum(), mine)
            assert torch.allclose(gradient[tower], expected_gradient, atol=1e-5)


def test_what_comes_in_is_left_alone():
    """Activations work in place, on fresh results only: neither the input nor an expanded one changes."""
    mlp = TowerMlp(2, 3, (4, 4))
    x = torch.randn(5, 3)
    before = x.clone()
    first = mlp(x.expand(2, -1, -1))
    with torch.no_grad():
        second = mlp(x.expand(2, -1, -1))
    assert torch.equal(x, before)
    assert torch.equal(first, second)


def fast_tanh(values):
    """The layer with an identity for its weights."""
    one = torch.ones(1, 1, 1, dtype=values.dtype)
    return tanh_layer(values.view(1, -1, 1), one, torch.zeros_like(one)).flatten()


@given(x=st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=40))
@settings(max_examples=50, deadline=None)
def test_fast_tanh_is_tanh(x):
    values = torch.tensor(x)
    assert torch.allclose(fast_tanh(values), values.tanh(), atol=1e-6, rtol=0)


def test_fast_tanh_near_zero_and_far_away():
    x = torch.cat((torch.linspace(-12, 12, 100_001), torch.tensor([-math.inf, math.inf, 0.0, 1e-7])))
    result = fast_tanh(x)
    assert float((result - x.tanh()).abs().max()) < 1e-6
    assert float(result.abs().max()) <= 1
    assert fast_tanh(torch.tensor([math.nan])).isnan()


def test_tanh_gradient_against_finite_differences():
    torch.manual_seed(0)
    x, weight, bias = (
        torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 5, 3), (2, 3, 4), (2, 1, 4))
    )
    assert torch.autograd.gradcheck(tanh_layer, (x, weight, bias))
    assert torch.autograd.gradcheck(lambda *parameters: tanh_layer(x.detach(), *parameters), (weight, bias))


def test_tanh_without_gradients_gives_the_same_numbers():
    """The policy acts without gradients and learns with them; both must be the same function to the last bit."""
    x, weight, bias = torch.randn(2, 50, 3), torch.randn(2, 3, 4, requires_grad=True), torch.randn(2, 1, 4)
    learning = tanh_layer(x, weight, bias)
    with torch.no_grad():
        assert torch.equal(tanh_layer(x, weight, bias), learning)
    with torch.inference_mode():
        assert torch.equal(tanh_layer(x, weight, bias), learning)


def test_orthogonal_in_every_tower():
    torch.manual_seed(0)
    wide = orthogonal(3, 4, 7, gain=2.0)
    for tower in wide:
        assert torch.allclose(tower @ tower.T, 4.0 * torch.eye(4), atol=1e-5)
    narrow = orthogonal(2, 7, 4)
    for tower in narrow:
        assert torch.allclose(tower.T @ tower, 2.0 * torch.eye(4), atol=1e-5)
    assert not torch.allclose(wide[0], wide[1])
