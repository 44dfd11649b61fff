"""Memory against torch's own cells in a plain loop: outputs, gradients, resets, layers, towers."""

from __future__ import annotations

from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from twostep import ActorCritic, AgentConfig
from twostep.policies.memory import MEMORIES, Gru, Lstm, _GruScan, _LstmScan
from twostep.tree import tree_leaves, tree_map

KINDS = ("gru", "lstm")
LSTM_ORDER = (1, 2, 3, 0)
"""Where torch's gates (input, forget, candidate, output) stand among ours (output, input, forget, candidate)."""


def build(kind, towers=2, in_features=3, units=4, layers=1, seed=0):
    torch.manual_seed(seed)
    memory = MEMORIES[kind](towers, in_features, units, layers)
    with torch.no_grad():
        for parameter in memory.parameters():
            parameter.copy_(0.5 * torch.randn_like(parameter))  # biases too, which start as zeros
    return memory


def cell_of(memory, tower, layer):
    """Return torch's own cell with the weights of one tower and layer, sharing nothing."""

    def reordered(columns):
        blocks = columns.chunk(memory.gates, dim=-1)
        order = LSTM_ORDER if isinstance(memory, Lstm) else range(3)
        return torch.cat([blocks[gate] for gate in order], dim=-1)

    weight = memory.inputs[layer][tower]
    kind = nn.LSTMCell if isinstance(memory, Lstm) else nn.GRUCell
    cell = kind(weight.shape[0], memory.units, dtype=weight.dtype)
    hidden_bias = torch.zeros(memory.gates * memory.units)
    if isinstance(memory, Gru):
        hidden_bias = memory.biases[layer][tower, 0]
    with torch.no_grad():
        cell.weight_ih.copy_(reordered(weight).T)
        cell.weight_hh.copy_(reordered(memory.weights[layer][tower]).T)
        cell.bias_ih.copy_(reordered(memory.input_biases[layer][tower, 0]))
        cell.bias_hh.copy_(reordered(hidden_bias))
    return cell


def plain_loop(memory, features, state, starts):
    """What memory means, one step and one tower at a time: forget, then update."""
    lstm = isinstance(memory, Lstm)
    towers = []
    for tower in range(memory.towers):
        cells = [cell_of(memory, tower, layer) for layer in range(memory.layers)]
        parts = [[leaf[:, layer, tower] for leaf in tree_leaves(state)] for layer in range(memory.layers)]
        outputs = []
        for t in range(features.shape[1]):
            x = features[tower, t]
            for layer, cell in enumerate(cells):
                kept = [torch.where(starts[t][:, None], 0.0, part) for part in parts[layer]]
                parts[layer] = list(cell(x, tuple(kept))) if lstm else [cell(x, kept[0])]
                x = parts[layer][0]
            outputs.append(x)
        towers.append((torch.stack(outputs), parts))
    outputs = torch.stack([outputs for outputs, _ in towers])
    leaves = tuple(
        torch.stack([torch.stack([parts[layer][n] for _, parts in towers], 1) for layer in range(memory.layers)], 1)
        for n in range(2 if lstm else 1)
    )
    return outputs, leaves if lstm else leaves[0]


def keep_of(starts):
    return (~starts)[:, None, :, None].float()


def example(memory, steps, rows, seed=1, reset_chance=0.3):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(memory.towers, steps, rows, memory.inputs[0].shape[1], generator=generator)
    state = tree_map(lambda leaf: torch.randn(leaf.shape, generator=generator), memory.initial_state(rows))
    starts = torch.rand(steps, rows, generator=generator) < reset_chance
    return features, state, starts


def worst(ours, theirs):
    pairs = zip(tree_leaves(ours), tree_leaves(theirs), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


@pytest.mark.parametrize("kind", KINDS)
@given(
    steps=st.integers(1, 9),
    rows=st.integers(1, 4),
    towers=st.integers(1, 2),
    layers=st.integers(1, 3),
    seed=st.integers(0, 99),
)
@settings(max_examples=15, deadline=None)
def test_equals_torchs_cells_in_a_plain_loop(kind, steps, rows, towers, layers, seed):
    """L9, LB7, MB2: whole sequences with resets anywhere give what stepping and forgetting give."""
    memory = build(kind, towers, 3, 5, layers, seed).double()
    features, state, starts = example(memory, steps, rows, seed)
    features, state = features.double(), tree_map(lambda leaf: leaf.double(), state)
    outputs, last = memory(features, state, keep_of(starts))
    expected, expected_last = plain_loop(memory, features, state, starts)
    assert outputs.shape == (towers, steps, rows, 5)
    assert worst(outputs, expected) < 1e-12
    assert worst(last, expected_last) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_equals_torchs_cells_in_single_precision(kind):
    """The faster tanh costs no more than rounding does."""
    memory = build(kind, towers=2, in_features=8, units=16, layers=2)
    features, state, starts = example(memory, steps=24, rows=16, reset_chance=0.1)
    outputs, last = memory(features, state, keep_of(starts))
    exact_state = tree_map(lambda leaf: leaf.double(), state)
    exact, exact_last = plain_loop(memory.double(), features.double(), exact_state, starts)
    assert worst(outputs, exact) < 1e-6
    assert worst(last, exact_last) < 2e-6


@pytest.mark.parametrize("kind", KINDS)
def test_weight_gradients_equal_torchs(kind):
    """L15: backpropagation through time, written by hand, gives what autograd gives for torch's cells."""
    memory = build(kind, towers=1, layers=1)
    features, state, starts = example(memory, steps=7, rows=3)
    features.requires_grad_()
    outputs, last = memory(features, state, keep_of(starts))
    weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(5))
    ((outputs * weights).sum() + sum(leaf.square().sum() for leaf in tree_leaves(last))).backward()
    found, features.grad = features.grad, None

    cell = cell_of(memory, 0, 0)
    parts = [leaf[:, 0, 0] for leaf in tree_leaves(state)]
    expected = []
    for t in range(7):
        kept = [torch.where(starts[t][:, None], 0.0, part) for part in parts]
        parts = list(cell(features[0, t], tuple(kept))) if kind == "lstm" else [cell(features[0, t], kept[0])]
        expected.append(parts[0])
    ((torch.stack(expected) * weights[0]).sum() + sum(part.square().sum() for part in parts)).backward()

    order = LSTM_ORDER if kind == "lstm" else range(3)

    def reordered(gradient):
        blocks = gradient.chunk(memory.gates, dim=-1)
        return torch.cat([blocks[gate] for gate in order], dim=-1)

    assert torch.allclose(found, features.grad, atol=1e-5)
    assert torch.allclose(reordered(memory.inputs[0].grad[0]).T, cell.weight_ih.grad, atol=1e-5)
    assert torch.allclose(reordered(memory.weights[0].grad[0]).T, cell.weight_hh.grad, atol=1e-5)
    assert torch.allclose(reordered(memory.input_biases[0].grad[0, 0]), cell.bias_ih.grad, atol=1e-5)
    if kind == "gru":
        assert torch.allclose(memory.biases[0].grad[0, 0], cell.bias_hh.grad, atol=1e-5)


@pytest.mark.parametrize("towers", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_against_finite_differences(kind, towers):
    """L15: every input of the scans, in double precision, with a reset inside."""
    steps, rows, units = 3, 2, 2
    gates = 3 if kind == "gru" else 4
    generator = torch.Generator().manual_seed(3)

    def numbers(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

    keep = torch.ones(steps, 1, rows, 1, dtype=torch.float64)
    keep[1, 0, 0] = 0
    projected, hidden = numbers(steps, towers, rows, gates * units), numbers(towers, rows, units)
    weight = numbers(towers, units, gates * units)
    if kind == "gru":
        bias = numbers(towers, 1, gates * units)
        assert torch.autograd.gradcheck(_GruScan.apply, (projected, hidden, keep, weight, bias))
    else:
        cell = numbers(towers, rows, units)
        assert torch.autograd.gradcheck(_LstmScan.apply, (projected, hidden, cell, keep, weight))


@pytest.mark.parametrize("kind", KINDS)
@given(cut=st.integers(1, 7), layers=st.integers(1, 2), seed=st.integers(0, 99))
@settings(max_examples=10, deadline=None)
def test_a_sequence_equals_its_pieces(kind, cut, layers, seed):
    """Eight steps at once are any two pieces one after the other, and eight single steps."""
    memory = build(kind, layers=layers)
    features, state, starts = example(memory, steps=8, rows=3, seed=seed)
    keep = keep_of(starts)
    outputs, last = memory(features, state, keep)
    for bounds in ([0, cut, 8], list(range(9))):
        now, pieces = state, []
        for begin, end in pairwise(bounds):
            piece, now = memory(features[:, begin:end], now, keep[begin:end])
            pieces.append(piece)
        assert worst(torch.cat(pieces, 1), outputs) < 1e-6
        assert worst(now, last) < 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_stop_at_resets(kind):
    """L15, LB7: nothing before an episode's start, nor the memory entering, has a part in what comes after it."""
    memory = build(kind, layers=2)
    features, state, starts = example(memory, steps=6, rows=2, reset_chance=0)
    starts[3, 0] = True
    features.requires_grad_()
    state = tree_map(lambda leaf: leaf.requires_grad_(), state)
    outputs, _ = memory(features, state, keep_of(starts))
    outputs[:, 5].sum().backward()
    assert (features.grad[:, :3, 0] == 0).all()
    assert (features.grad[:, 3:, 0] != 0).all()
    assert (features.grad[:, :, 1] != 0).all()
    for leaf in tree_leaves(state):
        assert (leaf.grad[0] == 0).all()
        assert (leaf.grad[1] != 0).any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_reset_is_the_empty_memory(kind):
    """L9: what a row remembered, however large, is gone; other rows keep theirs."""
    memory = build(kind)
    features, state, starts = example(memory, steps=4, rows=2, reset_chance=0)
    starts[0, 0] = True
    other = tree_map(lambda leaf: leaf.clone(), state)
    for leaf in tree_leaves(other):
        leaf[0] = 1e6
    first, _ = memory(features, state, keep_of(starts))
    second, _ = memory(features, other, keep_of(starts))
    fresh, _ = memory(features[:, :, :1], memory.initial_state(1), keep_of(torch.zeros(4, 1, dtype=torch.bool)))
    assert torch.equal(first, second)
    assert worst(first[:, :, :1], fresh) < 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_towers_do_not_touch_each_other(kind):
    """Changing the critic's tower leaves the actor's numbers and gradients alone, to the last bit."""
    memory = build(kind, towers=2, layers=2)
    features, state, starts = example(memory, steps=5, rows=2)
    before, _ = memory(features, state, keep_of(starts))
    before[0].sum().backward()
    gradients = {name: parameter.grad.clone() for name, parameter in memory.named_parameters()}
    assert all((gradient[1] == 0).all() for gradient in gradients.values())
    with torch.no_grad():
        for parameter in memory.parameters():
            parameter[1] += 1.0
    features[1] += 1.0
    memory.zero_grad()
    after, _ = memory(features, state, keep_of(starts))
    after[0].sum().backward()
    assert torch.equal(before[0], after[0])
    assert not torch.allclose(before[1], after[1])
    assert all(torch.equal(gradients[name], parameter.grad) for name, parameter in memory.named_parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_starts_orthogonal(kind):
    """Every gate of every tower and layer keeps lengths at the start; biases are zero."""
    torch.manual_seed(0)
    memory = MEMORIES[kind](2, 16, 8, 2)
    for weight in memory.weights:
        for block in weight.reshape(2, 8, memory.gates, 8).permute(0, 2, 1, 3).flatten(0, 1):
            assert torch.allclose(block.T @ block, torch.eye(8), atol=1e-5)
    blocks = memory.weights[0].reshape(2, 8, memory.gates, 8)
    assert not torch.allclose(blocks[0, :, 0], blocks[1, :, 0])
    assert not torch.allclose(blocks[0, :, 0], blocks[0, :, 1])
    assert memory.inputs[0].shape == (2, 16, memory.gates * 8)
    assert memory.inputs[1].shape == (2, 8, memory.gates * 8)
    for weight in memory.inputs[0]:
        assert torch.allclose(weight @ weight.T, torch.eye(16), atol=1e-5)
    assert all((bias == 0).all() for name, bias in memory.named_parameters() if "bias" in name)


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_rows_first(kind):
    """Every leaf is `[B, layers, K, H]`, so that rows can be picked, stored and joined like any other column."""
    memory = build(kind, towers=2, units=4, layers=3)
    state = memory.initial_state(5)
    assert [tuple(leaf.shape) for leaf in tree_leaves(state)] == [(5, 3, 2, 4)] * (2 if kind == "lstm" else 1)
    assert all((leaf == 0).all() for leaf in tree_leaves(state))
    features, state, starts = example(memory, steps=3, rows=5)
    _, last = memory(features, state, keep_of(starts))
    rows = torch.tensor([3, 1])
    picked = tree_map(lambda leaf: leaf[rows], state)
    _, last_of_rows = memory(features[:, :, rows], picked, keep_of(starts[:, rows]))
    assert worst(last_of_rows, tree_map(lambda leaf: leaf[rows], last)) < 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_stop_at_the_edges_of_sequences(kind):
    """L15, MB2: a sequence begins with the memory it had when acting, as a number: parameters get what it causes."""
    torch.manual_seed(0)
    space = gym.spaces.Box(-1, 1, (3,), np.float32)
    config = AgentConfig(memory=kind, hidden_size=6, memory_size=4, memory_layers=2)
    policy = ActorCritic(space, gym.spaces.Discrete(2), config)
    obs, starts = torch.randn(8, 2, 3), torch.rand(8, 2) < 0.2
    with torch.no_grad():
        state = policy.initial_state(2)
        middle = policy(obs[:4], state, starts[:4]).state

    def stretches(leaf):
        return torch.cat((leaf[:4], leaf[4:]), dim=1)

    states = tree_map(lambda a, b: torch.cat((a, b)), state, middle)
    together = policy(stretches(obs), states, stretches(starts)).values.square().sum()
    found = torch.autograd.grad(together, list(policy.parameters()), materialize_grads=True)

    total, now = torch.zeros(()), policy.initial_state(2)
    for t in range(8):
        if t == 4:
            now = tree_map(lambda leaf: leaf.detach(), now)
        output = policy(obs[t : t + 1], now, starts[t : t + 1])
        total, now = total + output.values.square().sum(), output.state
    expected = torch.autograd.grad(total, list(policy.parameters()), materialize_grads=True)
    assert torch.allclose(together, total, rtol=1e-5)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)
    assert any(float(gradient.abs().max()) > 0.1 for gradient in found)
